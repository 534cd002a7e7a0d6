"""minResources of a PodGroup: the requests of its minimum number of pods, under the names of quotas.

Computed when a PodGroup is created or compared. Pure. Cost: decoding the templates of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bayplan.admission.volcano_defaults import min_available, replicas
from bayplan.codec.quantity import Quantity
from bayplan.controllers.core.api_types import Tree
from bayplan.errors import ObjectError
from bayplan.objects.core import Pod
from bayplan.objects.kinds import without_nulls
from bayplan.objects.resources import is_native, pod_limits, pod_requests

QuantityMap = dict[str, Quantity]
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


def pod_usage(pod: Pod) -> QuantityMap:
    """Usage of a pod under the names of quotas, and under the plain names of extended resources."""
    requests, limits = pod_requests(pod), pod_limits(pod)
    found: QuantityMap = {"pods": Quantity.of(1), "count/pods": Quantity.of(1)}
    for name in _COMPUTE:
        if name in requests:
            found[name] = found[f"requests.{name}"] = requests[name]
        if name in limits:
            found[f"limits.{name}"] = limits[name]
    for name, amount in requests.items():
        if not is_native(name) or name.startswith("hugepages-"):
            found[name] = found[f"requests.{name}"] = amount
    return found


def multiply_amounts(amounts: QuantityMap, count: int) -> QuantityMap:
    """Multiply amounts by a count, by doubling: a thousand pods cost ten additions."""
    found: QuantityMap = {}
    while count > 0:
        if count & 1:
            found = add_amounts(found, amounts)
        amounts, count = add_amounts(amounts, amounts), count >> 1
    return found


def add_amounts(one: QuantityMap, other: QuantityMap) -> QuantityMap:
    return one | {name: one[name] + amount if name in one else amount for name, amount in other.items()}


def format_amounts(amounts: QuantityMap) -> dict[str, str]:
    return {name: str(amount) for name, amount in sorted(amounts.items())}


def min_resources_of(tasks: list[Tree], min_count: int, priority_of: Callable[[str], int]) -> QuantityMap:
    """Requests of the first `least` pods of these tasks, highest priority first.

    If the job's minAvailable is below the sum of its tasks', pods are taken in order. Otherwise each task contributes
    its own minAvailable first, and the rest of the job's is filled with further pods."""
    ranked = sorted(tasks, key=lambda task: -priority_of(_template(task).get("priorityClassName") or ""))
    total: QuantityMap = {}
    if min_count < sum(min_available(task) for task in tasks):
        shares = [(task, replicas(task)) for task in ranked]
    else:
        own = [(task, min_available(task)) for task in ranked]
        shares = [*own, *((task, replicas(task) - min_available(task)) for task in ranked)]
    left = min_count
    for task, share in shares:
        count = min(left, max(share, 0))
        if count > 0:
            total = add_amounts(total, multiply_amounts(task_usage(task), count))
            left -= count
    return total


def task_usage(task: Tree) -> QuantityMap:
    """Usage of one pod of a task; an invalid template counts as one pod."""
    try:
        pod = msgspec.convert(without_nulls({"spec": _template(task)}), Pod)
        return pod_usage(pod)
    except (msgspec.ValidationError, ObjectError):
        return {"pods": Quantity.of(1), "count/pods": Quantity.of(1)}


def _template(task: Tree) -> Tree:
    spec: Tree = (task.get("template") or {}).get("spec") or {}
    return spec
