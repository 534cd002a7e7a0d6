"""How much does a task ask for, in the batch engine's amounts?

Asked once a pod when it enters the cache. The rule is the pod engine's in outline (containers and sidecars add up, an
init container counts where it needs more, pod-level requests and overhead on top) and differs from it in the rounding:
each container's request is rounded up by itself, and every task asks for one of `pods`.

Cost: a microsecond for a pod whose containers write what others have written before, some ten otherwise.
"""

from __future__ import annotations

from functools import lru_cache

from bayplan.batch.model.amounts import Amounts
from bayplan.codec.quantity import QuantityText, parse_quantity
from bayplan.objects.core import Container, ContainerStatus, Pod
from bayplan.objects.meta import ResourceList
from bayplan.objects.resources import PODS, has_pod_level_requests, is_pod_level

_RequestTexts = tuple[tuple[tuple[str, QuantityText], ...], ...]


def pod_amounts(pod: Pod) -> Amounts:
    """All that a pod needs at once, at its worst moment, and its place among the `pods` of a node."""
    if _is_plain(pod):
        written = tuple([tuple(container.resources.requests.items()) for container in pod.spec.containers])
        return _cached_amounts(written).clone()
    amounts = _container_requests(pod)
    amounts.set_max(_init_container_requests(pod, amounts))
    amounts.add_scalar(PODS, 1.0)
    return _add_pod_level_requests(amounts, pod)


def _is_plain(pod: Pod) -> bool:
    """Whether the amounts depend on nothing but what the regular containers write."""
    spec = pod.spec
    if spec.init_containers or spec.overhead or spec.resources is not None:
        return False
    return not any(status.resources is not None for status in pod.status.container_statuses)


@lru_cache(maxsize=8192)
def _cached_amounts(written: _RequestTexts) -> Amounts:
    amounts = Amounts(scalars={})
    for requests in written:
        amounts.add(Amounts.of(dict(requests)))
    amounts.add_scalar(PODS, 1.0)
    return amounts


def _container_requests(pod: Pod) -> Amounts:
    statuses = {status.name: status for status in pod.status.container_statuses}
    amounts = Amounts()
    for container in pod.spec.containers:
        amounts.add(Amounts.of(_requests(pod, container, statuses.get(container.name))))
    return amounts


def _init_container_requests(pod: Pod, running: Amounts) -> Amounts:
    """The most that starting the pod takes; sidecars are added to what is `running` afterwards, too."""
    statuses = {status.name: status for status in pod.status.init_container_statuses}
    sidecars, starting = Amounts(), Amounts()
    for container in pod.spec.init_containers:
        status = statuses.get(container.name) if container.is_sidecar else None
        wanted = Amounts.of(_requests(pod, container, status))
        if container.is_sidecar:
            running.add(wanted)
            wanted = sidecars.add(wanted)
        else:
            wanted.add(sidecars)
        starting.set_max(wanted)
    return starting


def _requests(pod: Pod, container: Container, status: ContainerStatus | None) -> ResourceList:
    """What a container asks for; while it is resized, the largest of what it has, is promised and wants."""
    if status is None or status.resources is None:
        return container.resources.requests
    pending = next((condition for condition in pod.status.conditions if condition.type == "PodResizePending"), None)
    infeasible = pending is not None and pending.reason == "Infeasible"
    largest: ResourceList = {} if infeasible else dict(container.resources.requests)
    for requests in (status.resources.requests, status.allocated_resources or {}):
        for name, text in requests.items():
            if name not in largest or parse_quantity(largest[name]) < parse_quantity(text):
                largest[name] = text
    return largest


def _add_pod_level_requests(amounts: Amounts, pod: Pod) -> Amounts:
    if amounts.scalars is None:
        amounts.scalars = {}
    level = pod.spec.resources
    if level is not None and has_pod_level_requests(pod):
        whole = Amounts.of(level.requests)
        for name in filter(is_pod_level, level.requests):
            _set_amount(amounts, name, whole.get(name))
    if pod.spec.overhead:
        amounts.add(Amounts.of(pod.spec.overhead))
    return amounts


def _set_amount(amounts: Amounts, name: str, amount: float) -> None:
    if name == "cpu":
        amounts.milli_cpu = amount
    elif name == "memory":
        amounts.memory = amount
    else:
        amounts.set_scalar(name, amount)
