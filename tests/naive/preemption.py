"""Naive twin of preemption: lists of API objects, and CPU, memory and pod slots as the only filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from bayplan.codec.quantity import parse_quantity
from bayplan.objects.core import Node, Pod
from bayplan.objects.workloads import PodDisruptionBudget

Outcome = tuple[list[Pod], int]
"""Victims, the most important first, and how many of them violate a disruption budget."""


def fits(pod: Pod, node: Node, others: Sequence[Pod]) -> bool:
    everybody = [pod, *others]
    if len(everybody) > int(node.status.allocatable["pods"]):
        return False
    return all(
        asked(pod, resource) == 0
        or sum(asked(one, resource) for one in everybody) <= millis(node.status.allocatable[resource])
        for resource in ("cpu", "memory")
    )


def asked(pod: Pod, resource: str) -> int:
    return sum(millis(container.resources.requests.get(resource, 0)) for container in pod.spec.containers)


def millis(quantity: str | int | float) -> int:
    return parse_quantity(quantity).milli_value()


def is_more_important(one: Pod, other: Pod, now: datetime) -> bool:
    if one.priority != other.priority:
        return one.priority > other.priority
    if one.status.start_time is None and other.status.start_time is None:
        return True
    return (one.status.start_time or now) < (other.status.start_time or now)


def by_importance(pods: Iterable[Pod], now: datetime) -> list[Pod]:
    """Insertion sort by importance; correct for up to twelve pods."""
    ordered: list[Pod] = []
    for pod in pods:
        place = len(ordered)
        while place > 0 and is_more_important(pod, ordered[place - 1], now):
            place -= 1
        ordered.insert(place, pod)
    return ordered


def violators(pods: Iterable[Pod], budgets: Sequence[PodDisruptionBudget]) -> list[Pod]:
    """Pods whose eviction violates a disruption budget. Budgets here select by labels only."""
    taken = dict.fromkeys((budget.name for budget in budgets), 0)
    found = []
    for pod in pods:
        for budget in budgets:
            wanted = budget.spec.selector.match_labels if budget.spec.selector else {}
            covered = bool(wanted) and wanted.items() <= pod.labels.items() and budget.namespace == pod.namespace
            if covered and pod.name not in budget.status.disrupted_pods:
                taken[budget.name] += 1
                if taken[budget.name] > budget.status.disruptions_allowed and pod not in found:
                    found.append(pod)
    return found


def victims_on(
    pod: Pod, node: Node, there: Sequence[Pod], budgets: Sequence[PodDisruptionBudget], now: datetime
) -> Outcome | None:
    """The victims on one node; None if their eviction does not help, or no pod can be evicted."""
    staying = [one for one in there if one.priority >= pod.priority]
    weaker = by_importance([one for one in there if one.priority < pod.priority], now)
    if not weaker or not fits(pod, node, staying):
        return None
    against = violators(weaker, budgets)
    free = [one for one in weaker if one not in against]
    victims = []
    for one in against + free:
        if fits(pod, node, [*staying, one]):
            staying.append(one)
        else:
            victims.append(one)
    if against and free:
        victims = by_importance(victims, now)
    return victims, sum(one in against for one in victims)


def best_node(found: dict[str, Outcome], now: datetime) -> str:
    """One criterion after another among the candidates that are still equal; then the first."""
    left = list(found)
    for criterion in (_violations, _first_priority, _sum, _count, _age):
        costs = {name: criterion(found[name], now) for name in left}
        left = [name for name in left if costs[name] == min(costs.values())]
    return left[0]


def _violations(outcome: Outcome, now: datetime) -> float:  # noqa: ARG001
    return outcome[1]


def _first_priority(outcome: Outcome, now: datetime) -> float:  # noqa: ARG001
    return outcome[0][0].priority


def _sum(outcome: Outcome, now: datetime) -> float:  # noqa: ARG001
    return sum(pod.priority + 2**31 for pod in outcome[0])


def _count(outcome: Outcome, now: datetime) -> float:  # noqa: ARG001
    return len(outcome[0])


def _age(outcome: Outcome, now: datetime) -> float:
    """The earliest start time among the victims of the highest priority, as an age."""
    highest = max(pod.priority for pod in outcome[0])
    return max((now - (pod.status.start_time or now)).total_seconds() for pod in outcome[0] if pod.priority == highest)
