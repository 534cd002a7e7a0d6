"""Preemption for a whole pod group: finds victims anywhere in the cluster so that enough pods of the group fit.

Called with the feature gate WorkloadAwarePreemption after a trial of the group that found too few nodes. All units of
lower priority are removed from the cache, the group is tried, and then the units are restored one by one, the most
important first, as long as the group still fits. A group with disruption mode PodGroup is one unit. Everything is
restored in the end; the result is eviction intents. Cost: one trial of the group for each unit of lower priority, and
one more. Between slices and during extender calls other tasks run, with the cache restored.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from bayplan.clock import LoopClock
from bayplan.codec.go_text import quote
from bayplan.framework.api.status import SUCCESS, Status, error, unresolvable, unschedulable
from bayplan.framework.preemption.dry_run import EvictVictim
from bayplan.framework.preemption.victims import CompiledBudget, compile_budgets
from bayplan.objects.workloads import PodDisruptionBudget, PodGroup
from bayplan.queue import QueuedPodInfo
from bayplan.scheduler.cycle.http_extender import ExtenderCall, ExtenderReply
from bayplan.scheduler.cycle.scheduling_cycle import CallExtender
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.pod_groups.group_attempts import GroupAttempts
from bayplan.snapshot import PodInfo, Snapshot

PREEMPTION_PLUGIN = "DefaultPreemption"
DISRUPTION_MODE_POD_GROUP = "PodGroup"
NOT_REGISTERED = "default preemption plugin is not registered, workload aware preemption is disabled"
CONSTRAINED_GROUP_UNSUPPORTED = "workload aware preemption is not supported for pod groups with scheduling constraints"
PREEMPTION_POLICY_NEVER = "not eligible due to preemptionPolicy=Never."
NO_VICTIMS = "No preemption victims found for incoming preemptor"

_SLICE_S = 0.05
"""How long the search runs before it yields to the event loop. Restoring and removing all units costs a part of it."""

GroupPreemptionResult = tuple[Status, Sequence[EvictVictim]]


@dataclass(slots=True)
class VictimUnit:
    """Pods that are evicted together: one pod, or a group that is disrupted as a whole."""

    pods: list[PodInfo]
    priority: int
    started: datetime

    @property
    def uids(self) -> list[str]:
        return [info.uid for info in self.pods]

    @property
    def importance(self) -> tuple[int, bool, int, datetime]:
        """Sort key, most important first. At equal priority a pod of any group counts more than a pod without one."""
        in_group = self.pods[0].pod.spec.scheduling_group is not None
        return -self.priority, not in_group, -len(self.pods), self.started


@dataclass(slots=True)
class GroupPreemption:
    """Finds victims for whole groups."""

    groups: GroupAttempts
    engine: PodEngine
    clock: LoopClock
    slice_s: float = _SLICE_S
    _removed: dict[str, VictimUnit] = field(default_factory=dict)
    """Units that the current trial has removed from the cache, by the uid of their first pod."""

    def __post_init__(self) -> None:
        if self.groups.call_extender is not None:
            self.groups = replace(self.groups, call_extender=partial(self._call_extender, self.groups.call_extender))

    async def victims(self, group: PodGroup | None, members: Sequence[QueuedPodInfo]) -> GroupPreemptionResult:
        """The evictions that make the group fit, or why there are none. Success without evictions: preemption is
        running."""
        profile = self.engine.framework(members[0].pod.scheduler_name).profile
        if all(plugin.name != PREEMPTION_PLUGIN for plugin in profile.instances.values()):
            return unschedulable(NOT_REGISTERED), ()
        if group is None:
            scheduling_group = members[0].pod.spec.scheduling_group
            name = (scheduling_group.pod_group_name if scheduling_group is not None else None) or ""
            return error(f"failed to get pod group object: podgroup.scheduling.k8s.io {quote(name)} not found"), ()
        if group.spec.scheduling_constraints is not None and group.spec.scheduling_constraints.topology:
            return unschedulable(CONSTRAINED_GROUP_UNSUPPORTED), ()
        if any(queued.pod.spec.preemption_policy == "Never" for queued in members):
            return unschedulable(PREEMPTION_POLICY_NEVER), ()
        refused = self.engine.nominator.refused
        weaker = [
            unit
            for unit in self._units(self.engine.snapshot())
            if unit.priority < priority_of(group) and not any(uid in refused for uid in unit.uids)
        ]
        if not weaker:
            return unresolvable(NO_VICTIMS), ()
        found = await self._required_units(members, weaker)
        if isinstance(found, Status):
            return found, ()
        return SUCCESS, self._evictions(group, members, found)

    def _units(self, snapshot: Snapshot) -> Iterable[VictimUnit]:
        """All units in the cluster, in node order."""
        units: dict[str, VictimUnit] = {}
        groups, now = snapshot.catalog.pod_groups, self.clock.now()
        for row in snapshot.order.tolist():
            for info in snapshot.nodes.pods[row]:
                whole = _victim_unit_of(info, groups.get)
                key = info.uid if whole is None else whole.metadata.uid
                if whole is not None and key in units:
                    # The start time is that of the pod found first: kube-scheduler ignores the rest, too.
                    units[key].pods.append(info)
                    continue
                priority = info.priority if whole is None else priority_of(whole)
                units[key] = VictimUnit([info], priority, info.pod.status.start_time or now)
        return units.values()

    async def _required_units(
        self, members: Sequence[QueuedPodInfo], weaker: Sequence[VictimUnit]
    ) -> list[VictimUnit] | Status:
        """The units that have to be evicted for the group to fit, the most important first."""
        cache, leaving = self.engine.cache, self.engine.nominator.terminating_victims
        removed = self._removed = {unit.pods[0].uid: unit for unit in weaker}
        try:
            self._remove_units()
            status = await self._members_fit(members)
            if not status.ok:
                return status
            ends_s = self.clock.monotonic_s() + self.slice_s
            budgets = compile_budgets(cache.catalog.table(PodDisruptionBudget).values())
            for unit in _reprieve_order(weaker, budgets):
                if all(uid in leaving for uid in unit.uids):
                    continue  # its eviction was accepted before
                cache.restore_removed(unit.uids)
                del removed[unit.pods[0].uid]
                if not (await self._members_fit(members)).ok:
                    cache.remove_temporarily(unit.uids)
                    removed[unit.pods[0].uid] = unit
                if self.clock.monotonic_s() > ends_s:
                    with self._cache_restored():
                        await self.clock.sleep(0.0)
                    ends_s = self.clock.monotonic_s() + self.slice_s
        finally:
            self._restore_units()
        return sorted(removed.values(), key=lambda unit: unit.importance)

    def _remove_units(self) -> None:
        for unit in self._removed.values():
            self.engine.cache.remove_temporarily(unit.uids)

    def _restore_units(self) -> None:
        for unit in self._removed.values():
            self.engine.cache.restore_removed(unit.uids)

    @contextmanager
    def _cache_restored(self) -> Iterator[None]:
        """Restore the cache while other tasks run."""
        self._restore_units()
        try:
            yield
        finally:
            self._remove_units()

    async def _call_extender(self, call_extender: CallExtender, call: ExtenderCall) -> ExtenderReply:
        with self._cache_restored():
            return await call_extender(call)

    async def _members_fit(self, members: Sequence[QueuedPodInfo]) -> Status:
        with self.engine.dry_run():
            return (await self.groups.try_members(members)).status

    def _evictions(
        self, group: PodGroup, members: Sequence[QueuedPodInfo], units: Sequence[VictimUnit]
    ) -> list[EvictVictim]:
        leaving: Container[str] = self.engine.nominator.terminating_victims
        pods = [info.pod for unit in units for info in unit.pods]
        staying = [pod for pod in pods if not pod.terminating and pod.uid not in leaving]
        return [
            EvictVictim(
                pod, pod.spec.node_name, members[0].pod, PREEMPTION_PLUGIN, is_last=place == len(staying), group=group
            )
            for place, pod in enumerate(staying, 1)
        ]


def priority_of(group: PodGroup) -> int:
    return group.spec.priority or 0


def _victim_unit_of(info: PodInfo, find: Callable[[str], PodGroup | None]) -> PodGroup | None:
    """The pod's group, if its disruption mode is PodGroup: such a group is evicted as a whole."""
    named = info.pod.spec.scheduling_group
    if named is None:
        return None
    group = find(f"{info.pod.namespace}/{named.pod_group_name}")
    return group if group is not None and group.spec.disruption_mode == DISRUPTION_MODE_POD_GROUP else None


def _reprieve_order(units: Iterable[VictimUnit], budgets: Sequence[CompiledBudget]) -> list[VictimUnit]:
    """Units whose eviction violates a disruption budget come first; within both parts the most important first."""
    violating: list[VictimUnit] = []
    compliant: list[VictimUnit] = []
    left = [budget.allowed for budget in budgets]
    for unit in sorted(units, key=lambda unit: unit.importance):
        violates = any(_violates(info, budgets, left) for info in unit.pods)
        (violating if violates else compliant).append(unit)
    return violating + compliant


def _violates(info: PodInfo, budgets: Sequence[CompiledBudget], left: list[int]) -> bool:
    """Whether a budget is exhausted. Later budgets, and those of the unit's later pods, are not charged then."""
    for number, budget in enumerate(budgets):
        if budget.covers(info.pod):
            left[number] -= 1
            if left[number] < 0:
                return True
    return False
