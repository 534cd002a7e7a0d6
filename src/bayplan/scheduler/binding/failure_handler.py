"""Failure handler: requeues a pod that was not placed, and reports the reason on it.

Called after every failed attempt and binding, and when a PreEnqueue plugin fails. The order is kube-scheduler's: the
pod goes back to the queue in its newest version (or is dropped if it was deleted), its nomination is kept or cleared,
the event is recorded and the status patched. An attempt that fails for the same reason as the one before writes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from bayplan.api_writes.observer import ERROR, SchedulerObserver
from bayplan.api_writes.observer import UNSCHEDULABLE as UNSCHEDULABLE_RESULT
from bayplan.api_writes.pod_status_messages import (
    SCHEDULER_ERROR,
    UNSCHEDULABLE,
    PodEventRecorder,
    record_failed_scheduling,
    record_skipped,
)
from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.clock import Clock
from bayplan.framework.api.status import Status
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.binding.preemption_executor import PreemptionTask
from bayplan.scheduler.engine import PodEngine
from bayplan.telemetry.logs import OUTCOME, ObjectRef, StructuredLog

outcomes = StructuredLog(__name__)


@dataclass(slots=True)
class FailureHandler:
    engine: PodEngine
    queue: SchedulingQueue
    statuses: PodStatuses
    events: PodEventRecorder
    observer: SchedulerObserver
    clock: Clock

    def skip_pod(self, queued: QueuedPodInfo) -> bool:
        """Whether a pod need not be tried: it is terminating or already assumed."""
        pod = queued.pod
        if pod.terminating:
            record_skipped(self.events, pod)
        elif self.engine.cache.pod(pod.uid) is None:
            return False
        self.queue.done(queued.uid)
        return True

    def handle(
        self,
        queued: QueuedPodInfo,
        status: Status,
        nominate: str | None,
        unschedulable: Iterable[str] = (),
        pending: Iterable[str] = (),
        preemption: PreemptionTask | None = None,
    ) -> asyncio.Task[None] | None:
        """Requeue a pod and report why. `nominate`: None keeps the node that its status names, "" clears it.

        The plugins are those that rejected the pod; none after an error. `preemption`: the evictions for the pod.
        Returns the task that writes the status.
        """
        self.observer.observe_attempt(
            UNSCHEDULABLE_RESULT if status.rejected else ERROR,
            queued.pod.scheduler_name,
            self.clock.monotonic_s() - queued.attempt_started_s,
        )
        if not status.rejected:
            outcomes.error(status.message, "Error scheduling pod; retrying", pod=ObjectRef(queued.key))
        elif outcomes.enabled(OUTCOME):
            outcomes.info(
                "Unable to schedule pod; no fit; waiting", v=OUTCOME, pod=ObjectRef(queued.key), err=status.message
            )
        waits = queued.uid in self.engine.pending
        self.queue.requeue(queued, unschedulable, pending)
        pod = queued.pod  # in the version that was requeued
        if not waits and self._is_replaced(pod):
            return None  # deleted and created again: a report on the old pod would be read as one on the new pod
        self.queue.nominate(queued.info, nominate)
        if not waits:
            record_failed_scheduling(self.events, pod, status.message)
            return None  # the pod is deleted or was bound
        if preemption is not None and preemption.reports_late:
            preemption.reports.append(partial(self._report_if_waiting, pod.uid, status, nominate))
            return None
        return self._report(pod, status, nominate)

    def handle_gate_failure(self, queued: QueuedPodInfo, status: Status) -> None:
        """Report that a PreEnqueue plugin failed. The pod keeps its place in the queue and its nomination."""
        if not status.rejected:
            outcomes.error(status.message, "Error letting pod into the queue; waiting", pod=ObjectRef(queued.key))
        self._report(queued.pod, status, None)

    def _report_if_waiting(self, uid: str, status: Status, nominate: str | None) -> None:
        pod = self.engine.pending.get(uid)
        if pod is not None:
            self._report(pod, status, nominate)

    def _report(self, pod: Pod, status: Status, nominate: str | None) -> asyncio.Task[None] | None:
        """Record an event and patch the pod's status, unless its condition has this reason and message already."""
        reason = UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR
        if not self.statuses.has_condition(pod, reason, status.message):
            record_failed_scheduling(self.events, pod, status.message)
        return self.statuses.set_unschedulable(pod, reason, status.message, nominate)

    def _is_replaced(self, pod: Pod) -> bool:
        return any(other.key == pod.key for other in self.engine.pending.values())
