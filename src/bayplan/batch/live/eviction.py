"""Evictions of sessions: writes the pod's conditions, deletes the pod, and cancels the eviction if that fails.

From the decision until the deletion, `Nominator` marks the pod as terminating in both engines, so that neither evicts
another pod instead. Unlike Volcano's, an eviction whose delete failed is retried with exponential backoff, and without
writing the conditions again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from bayplan.api_writes.crash_points import VICTIMS_EVICTED
from bayplan.batch.live.event_handlers import BatchEventHandlers
from bayplan.batch.live.observer import BatchObserver
from bayplan.batch.live.write_interfaces import IntentWriter, ObjectEventRecorder, PodStatusWriter
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.verbose_log import DECISIONS
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, LeaseLost, Unreachable
from bayplan.framework.preemption.dry_run import DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER
from bayplan.framework.refused_evictions import RefusedEvictions
from bayplan.intents.pod_intents import DeletePod
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition
from bayplan.objects.volcano import types as volcano
from bayplan.telemetry.events import NORMAL, WARNING
from bayplan.telemetry.logs import ObjectRef, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

EVICT = "Evict"


@dataclass(slots=True)
class PodEvictor:
    event_handlers: BatchEventHandlers
    writes: IntentWriter
    statuses: PodStatusWriter
    event_recorder: ObjectEventRecorder
    observer: BatchObserver
    clock: LoopClock
    _refused: RefusedEvictions = field(init=False)
    # uids of pods that have the conditions, but whose deletion was refused
    _notified: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._refused = RefusedEvictions(self.event_handlers.engine.handle.nominator, self.clock)

    def end_pauses(self) -> None:
        """Let sessions choose pods again whose deletion was refused, once their backoff is over."""
        self._refused.end_pauses()

    def start(self, pod: Pod, reason: str) -> None:
        engine = self.event_handlers.engine
        engine.handle.nominator.add_victim(pod.uid, pod.spec.node_name, reason)
        self.observer.observe_evicted(reason)
        self.writes.start(self._evict_pod(pod, reason), f"evicting {pod.key}")

    async def _evict_pod(self, pod: Pod, reason: str) -> None:
        text = f"Pod is evicted, because of {reason}"
        if not self._refused.times(pod.uid):
            self.event_recorder.record_core_event(pod, WARNING, EVICT, text)
        try:
            if await self._write_conditions(pod, text):
                await self.writes.perform(DeletePod(pod))
                self._refused.forget(pod.uid)
                self._notified.discard(pod.uid)
                self.writes.crash_point(VICTIMS_EVICTED)
                if outcomes.enabled(DECISIONS):
                    values = {"pod": ObjectRef(pod.key), "node": pod.spec.node_name, "reason": reason}
                    outcomes.info("Successfully evicted pod", v=DECISIONS, **values)
        except BayplanError as fault:
            pause = ""
            if not isinstance(fault, Unreachable | LeaseLost):
                pause = f" after {self._refused.note(pod.uid, pod.spec.node_name):.0f} s"
            self._cancel_eviction(
                pod, f"cannot evict pod {pod.key} ({reason}): {fault}; sessions may choose it again{pause}"
            )
            return
        group = self._group(pod)
        if group is not None:
            self.event_recorder.record_core_event(group, NORMAL, EVICT, reason)

    async def _write_conditions(self, pod: Pod, text: str) -> bool:
        """Write the eviction conditions unless the pod has them from an earlier attempt. False: the pod is deleted."""
        if pod.uid in self._notified or any(
            _has_eviction_condition(condition, text) for condition in pod.status.conditions
        ):
            return True
        if not await self.statuses.patch(pod, self._eviction_status_patch(pod, text)):
            return False
        self._notified = {uid for uid in self._notified if self._refused.times(uid)} | {pod.uid}
        return True

    def _eviction_status_patch(self, pod: Pod, text: str) -> dict[str, Any]:
        now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        common = {"lastTransitionTime": now, "message": text}
        conditions = [
            {"type": "Ready", "status": "False", "reason": EVICT, **common},
            {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTION_BY_SCHEDULER, **common},
        ]
        return {"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}}

    def _cancel_eviction(self, pod: Pod, message: str) -> None:
        log.warning("%s", message)
        self.event_handlers.engine.handle.nominator.remove_victim(pod.uid)
        latest = self.event_handlers.latest_pod(pod)
        if latest is not None:
            self.event_handlers.engine.cancel_eviction(latest)
            # another engine that counted on the eviction must schedule again
            self.event_handlers.on_pod_released(latest)

    def _group(self, pod: Pod) -> volcano.PodGroup | None:
        return self.event_handlers.engine.cache.catalog.table(volcano.PodGroup).get(Task(pod).job)


def _has_eviction_condition(condition: Condition, text: str) -> bool:
    return (condition.type, condition.status, condition.message) == (DISRUPTION_TARGET, "True", text)
