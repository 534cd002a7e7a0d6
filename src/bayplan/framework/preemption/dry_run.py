"""Dry run of preemption: the victims on each candidate node, and the choice of the cheapest node.

Called by a PostFilter plugin for a pod that fits no node. All steps work on forks and on clones of the cycle, so the
snapshot does not change; a decision results in intents. The profile's own filters evaluate every candidate node, once
without any lower-priority pod and once more for each pod that is reprieved. The search ends at `max_candidates`
candidates. Cost: that of `batch_dry_run`, which tries rows at once, if pods affect their own row only. Otherwise
(topology spread and inter-pod affinity also count pods of other nodes) one fork and (lower-priority pods + 1) filter
runs for each evaluated node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from bayplan.codec.field_errors import aggregate
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
from bayplan.objects.workloads import PodGroup
from bayplan.snapshot import NodeColumns, PodInfo, Snapshot
from bayplan.snapshot.preemption_columns import PreemptionColumns

PREEMPTION_NOT_HELPFUL = "Preemption is not helpful for scheduling"
DISRUPTION_TARGET = "DisruptionTarget"
PREEMPTION_BY_SCHEDULER = "PreemptionByScheduler"
CLUSTER_DOMAIN = "cluster"

_PRIORITY_OFFSET = 1 << 31
"""Makes every priority positive, so that more victims always weigh more than fewer of the same priority."""

_MIN_BATCH_ROWS = 16
"""Fewer rows than this are not faster when tried at once."""


@dataclass(slots=True)
class PreemptionSearchResult:
    """Result of a search: victims by node, and the status of every other evaluated node."""

    candidates: dict[str, Victims] = field(default_factory=dict)
    statuses: dict[int, Status] = field(default_factory=dict)

    @property
    def errors(self) -> str:
        """The errors of all nodes as one text, or an empty string. They matter only without a candidate."""
        texts = [status.message for status in self.statuses.values() if status.code is Code.ERROR]
        return aggregate(texts) if texts else ""

    def sentence(self, names: list[str]) -> str:
        """Return why no node helps, in the format of the FailedScheduling message."""
        diagnosis = Diagnosis(names)
        diagnosis.absent = unresolvable(PREEMPTION_NOT_HELPFUL)
        diagnosis.overrides = self.statuses
        return diagnosis.sentence()


@dataclass(frozen=True, slots=True)
class EvictVictim:
    """Evict one victim.

    The writer rejects a victim that waits at Permit, and cancels one in PreBind. Neither needs the API server. For any
    other victim it patches `condition` into the status (unless `has_disruption_condition`), then deletes the pod. Not
    found ends either step without an event. Afterwards it records the event on the victim, related to the preemptor.

    `is_last`: executed only after all other evictions, and skipped if one of them failed. `group`: the pod group that
    preempts, if it is a whole group; `preemptor` is then one of its pods.
    """

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
        old, new = _disruption_condition(self.victim), self.condition
        return old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message)

    @property
    def cancel_message(self) -> str:
        """The message with which a victim in PreBind is cancelled."""
        return f"preempted by {self.plugin}"

    def note(self, *, in_memory: bool) -> str:
        uid, where = self.preemptor.uid, self.node_name
        if self.group is not None:
            uid, where = self.group.metadata.uid, CLUSTER_DOMAIN
        text = f"Preempted by {self.preemptor_text} {uid} on node {where}"
        return f"{text} (in kube-scheduler memory)." if in_memory else text


@dataclass(frozen=True, slots=True)
class ClearNomination:
    """Remove `nominatedNodeName` from the status of a lower-priority pod: the preemptor takes the node."""

    pod: Pod


def victim_evictions(
    preemptor: Pod, node_name: str, victims: Victims, plugin: str, terminating: Container[str] = ()
) -> tuple[EvictVictim, ...]:
    """Return one intent for each victim that is not terminating. `terminating`: uids of victims evicted before."""
    staying = [pod for pod in victims.pods if not pod.terminating and pod.uid not in terminating]
    return tuple(
        EvictVictim(pod, node_name, preemptor, plugin, is_last=position == len(staying))
        for position, pod in enumerate(staying, 1)
    )


def nominations_to_clear(preemptor: Pod, nominated: Iterable[PodInfo]) -> tuple[ClearNomination, ...]:
    """Return intents for the lower-priority pods nominated to the node whose status still shows it."""
    return tuple(
        ClearNomination(info.pod)
        for info in nominated
        if info.priority < preemptor.priority and info.pod.status.nominated_node_name
    )


def is_terminating_by_preemption(pod: Pod) -> bool:
    condition = _disruption_condition(pod) if pod.terminating else None
    return condition is not None and (condition.status, condition.reason) == ("True", PREEMPTION_BY_SCHEDULER)


def _disruption_condition(pod: Pod) -> Condition | None:
    return next((condition for condition in pod.status.conditions if condition.type == DISRUPTION_TARGET), None)


class DryRun:
    """One pod's search for victims."""

    def __init__(
        self,
        cycle: Cycle,
        filters: FilterRunner,
        budgets: Sequence[CompiledBudget],
        now: datetime,
        weights: PreemptionColumns | None = None,
        terminating_victims_on: Callable[[str], Container[str]] = lambda _: (),
        refused_on: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """`weights`: columns that already follow the snapshot, so that pods are not read again.

        `terminating_victims_on`: by node the uids of pods that were evicted for another preemptor: they are victims
        already. `refused_on`: by node the uids of pods that cannot be deleted now.
        """
        self._cycle = cycle
        self._filters = filters
        self._budgets = budgets
        self._now = now
        self._less = more_important(now)
        self._weights = weights or PreemptionColumns()
        self._victims_on = terminating_victims_on
        self._refused_on = refused_on

    def search(self, rows: Sequence[int], *, max_candidates: int, offset: int) -> PreemptionSearchResult:
        """Evaluate rows from `offset` on, with wrap-around, until there are enough candidates.

        Enough: `max_candidates`, at least one of which violates no budget.
        """
        found = PreemptionSearchResult()
        without_violations: dict[str, Victims] = {}
        with_violations: dict[str, Victims] = {}
        names = self._cycle.snapshot.nodes.names
        for row, outcome in self._run([*rows[offset:], *rows[:offset]], max_candidates):
            if isinstance(outcome, Status):
                found.statuses[row] = outcome
                continue
            group = with_violations if outcome.violations else without_violations
            if len(group) < max_candidates:
                group[names[row]] = outcome
            if without_violations and len(without_violations) + len(with_violations) >= max_candidates:
                break
        found.candidates = without_violations | with_violations
        return found

    def _run(self, rows: Sequence[int], max_candidates: int) -> Iterator[tuple[int, Victims | Status]]:
        """Yield the result of each row in order. Where possible, as many rows as probably needed are tried at once."""
        if not self._filters.is_row_local(self._cycle):
            yield from ((row, self.victims_on(row)) for row in rows)
            return
        batch = BatchDryRun(self._cycle, self._filters, self._budgets, self._now, self._weights)
        done = found = 0
        batch_size = max_candidates * len(rows) // max(batch.without_nominated_pods(rows), 1)
        while done < len(rows):
            needed = max(max_candidates - found, _MIN_BATCH_ROWS)
            tried = batch.run(rows[done : done + min(max(batch_size, _MIN_BATCH_ROWS), MAX_BATCH_ROWS)], needed)
            for row, outcome in tried:
                name = self._cycle.snapshot.nodes.names[row]
                if outcome is None or self._victims_on(name) or self._refused_on(name):
                    outcome = self.victims_on(row)
                found += isinstance(outcome, Victims)
                yield row, outcome
            done += len(tried)
            batch_size = needed * done // found if found else len(rows)

    def victims_on(self, row: int) -> Victims | Status:
        """Return the victims on one node, or the status if evictions do not help."""
        nodes = self._cycle.snapshot.nodes
        lower_priority = [info for info in nodes.pods[row] if info.priority < self._cycle.info.priority]
        if refused := self._refused_on(nodes.names[row]):
            lower_priority = [info for info in lower_priority if info.uid not in refused]
        if not lower_priority:
            return unresolvable(NO_VICTIMS)
        trial, fork = self._cycle.clone(), nodes.fork([row])
        for info in lower_priority:
            status = self._filters.remove_pod(trial, fork, info)
            if not status.ok:
                return status
        status = self._filters.filter_fork(trial, fork)
        if not status.ok:
            return status
        go_sort(lower_priority, self._less)
        terminating = self._victims_on(nodes.names[row])
        found = self._reprieve_all(trial, fork, [info for info in lower_priority if info.uid not in terminating])
        if isinstance(found, Victims) and terminating:
            evicted = {info.uid for info in lower_priority if info.uid in terminating} | {pod.uid for pod in found.pods}
            found = Victims(tuple(info.pod for info in lower_priority if info.uid in evicted), found.violations)
        if isinstance(found, Victims) and not found.pods:
            return no_victims_status(nodes.names[row])
        return found

    def _reprieve_all(self, trial: Cycle, fork: NodeColumns, lower_priority: list[PodInfo]) -> Victims | Status:
        """Reprieve as many pods as possible, first those whose eviction violates a budget."""
        with_violations, remaining = split_by_budget_violation(lower_priority, self._budgets)
        first = self._reprieve(trial, fork, with_violations)
        if isinstance(first, Status):
            return first
        second = self._reprieve(trial, fork, remaining)
        if isinstance(second, Status):
            return second
        victims = first + second
        if with_violations and remaining:
            go_sort(victims, self._less)
        return Victims(tuple(info.pod for info in victims), len(first))

    def _reprieve(self, trial: Cycle, fork: NodeColumns, pods: Iterable[PodInfo]) -> list[PodInfo] | Status:
        """Add pods back one by one while the preemptor still fits. Returns the pods that do not fit."""
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
    """Return the rows on which removing pods may help, in the order in which nodes are visited."""
    helpful = diagnosis.rows_with(Code.UNSCHEDULABLE)
    rows: list[int] = snapshot.order[helpful[snapshot.order]].tolist()
    return rows


def candidate_count(nodes: int, *, percentage: int, absolute: int) -> int:
    """Number of candidates that ends the search: the larger of a percentage and a number, at most all nodes."""
    return min(max(nodes * percentage // 100, absolute), nodes)


def pick_one_node(candidates: Mapping[str, Victims], snapshot: Snapshot, now: datetime) -> str:
    """Return the node to preempt on. Of equal nodes the first in the visiting order; kube-scheduler takes any.

    The criteria in this order: violated budgets; the priority of the first victim; the sum of priorities; the number of
    victims; the longest running time among the victims with the highest priority. Each decides among equals.
    """
    remaining = list(candidates.items())
    for cost in (_violations, _first_priority, _priority_sum, _count):
        remaining = _keep_cheapest(remaining, cost)
    remaining = _keep_cheapest(remaining, lambda victims: _age(victims, now))
    if len(remaining) == 1:
        return remaining[0][0]
    index, names = snapshot.nodes.index, snapshot.nodes.names
    tied = np.zeros(len(snapshot), dtype=np.bool_)
    tied[[index[name] for name, _ in remaining]] = True
    first: int = snapshot.order[tied[snapshot.order]].tolist()[0]
    return names[first]


def _keep_cheapest(remaining: list[tuple[str, Victims]], cost: Callable[[Victims], Any]) -> list[tuple[str, Victims]]:
    if len(remaining) == 1:
        return remaining
    costs = [cost(victims) for _, victims in remaining]
    least = min(costs)
    return [each for each, own_cost in zip(remaining, costs, strict=True) if own_cost == least]


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
