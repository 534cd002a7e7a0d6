"""Whom would a pod have to push out, on which nodes, and which of these nodes costs least?

Asked by a PostFilter for a pod that fits nowhere. Everything is tried on forks and clones of the cycle, so the
snapshot stays as it is and nothing is done: what follows from a decision are intents. The node of every candidate is
judged by the profile's own filters, once without any weaker pod and once more for each weaker pod that is put back.
The search ends at `wanted` candidates. Cost: that of `preemption_batch`, which tries rows side by side, where pods
matter to their own row alone; else (spread and affinity count pods elsewhere, too) a fork and (weaker pods + 1) filter
runs for each node looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.handle import FilterRunner
from bayplan.framework.api.status import Code, Status, unresolvable
from bayplan.framework.preemption.batch_dry_run import MAX_BATCH_ROWS, BatchDryRun
from bayplan.framework.preemption.go_sort import go_sort
from bayplan.framework.preemption.victims import (
    NO_VICTIMS,
    CompiledBudget,
    Victims,
    more_important,
    no_victims_status,
    split_by_budget_violation,
)
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition
from bayplan.objects.selectors.label_selectors import joined
from bayplan.objects.workloads import PodGroup
from bayplan.snapshot import NodeColumns, PodInfo, Snapshot
from bayplan.snapshot.preemption_columns import PreemptionColumns

PREEMPTION_NOT_HELPFUL = "Preemption is not helpful for scheduling"
DISRUPTION_TARGET = "DisruptionTarget"
PREEMPTION_BY_SCHEDULER = "PreemptionByScheduler"
CLUSTER_DOMAIN = "cluster"

_PRIORITY_OFFSET = 1 << 31
"""Lifts every priority above zero, so that more victims always weigh more than fewer of the same priority."""

_MIN_BATCH_ROWS = 16
"""To try fewer rows than this at once saves nothing."""

# values


@dataclass(slots=True)
class PreemptionSearchResult:
    """What a search found: victims by node, and for the other nodes looked at why they do not help."""

    candidates: dict[str, Victims] = field(default_factory=dict)
    statuses: dict[int, Status] = field(default_factory=dict)

    @property
    def errors(self) -> str:
        """The errors of all nodes as one text, empty without any. They count only where there is no candidate."""
        texts = [status.message for status in self.statuses.values() if status.code is Code.ERROR]
        return joined(texts) if texts else ""

    def sentence(self, names: list[str]) -> str:
        """Why no node helps, in the words of any other pod that fits nowhere."""
        diagnosis = Diagnosis(names)
        diagnosis.absent = unresolvable(PREEMPTION_NOT_HELPFUL)
        diagnosis.overrides = self.statuses
        return diagnosis.sentence()


# intents


@dataclass(frozen=True, slots=True)
class EvictVictim:
    """Make one victim go.

    Performing it: a victim that waits at Permit is rejected there, one in PreBind is cancelled; neither needs the API.
    For any other patch `condition` into its status (unless `has_disruption_condition`), then delete it; not found is
    fine at either step and ends it without an event. Afterwards the event is recorded on the victim, related to the
    preemptor.

    `is_last`: to be done only when every other one is done, and left alone if one of them failed. `group`: for whose
    sake it is, where that is a whole group; `preemptor` is one of it then."""

    event_type: ClassVar[str] = "Normal"
    event_reason: ClassVar[str] = "Preempted"
    event_action: ClassVar[str] = "Preempting"
    waiting_message: ClassVar[str] = "preempted"

    victim: Pod
    node_name: str
    preemptor: Pod
    plugin: str
    is_last: bool = False
    group: PodGroup | None = None

    @property
    def preemptor_text(self) -> str:
        """What kind of preemptor it is for."""
        return "pod" if self.group is None else "podgroup"

    @property
    def condition(self) -> Condition:
        return Condition(
            type=DISRUPTION_TARGET,
            status="True",
            reason=PREEMPTION_BY_SCHEDULER,
            message=(
                f"{self.preemptor.scheduler_name}: preempting to accommodate a higher priority {self.preemptor_text}"
            ),
            observed_generation=self.victim.metadata.generation,
        )

    @property
    def has_disruption_condition(self) -> bool:
        """Whether the victim's status says all of it."""
        old, new = _disruption_condition(self.victim), self.condition
        return old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message)

    @property
    def cancel_message(self) -> str:
        """What a victim in PreBind is cancelled with."""
        return f"preempted by {self.plugin}"

    def note(self, *, in_memory: bool) -> str:
        """The event's text."""
        uid, where = self.preemptor.uid, self.node_name
        if self.group is not None:
            uid, where = self.group.metadata.uid, CLUSTER_DOMAIN
        text = f"Preempted by {self.preemptor_text} {uid} on node {where}"
        return f"{text} (in kube-scheduler memory)." if in_memory else text


@dataclass(frozen=True, slots=True)
class ClearNomination:
    """Patch `nominatedNodeName` away: the room that this weaker pod waits for is somebody else's now."""

    pod: Pod


def victim_evictions(
    preemptor: Pod, node_name: str, victims: Victims, plugin: str, leaving: Container[str] = ()
) -> tuple[EvictVictim, ...]:
    """One intent for each victim that is not going already; `leaving`: uids of those who were told to before."""
    staying = [pod for pod in victims.pods if not pod.terminating and pod.uid not in leaving]
    return tuple(
        EvictVictim(pod, node_name, preemptor, plugin, is_last=position == len(staying))
        for position, pod in enumerate(staying, 1)
    )


def nominations_to_clear(preemptor: Pod, nominated: Iterable[PodInfo]) -> tuple[ClearNomination, ...]:
    """Of the pods nominated to the node those that are weaker and whose status still says so."""
    return tuple(
        ClearNomination(info.pod)
        for info in nominated
        if info.priority < preemptor.priority and info.pod.status.nominated_node_name
    )


def is_terminating_by_preemption(pod: Pod) -> bool:
    """Whether the pod is terminating because a scheduler preempted it."""
    told = _disruption_condition(pod) if pod.terminating else None
    return told is not None and (told.status, told.reason) == ("True", PREEMPTION_BY_SCHEDULER)


def _disruption_condition(pod: Pod) -> Condition | None:
    return next((told for told in pod.status.conditions if told.type == DISRUPTION_TARGET), None)


# the dry run


class DryRun:
    """One pod's search for victims."""

    def __init__(
        self,
        cycle: Cycle,
        filters: FilterRunner,
        budgets: Sequence[CompiledBudget],
        now: datetime,
        weights: PreemptionColumns | None = None,
        leaving_from: Callable[[str], Container[str]] = lambda _: (),
        refused_on: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """`weights`: columns that followed the same snapshot before, which saves reading pods again. `leaving_from`:
        by node the uids of pods that were told to go for somebody else's sake: they are victims already. `refused_on`:
        by node the uids of pods that cannot be deleted now."""
        self._cycle = cycle
        self._filters = filters
        self._budgets = budgets
        self._now = now
        self._less = more_important(now)
        self._weights = weights or PreemptionColumns()
        self._leaving_from = leaving_from
        self._refused_on = refused_on

    def search(self, rows: Sequence[int], *, wanted: int, offset: int) -> PreemptionSearchResult:
        """Look at rows from `offset` on, round the end, until there are enough candidates.

        Enough: as many as wanted, with at least one among them that violates no budget.
        """
        found = PreemptionSearchResult()
        clean: dict[str, Victims] = {}
        violating: dict[str, Victims] = {}
        names = self._cycle.snapshot.nodes.names
        for row, outcome in self._run([*rows[offset:], *rows[:offset]], wanted):
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

    def _run(self, rows: Sequence[int], wanted: int) -> Iterator[tuple[int, Victims | Status]]:
        """Row by row, in order; tried side by side where that is allowed, as many as are likely needed."""
        if not self._filters.is_row_local(self._cycle):
            yield from ((row, self.victims_on(row)) for row in rows)
            return
        batch = BatchDryRun(self._cycle, self._filters, self._budgets, self._now, self._weights)
        done = found = 0
        likely = wanted * len(rows) // max(batch.without_nominated_pods(rows), 1)
        while done < len(rows):
            missing = max(wanted - found, _MIN_BATCH_ROWS)
            tried = batch.run(rows[done : done + min(max(likely, _MIN_BATCH_ROWS), MAX_BATCH_ROWS)], missing)
            for row, outcome in tried:
                name = self._cycle.snapshot.nodes.names[row]
                if outcome is None or self._leaving_from(name) or self._refused_on(name):
                    outcome = self.victims_on(row)
                found += isinstance(outcome, Victims)
                yield row, outcome
            done += len(tried)
            likely = missing * done // found if found else len(rows)

    def victims_on(self, row: int) -> Victims | Status:
        """Who has to go from one node, or why nobody's going helps."""
        nodes = self._cycle.snapshot.nodes
        weaker = [info for info in nodes.pods[row] if info.priority < self._cycle.info.priority]
        if refused := self._refused_on(nodes.names[row]):
            weaker = [info for info in weaker if info.uid not in refused]
        if not weaker:
            return unresolvable(NO_VICTIMS)
        trial, fork = self._cycle.clone(), nodes.fork([row])
        for info in weaker:
            status = self._filters.remove_pod(trial, fork, info)
            if not status.ok:
                return status
        status = self._filters.filter_fork(trial, fork)
        if not status.ok:
            return status
        go_sort(weaker, self._less)
        leaving = self._leaving_from(nodes.names[row])
        found = self._reprieve_all(trial, fork, [info for info in weaker if info.uid not in leaving])
        if isinstance(found, Victims) and leaving:
            gone = {info.uid for info in weaker if info.uid in leaving} | {pod.uid for pod in found.pods}
            found = Victims(tuple(info.pod for info in weaker if info.uid in gone), found.violations)
        if isinstance(found, Victims) and not found.pods:
            return no_victims_status(nodes.names[row])
        return found

    def _reprieve_all(self, trial: Cycle, fork: NodeColumns, weaker: list[PodInfo]) -> Victims | Status:
        """Let stay who can, beginning with those whose going violates a budget."""
        violating, others = split_by_budget_violation(weaker, self._budgets)
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
            if self._filters.filter_fork(trial, fork).ok:
                continue
            status = self._filters.remove_pod(trial, fork, info)
            if not status.ok:
                return status
            victims.append(info)
        return victims


def resolvable_rows(diagnosis: Diagnosis, snapshot: Snapshot) -> list[int]:
    """Nodes where removing pods may help, in the order in which nodes are visited."""
    helpful = diagnosis.rows_with(Code.UNSCHEDULABLE)
    rows: list[int] = snapshot.order[helpful[snapshot.order]].tolist()
    return rows


def candidate_count(nodes: int, *, percentage: int, absolute: int) -> int:
    """How many candidates end the search: the larger of a share and a number, but never more than nodes."""
    return min(max(nodes * percentage // 100, absolute), nodes)


# choosing


def pick_one_node(candidates: Mapping[str, Victims], snapshot: Snapshot, now: datetime) -> str:
    """The node to preempt on. Of equals the first in the order of nodes, where kube-scheduler takes any.

    Budgets violated; the priority of the first victim; priorities together; victims; and how long those of the highest
    priority have been running, the longest of them: what comes first decides, the rest among equals.
    """
    left = list(candidates.items())
    for cost in (_violations, _first_priority, _priority_sum, _count):
        left = _with_lowest_cost(left, cost)
    left = _with_lowest_cost(left, lambda victims: _age(victims, now))
    if len(left) == 1:
        return left[0][0]
    index, names = snapshot.nodes.index, snapshot.nodes.names
    tied = np.zeros(len(snapshot), dtype=np.bool_)
    tied[[index[name] for name, _ in left]] = True
    first: int = snapshot.order[tied[snapshot.order]].tolist()[0]
    return names[first]


def _with_lowest_cost(left: list[tuple[str, Victims]], cost: Callable[[Victims], Any]) -> list[tuple[str, Victims]]:
    """Those that cost least."""
    if len(left) == 1:
        return left
    costs = [cost(victims) for _, victims in left]
    least = min(costs)
    return [each for each, paid in zip(left, costs, strict=True) if paid == least]


def _violations(victims: Victims) -> int:
    return victims.violations


def _first_priority(victims: Victims) -> int:
    return victims.pods[0].priority


def _priority_sum(victims: Victims) -> int:
    return sum([pod.priority + _PRIORITY_OFFSET for pod in victims.pods])


def _count(victims: Victims) -> int:
    return len(victims.pods)


def _age(victims: Victims, now: datetime) -> timedelta:
    highest = max([pod.priority for pod in victims.pods])
    return max([now - (pod.status.start_time or now) for pod in victims.pods if pod.priority == highest])
