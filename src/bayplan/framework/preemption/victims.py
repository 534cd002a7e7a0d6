"""Victims, pod importance and disruption budgets.

Shared by both dry runs of preemption: row by row (`dry_run`) and many rows at once (`batch_dry_run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bayplan.codec.go_text import quote
from bayplan.framework.api.status import Status, error
from bayplan.objects.core import Pod
from bayplan.objects.selectors.label_selectors import LabelMatcher, SelectorError, compile_label_selector
from bayplan.objects.workloads import PodDisruptionBudget
from bayplan.snapshot import PodInfo

NO_VICTIMS = "No preemption victims found for incoming pod"

MoreImportant = Callable[[PodInfo, PodInfo], bool]


@dataclass(frozen=True, slots=True)
class Victims:
    """The victims on one node, the most important first, and how many of them violate a disruption budget."""

    pods: tuple[Pod, ...]
    violations: int = 0


def no_victims_status(node_name: str) -> Status:
    return error(f"expected at least one victim pod on node {quote(node_name)}")


def more_important(now: datetime) -> MoreImportant:
    """Return a comparison by priority, then by start time. A pod that has not started counts as starting now.

    Of two pods that have not started, the first argument is the earlier one: kube-scheduler reads the clock for it
    first. An insertion sort therefore reverses equal pods without start time.
    """

    def less(one: PodInfo, other: PodInfo) -> bool:
        if one.priority != other.priority:
            return one.priority > other.priority
        started, other_started = one.pod.status.start_time, other.pod.status.start_time
        if started is None:
            return other_started is None or now < other_started
        return started < (now if other_started is None else other_started)

    return less


@dataclass(frozen=True, slots=True)
class CompiledBudget:
    namespace: str
    matcher: LabelMatcher
    allowed: int
    disrupted: frozenset[str]  # names of pods that are counted already

    def covers(self, pod: Pod) -> bool:
        return pod.name not in self.disrupted and self.selects(pod.namespace, pod.labels)

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the budget covers pods with these labels, apart from pods that are counted already."""
        return self.namespace == namespace and bool(labels) and self.matcher.matches(labels)


def compile_budgets(items: Iterable[PodDisruptionBudget]) -> tuple[CompiledBudget, ...]:
    """Compile the budgets that can cover a pod. An empty, missing or malformed selector covers none."""
    found = []
    for item in items:
        try:
            matcher = compile_label_selector(item.spec.selector)
        except SelectorError:
            continue
        if not (matcher.everything or matcher.nothing):
            status = item.status
            found.append(
                CompiledBudget(item.namespace, matcher, status.disruptions_allowed, frozenset(status.disrupted_pods))
            )
    return tuple(found)


def split_by_budget_violation(
    pods: Iterable[PodInfo], budgets: Sequence[CompiledBudget]
) -> tuple[list[PodInfo], list[PodInfo]]:
    """Split into pods whose eviction violates a budget, and the rest, if all are evicted in this order."""
    violating: list[PodInfo] = []
    remaining: list[PodInfo] = []
    allowed = [budget.allowed for budget in budgets]
    for info in pods:
        violates = False
        for number, budget in enumerate(budgets):
            if budget.covers(info.pod):
                allowed[number] -= 1
                violates |= allowed[number] < 0
        (violating if violates else remaining).append(info)
    return violating, remaining
