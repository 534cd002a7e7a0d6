"""Who has to go, who counts more than whom, and whom does a disruption budget cover?

The words that both ways of trying out a preemption share: row by row (`preemption`) and rows side by side
(`preemption_batch`).
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
    """Who has to go from one node, the most important first, and how many of them against a disruption budget."""

    pods: tuple[Pod, ...]
    violations: int = 0


def no_victims_status(node_name: str) -> Status:
    """A node was offered for preemption without anybody to preempt."""
    return error(f"expected at least one victim pod on node {quote(node_name)}")


# importance and budgets


def more_important(now: datetime) -> MoreImportant:
    """Priority first, then who started earlier. A pod that has not started yet counts as starting now.

    Of two that have not started the one asked about is the earlier, whichever that is: kube-scheduler reads the clock
    for it first. Equal pods without start time are therefore reversed by an insertion sort.
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
    """A disruption budget, compiled."""

    namespace: str
    matcher: LabelMatcher
    allowed: int
    disrupted: frozenset[str]  # names of pods that were counted already

    def covers(self, pod: Pod) -> bool:
        return pod.name not in self.disrupted and self.selects(pod.namespace, pod.labels)

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it covers pods of this kind, those aside that were counted already."""
        return self.namespace == namespace and bool(labels) and self.matcher.matches(labels)


def compile_budgets(items: Iterable[PodDisruptionBudget]) -> tuple[CompiledBudget, ...]:
    """The budgets that can cover a pod: one with an empty, missing or malformed selector covers none."""
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
    """Those whose going violates a budget, and the others, if all went in this order."""
    violating: list[PodInfo] = []
    others: list[PodInfo] = []
    left = [budget.allowed for budget in budgets]
    for info in pods:
        violates = False
        for number, budget in enumerate(budgets):
            if budget.covers(info.pod):
                left[number] -= 1
                violates |= left[number] < 0
        (violating if violates else others).append(info)
    return violating, others
