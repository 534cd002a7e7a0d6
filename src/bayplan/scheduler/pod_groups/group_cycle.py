"""Scheduling cycle of a pod group: places its pods after the trial or reports failures, and writes its status.

The run loop calls it for every popped pod that belongs to a group. `GroupAttempts` makes the trial.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from bayplan.api_writes.observer import ERROR, SCHEDULED, UNSCHEDULABLE, SchedulerObserver
from bayplan.clock import LoopClock
from bayplan.framework.api.status import Code, Status, error
from bayplan.objects.workloads import PodGroup
from bayplan.queue import QueuedPodInfo
from bayplan.scheduler.binding.binding_tasks import BindingTasks
from bayplan.scheduler.binding.failure_handler import FailureHandler
from bayplan.scheduler.binding.preemption_executor import PreemptionExecutor, PreemptionTask
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.pod_groups.group_attempts import UNSCHEDULABLE_GROUP, GroupAttemptResult, GroupAttempts, PodTrial
from bayplan.scheduler.pod_groups.group_preemption import GroupPreemption
from bayplan.scheduler.pod_groups.group_statuses import GroupStatuses

log = logging.getLogger(__name__)

WAITING_ON_PREEMPTION = "waiting_on_preemption"
_NO_PLUGINS: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


@dataclass(slots=True)
class PodGroupCycle:
    """Applies the attempts for groups."""

    groups: GroupAttempts
    engine: PodEngine
    failures: FailureHandler
    evictions: PreemptionExecutor
    bindings: BindingTasks
    statuses: GroupStatuses
    clock: LoopClock
    observer: SchedulerObserver
    preemption: GroupPreemption | None = None
    """Preemption for a whole group; None: each pod of the group preempts for itself."""
    status_writes: list[asyncio.Task[None]] = field(default_factory=list)
    """Status writes for the pods of the group that was tried last."""

    _unfinished: dict[str, QueuedPodInfo] = field(default_factory=dict)
    """By uid: pods of the current attempt that have no result yet."""

    async def attempt(self, first: QueuedPodInfo) -> None:
        """Try the pending pods of a group. An exception costs those without a result one attempt."""
        members = self.groups.gather_members(first, self.failures.skip_pod)
        self._unfinished = {queued.uid: queued for queued in members}
        try:
            if members:
                await self._attempt(members)
        except Exception as fault:
            log.exception("a scheduling attempt for the group of pod %s failed", first.key)
            for queued in list(self._unfinished.values()):
                self._fail(queued, error(f"{type(fault).__name__}: {fault}"))

    async def _attempt(self, members: list[QueuedPodInfo]) -> None:
        start_s = self.clock.monotonic_s()
        for queued in members:
            queued.attempt_started_s = start_s
        outcome = await self.groups.try_members(members)
        self.observer.observe_group_decision(self.clock.monotonic_s() - start_s)
        self.status_writes.clear()
        preemption = await self._preempt(members, outcome)
        for each in outcome.trials:
            self._apply_result(each, outcome, preemption)
        for queued in outcome.not_tried:
            self._fail(queued, outcome.status, None if outcome.status.rejected else "", of_group=preemption)
        profile, took_s = members[0].pod.scheduler_name, self.clock.monotonic_s() - start_s
        self.observer.observe_group_attempt(_metric_result(outcome), profile, took_s)
        self._report(members[0], outcome.status, preemption)
        if preemption is not None:
            self.evictions.start(preemption, *self.status_writes)

    async def _preempt(self, members: list[QueuedPodInfo], outcome: GroupAttemptResult) -> PreemptionTask | None:
        """Look for victims for the whole group. If there are some, the outcome is that the pods wait for preemption."""
        if self.preemption is None or outcome.status.code is not Code.UNSCHEDULABLE:
            return None
        group = self._pod_group_of(members[0])
        status, victims = await self.preemption.victims(group, members)
        outcome.waits_for_preemption |= status.ok
        if status.code is Code.ERROR:
            outcome.status = status
        elif not status.ok:
            outcome.status = Status(Code.UNSCHEDULABLE, (*outcome.status.reasons, status.message))
        if group is None or not victims:
            return None
        return self.evictions.prepare_group(group, [queued.pod for queued in members], victims)

    def _apply_result(self, tried: PodTrial, outcome: GroupAttemptResult, preemption: PreemptionTask | None) -> None:
        queued, group = tried.queued, outcome.status
        if group.code is Code.ERROR:
            self._fail(queued, tried.status if tried.status.code is Code.ERROR else group, of_group=preemption)
        elif tried.status.ok and group.ok:
            self._place(tried)
        elif tried.status.ok and outcome.waits_for_preemption:
            self._fail(queued, group, tried.node_name, of_group=preemption)
        elif tried.status.ok or (tried.needs_preemption and not outcome.waits_for_preemption):
            reasons = tuple(filter(None, (UNSCHEDULABLE_GROUP, tried.permit)))
            self._fail(queued, Status(Code.UNSCHEDULABLE, reasons), "", tried, preemption)
        else:
            self._fail(queued, tried.status, tried.decision.nominated_node_name, tried, preemption)

    def _place(self, tried: PodTrial) -> None:
        """Assume, reserve and permit the pod again, and start its binding."""
        placed = self.engine.commit(tried.cycle, tried.decision)
        self.groups.activate()
        if placed.assumed is None:
            self._fail(tried.queued, placed.status)
        else:
            self._unfinished.pop(tried.queued.uid, None)
            self.bindings.start(tried.queued, placed)

    def _fail(
        self,
        queued: QueuedPodInfo,
        status: Status,
        nominate: str | None = "",
        tried: PodTrial | None = None,
        of_group: PreemptionTask | None = None,
    ) -> None:
        self._unfinished.pop(queued.uid, None)
        rejectors = _NO_PLUGINS if tried is None or status is not tried.status else tried.decision.rejectors
        writes = tried.decision.writes if tried is not None else ()
        preemption = self.evictions.prepare(queued.pod, writes) if writes else None
        status_write = self.failures.handle(queued, status, nominate, *rejectors, preemption=preemption or of_group)
        if status_write is not None:
            self.status_writes.append(status_write)
        if preemption is not None:
            self.evictions.start(preemption, status_write)

    # status of the group

    def _report(self, member: QueuedPodInfo, status: Status, preemption: PreemptionTask | None) -> None:
        group = self._pod_group_of(member)
        if group is None:
            return
        if preemption is not None and preemption.reports_late:
            preemption.reports.append(lambda: self.statuses.write(group, status))
        else:
            self.statuses.write(group, status)

    def _pod_group_of(self, member: QueuedPodInfo) -> PodGroup | None:
        pod = member.pod
        name = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else None
        return self.engine.cache.catalog.pod_groups.get(f"{pod.namespace}/{name}")


def _metric_result(outcome: GroupAttemptResult) -> str:
    if outcome.status.ok:
        return SCHEDULED
    if not outcome.status.rejected:
        return ERROR
    return WAITING_ON_PREEMPTION if outcome.waits_for_preemption else UNSCHEDULABLE
