"""Makes the pods go that a session has evicted: told, then deleted, and spared when nobody can have them deleted.

From the moment of the decision until the pod is gone both engines know that it leaves (`NominationLedger`), so neither
evicts another in its place. Unlike Volcano's, an eviction that has told the pod and could not delete it tries to delete
it again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from bayplan.batch.live.following import Following
from bayplan.batch.live.observing import BatchObserver
from bayplan.batch.live.writing import Speaker, Statuses, Writer
from bayplan.batch.narration import DECISIONS
from bayplan.batch.tasks import Task
from bayplan.client import PODS, Client
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Conflict, NotFound, ServerError, TooManyRequests, Unreachable
from bayplan.framework.preemption import DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER
from bayplan.framework.steps import EVICTED
from bayplan.objects import volcano
from bayplan.objects.core import Pod
from bayplan.telemetry.events import NORMAL, WARNING
from bayplan.telemetry.logs import Ref, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

EVICT = "Evict"
_TRIES = 5
_FIRST_PAUSE_S = 0.05


@dataclass(slots=True)
class PodEvictions:
    """Carries out the evictions of sessions."""

    following: Following
    client: Client
    writes: Writer
    statuses: Statuses
    speaker: Speaker
    observer: BatchObserver
    clock: LoopClock

    def start(self, pod: Pod, reason: str) -> None:
        """A session wants a pod to go."""
        engine = self.following.engine
        engine.handle.nominations.leave(pod.uid, pod.spec.node_name, reason)
        self.observer.evicted(reason)
        self.writes.start(self._carry_out(pod, reason), f"evicting {pod.key}")

    async def _carry_out(self, pod: Pod, reason: str) -> None:
        text = f"Pod is evicted, because of {reason}"
        self.speaker.tell(pod, WARNING, EVICT, text)
        try:
            if await self.statuses.patch(pod, self._farewell(pod, text)):
                await self._delete(pod)
                self.writes.reached(EVICTED)
                if outcomes.enabled(DECISIONS):
                    values = {"pod": Ref(pod.key), "node": pod.spec.node_name, "reason": reason}
                    outcomes.info("Successfully evicted pod", v=DECISIONS, **values)
        except BayplanError as fault:
            self._spare(pod, f"cannot evict pod {pod.key} ({reason}): {fault}; it stays until a session wants it to go")
            return
        group = self._group(pod)
        if group is not None:
            self.speaker.tell(group, NORMAL, EVICT, reason)

    def _farewell(self, pod: Pod, text: str) -> dict[str, Any]:
        now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"lastTransitionTime": now, "message": text}
        conditions = [
            {"type": "Ready", "status": "False", "reason": EVICT, **told},
            {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTION_BY_SCHEDULER, **told},
        ]
        return {"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}}

    async def _delete(self, pod: Pod) -> None:
        pause_s = _FIRST_PAUSE_S
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self.client.delete(PODS, name=pod.name, namespace=pod.namespace, uid=pod.uid)
                return
            except (NotFound, Conflict):
                return  # gone, or a namesake that came after it
            except (ServerError, TooManyRequests, Unreachable):
                if not left:
                    raise
                await self.clock.sleep(pause_s)
                pause_s *= 2

    def _spare(self, pod: Pod, why: str) -> None:
        log.warning("%s", why)
        self.following.engine.handle.nominations.stays(pod.uid)
        newest = self.following.newest(pod)
        if newest is not None:
            self.following.engine.spare(newest)
            self.following.freed(newest)  # whoever counted on its going has to look again

    def _group(self, pod: Pod) -> volcano.PodGroup | None:
        return self.following.engine.cache.catalog.table(volcano.PodGroup).get(Task(pod).job)
