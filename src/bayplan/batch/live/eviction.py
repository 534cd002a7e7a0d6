"""Makes the pods go that a session has evicted: told, then deleted, and spared when nobody can have them deleted.

From the moment of the decision until the pod is gone both engines know that it leaves (`Nominator`), so neither
evicts another in its place. Unlike Volcano's, an eviction that has told the pod and could not delete it tries to delete
it again: after a pause that grows, and without telling the pod once more.
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
    """Carries out the evictions of sessions."""

    event_handlers: BatchEventHandlers
    writes: IntentWriter
    statuses: PodStatusWriter
    event_recorder: ObjectEventRecorder
    observer: BatchObserver
    clock: LoopClock
    _refused: RefusedEvictions = field(init=False)
    _told: set[str] = field(default_factory=set)  # uids of pods that have the conditions and may not be deleted

    def __post_init__(self) -> None:
        self._refused = RefusedEvictions(self.event_handlers.engine.handle.nominator, self.clock)

    def end_pauses(self) -> None:
        """Let sessions choose pods again whose deletion was refused a while ago."""
        self._refused.end_pauses()

    def start(self, pod: Pod, reason: str) -> None:
        """A session wants a pod to go."""
        engine = self.event_handlers.engine
        engine.handle.nominator.add_victim(pod.uid, pod.spec.node_name, reason)
        self.observer.observe_evicted(reason)
        self.writes.start(self._evict_pod(pod, reason), f"evicting {pod.key}")

    async def _evict_pod(self, pod: Pod, reason: str) -> None:
        text = f"Pod is evicted, because of {reason}"
        if not self._refused.times(pod.uid):
            self.event_recorder.record_core_event(pod, WARNING, EVICT, text)
        try:
            if await self._tell(pod, text):
                await self.writes.perform(DeletePod(pod))
                self._refused.forget(pod.uid)
                self._told.discard(pod.uid)
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

    async def _tell(self, pod: Pod, text: str) -> bool:
        """Whether there still is such a pod. A pod that could not be deleted has the conditions from the first try."""
        if pod.uid in self._told or any(_says(condition, text) for condition in pod.status.conditions):
            return True
        if not await self.statuses.patch(pod, self._eviction_status_patch(pod, text)):
            return False
        self._told = {uid for uid in self._told if self._refused.times(uid)} | {pod.uid}
        return True

    def _eviction_status_patch(self, pod: Pod, text: str) -> dict[str, Any]:
        now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"lastTransitionTime": now, "message": text}
        conditions = [
            {"type": "Ready", "status": "False", "reason": EVICT, **told},
            {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTION_BY_SCHEDULER, **told},
        ]
        return {"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}}

    def _cancel_eviction(self, pod: Pod, why: str) -> None:
        log.warning("%s", why)
        self.event_handlers.engine.handle.nominator.remove_victim(pod.uid)
        newest = self.event_handlers.latest_pod(pod)
        if newest is not None:
            self.event_handlers.engine.cancel_eviction(newest)
            self.event_handlers.on_pod_released(newest)  # whoever counted on its going has to look again

    def _group(self, pod: Pod) -> volcano.PodGroup | None:
        return self.event_handlers.engine.cache.catalog.table(volcano.PodGroup).get(Task(pod).job)


def _says(condition: Condition, text: str) -> bool:
    return (condition.type, condition.status, condition.message) == (DISRUPTION_TARGET, "True", text)
