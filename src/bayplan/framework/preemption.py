"""Whom would a pod have to push out, on which nodes, and which of these nodes costs least?

Asked by a PostFilter for a pod that fits nowhere. Everything is tried on a fork of one row and a clone of the cycle,
so the snapshot stays as it is and nothing is done: what follows from a decision are intents. The node of every
candidate is judged by the profile's own filters, once without any weaker pod and once more for each weaker pod that
is put back. Cost: a fork and (weaker pods + 1) filter runs for each node looked at; the search ends at `wanted`
candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from bayplan.framework.cycle import Cycle
from bayplan.framework.diagnosis import Diagnosis
from bayplan.framework.go_sort import go_sort
from bayplan.framework.handle import Filters
from bayplan.framework.status import Code, Status, error, unresolvable
from bayplan.objects.core import Pod
from bayplan.objects.go_text import quote
from bayplan.objects.meta import Condition
from bayplan.objects.selectors import LabelMatcher, SelectorError, compile_label_selector, joined
from bayplan.objects.workloads import PodDisruptionBudget
from bayplan.snapshot import NodeColumns, PodInfo, Snapshot

NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
DISRUPTION_TARGET = "DisruptionTarget"
PREEMPTION_BY_SCHEDULER = "PreemptionByScheduler"

_PRIORITY_LIFT = 1 << 31
"""Lifts every priority above zero, so that more victims always weigh more than fewer of the same priority."""

MoreImportant = Callable[[PodInfo, PodInfo], bool]


# values


@dataclass(frozen=True, slots=True)
class Victims:
    """Who has to go from one node, the most important first, and how many of them against a disruption budget."""

    pods: tuple[Pod, ...]
    violations: int = 0


@dataclass(slots=True)
class Findings:
    """What a search found: victims by node, and for the other nodes looked at why they do not help."""

    candidates: dict[str, Victims] = field(default_factory=dict)
    statuses: dict[int, Status] = field(default_factory=dict)

    @property
    def faults(self) -> str:
        """The errors of all nodes as one text, empty without any. They count only where there is no candidate."""
        texts = [status.message for status in self.statuses.values() if status.code is Code.ERROR]
        return joined(texts) if texts else ""

    def sentence(self, names: list[str]) -> str:
        """Why no node helps, in the words of any other pod that fits nowhere."""
        diagnosis = Diagnosis(names)
        diagnosis.absent = unresolvable(NOT_HELPFUL)
        diagnosis.overrides = self.statuses
        return diagnosis.sentence()


# intents


@dataclass(frozen=True, slots=True)
class EvictVictim:
    """Make one victim go.

    Performing it: a victim that waits at Permit is rejected there, one in PreBind is cancelled; neither needs the API.
    For any other patch `condition` into its status (unless `already_told`), then delete it; not found is fine at either
    step and ends it without an event. Afterwards the event is recorded on the victim, related to the preemptor.

    `last`: to be done only when every other one is done, and left alone if one of them failed.
    """

    event_type: ClassVar[str] = "Normal"
    event_reason: ClassVar[str] = "Preempted"
    event_action: ClassVar[str] = "Preempting"
    waiting_message: ClassVar[str] = "preempted"

    victim: Pod
    node_name: str
    preemptor: Pod
    plugin: str
    last: bool = False

    @property
    def condition(self) -> Condition:
        return Condition(
            type=DISRUPTION_TARGET,
            status="True",
            reason=PREEMPTION_BY_SCHEDULER,
            message=f"{self.preemptor.scheduler_name}: preempting to accommodate a higher priority pod",
            observed_generation=self.victim.metadata.generation,
        )

    @property
    def already_told(self) -> bool:
        """Whether the victim's status says all of it."""
        old, new = _disruption(self.victim), self.condition
        return old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message)

    @property
    def cancel_message(self) -> str:
        """What a victim in PreBind is cancelled with."""
        return f"preempted by {self.plugin}"

    def note(self, *, in_memory: bool) -> str:
        """The event's text."""
        text = f"Preempted by pod {self.preemptor.uid} on node {self.node_name}"
        return f"{text} (in kube-scheduler memory)." if in_memory else text


@dataclass(frozen=True, slots=True)
class ClearNomination:
    """Patch `nominatedNodeName` away: the room that this weaker pod waits for is somebody else's now."""

    pod: Pod


def evictions(preemptor: Pod, node_name: str, victims: Victims, plugin: str) -> tuple[EvictVictim, ...]:
    """One intent for each victim that is not going already."""
    staying = [pod for pod in victims.pods if not pod.terminating]
    return tuple(
        EvictVictim(pod, node_name, preemptor, plugin, last=position == len(staying))
        for position, pod in enumerate(staying, 1)
    )


def cleared_nominations(preemptor: Pod, nominated: Iterable[PodInfo]) -> tuple[ClearNomination, ...]:
    """Of the pods nominated to the node those that are weaker and whose status still says so."""
    return tuple(
        ClearNomination(info.pod)
        for info in nominated
        if info.priority < preemptor.priority and info.pod.status.nominated_node_name
    )


def leaves_by_preemption(pod: Pod) -> bool:
    """Whether the pod is terminating because a scheduler preempted it."""
    told = _disruption(pod) if pod.terminating else None
    return told is not None and (told.status, told.reason) == ("True", PREEMPTION_BY_SCHEDULER)


def _disruption(pod: Pod) -> Condition | None:
    return next((told for told in pod.status.conditions if told.type == DISRUPTION_TARGET), None)


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
class Budget:
    """A disruption budget, compiled."""

    namespace: str
    matcher: LabelMatcher
    allowed: int
    disrupted: frozenset[str]  # names of pods that were counted already

    def covers(self, pod: Pod) -> bool:
        return (
            self.namespace == pod.namespace
            and pod.name not in self.disrupted
            and bool(pod.labels)
            and self.matcher.matches(pod.labels)
        )


def budgets_of(items: Iterable[PodDisruptionBudget]) -> tuple[Budget, ...]:
    """The budgets that can cover a pod: one with an empty, missing or malformed selector covers none."""
    found = []
    for item in items:
        try:
            matcher = compile_label_selector(item.spec.selector)
        except SelectorError:
            continue
        if not (matcher.everything or matcher.nothing):
            status = item.status
            found.append(Budget(item.namespace, matcher, status.disruptions_allowed, frozenset(status.disrupted_pods)))
    return tuple(found)


def split_by_budget(pods: Iterable[PodInfo], budgets: Sequence[Budget]) -> tuple[list[PodInfo], list[PodInfo]]:
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


# the dry run


class DryRun:
    """One pod's search for victims."""

    def __init__(self, cycle: Cycle, filters: Filters, budgets: Sequence[Budget], now: datetime) -> None:
        self._cycle = cycle
        self._filters = filters
        self._budgets = budgets
        self._less = more_important(now)

    def search(self, rows: Sequence[int], *, wanted: int, offset: int) -> Findings:
        """Look at rows from `offset` on, round the end, until there are enough candidates.

        Enough: as many as wanted, with at least one among them that violates no budget.
        """
        found = Findings()
        clean: dict[str, Victims] = {}
        violating: dict[str, Victims] = {}
        names = self._cycle.snapshot.nodes.names
        for row in (*rows[offset:], *rows[:offset]):
            outcome = self.victims_on(row)
            if isinstance(outcome, Status):
                found.statuses[row] = outcome
                continue
            group = violating if outcome.violations else clean
            if len(group) < wanted:
                group[names[row]] = outcome
            if clean and len(clean) + len(violating) >= wanted:
                break
        found.candidates = clean | violating
        return found

    def victims_on(self, row: int) -> Victims | Status:
        """Who has to go from one node, or why nobody's going helps."""
        nodes = self._cycle.snapshot.nodes
        weaker = [info for info in nodes.pods[row] if info.priority < self._cycle.info.priority]
        if not weaker:
            return unresolvable(NO_VICTIMS)
        trial, fork = self._cycle.clone(), nodes.fork([row])
        for info in weaker:
            status = self._filters.remove_pod(trial, fork, info)
            if not status.ok:
                return status
        status = self._filters.judge(trial, fork)
        if not status.ok:
            return status
        go_sort(weaker, self._less)
        found = self._reprieve_all(trial, fork, weaker)
        if isinstance(found, Victims) and not found.pods:
            return no_victim(nodes.names[row])
        return found

    def _reprieve_all(self, trial: Cycle, fork: NodeColumns, weaker: list[PodInfo]) -> Victims | Status:
        """Let stay who can, beginning with those whose going violates a budget."""
        violating, others = split_by_budget(weaker, self._budgets)
        first = self._reprieve(trial, fork, violating)
        if isinstance(first, Status):
            return first
        second = self._reprieve(trial, fork, others)
        if isinstance(second, Status):
            return second
        victims = first + second
        if violating and others:
            go_sort(victims, self._less)
        return Victims(tuple(info.pod for info in victims), len(first))

    def _reprieve(self, trial: Cycle, fork: NodeColumns, pods: Iterable[PodInfo]) -> list[PodInfo] | Status:
        """Put pods back one by one as long as there is room; who has none is returned."""
        victims: list[PodInfo] = []
        for info in pods:
            status = self._filters.add_pod(trial, fork, info)
            if not status.ok:
                return status
            if self._filters.judge(trial, fork).ok:
                continue
            status = self._filters.remove_pod(trial, fork, info)
            if not status.ok:
                return status
            victims.append(info)
        return victims


def no_victim(node_name: str) -> Status:
    """A node was offered for preemption without anybody to preempt."""
    return error(f"expected at least one victim pod on node {quote(node_name)}")


def resolvable_rows(diagnosis: Diagnosis, snapshot: Snapshot) -> list[int]:
    """Nodes where removing pods may help, in the order in which nodes are visited."""
    helpful = diagnosis.rows_with(Code.UNSCHEDULABLE)
    rows: list[int] = snapshot.order[helpful[snapshot.order]].tolist()
    return rows


def candidates_wanted(nodes: int, *, percentage: int, absolute: int) -> int:
    """How many candidates end the search: the larger of a share and a number, but never more than nodes."""
    return min(max(nodes * percentage // 100, absolute), nodes)


# choosing


def cheapest(candidates: Mapping[str, Victims], snapshot: Snapshot, now: datetime) -> str:
    """The node to preempt on. Of equals the first in the order of nodes, where kube-scheduler takes any."""
    names = snapshot.nodes.names
    visited: list[int] = snapshot.order.tolist()
    offered = [names[row] for row in visited if names[row] in candidates]
    return min(offered, key=lambda name: _cost(candidates[name], now))


def _cost(victims: Victims, now: datetime) -> tuple[int, int, int, int, timedelta]:
    """What preemption on a node costs; what comes first decides, the rest among equals.

    Budgets violated; the priority of the first victim; priorities together; victims; and how long those of the highest
    priority have been running, the longest of them.
    """
    pods = victims.pods
    highest = max(pod.priority for pod in pods)
    age = max(now - (pod.status.start_time or now) for pod in pods if pod.priority == highest)
    weight = sum(pod.priority + _PRIORITY_LIFT for pod in pods)
    return victims.violations, pods[0].priority, weight, len(pods), age
