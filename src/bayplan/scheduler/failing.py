"""What happens to a pod that was not placed: it is told why, and waits for what may help.

Asked after every attempt and every binding that failed. In kube-scheduler's order: the pod goes back to the queue in
its newest version (or nowhere, if it is gone), its nomination is kept or dropped, the event is recorded and its status
patched. Patching is tried a few times and then only logged: the next attempt says it again.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Any

from bayplan.client import PODS, STRATEGIC_PATCH, Client
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, Conflict, NotFound, ServerError, Unreachable
from bayplan.framework.diagnosis import Diagnosis
from bayplan.framework.status import Status
from bayplan.objects.core import Pod
from bayplan.queueing import QueuedPod, SchedulingQueue
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.telling import (
    SCHEDULER_ERROR,
    UNSCHEDULABLE,
    Events,
    failed,
    failure_patch,
    nomination_patch,
)
from bayplan.scheduler.writing import ApiWrites

log = logging.getLogger(__name__)

_TRIES = 4
_FIRST_PAUSE_S = 0.01
_PAUSE_FACTOR = 5
_JITTER = 0.1


@dataclass(slots=True)
class Failures:
    """The failure handler of a live scheduler."""

    engine: PodEngine
    queue: SchedulingQueue
    client: Client
    writes: ApiWrites
    events: Events
    clock: LoopClock
    chance: random.Random

    def handle(self, queued: QueuedPod, status: Status, diagnosis: Diagnosis | None, nominate: str | None) -> None:
        """Give a pod back to the queue and say why. `nominate`: None keeps its node, "" clears it."""
        pod = queued.pod
        newest = self.engine.pending.get(pod.uid)
        unschedulable, pending = _rejectors(status, diagnosis)
        self.queue.requeue(queued, unschedulable, pending)
        if newest is None and self._has_namesake(pod):
            return  # it was deleted and made anew: what is said of the old one would be read on the new one
        if nominate is not None:
            self.queue.nominate(queued.info, nominate)
        failed(self.events, pod, status.message)
        reason = UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR
        patch = failure_patch(pod, reason, status.message, nominate, self.clock.now())
        if patch is not None and newest is not None:
            self.writes.start(self._patch(pod, patch), f"saying in the status of pod {pod.key} why it waits")

    async def clear_nomination(self, pod: Pod) -> None:
        await self._patch(pod, nomination_patch(pod, ""))

    async def nominate(self, pod: Pod, node_name: str) -> None:
        """Tell which node a pod is about to get; failing to say so stops nothing."""
        if pod.status.nominated_node_name == node_name:
            return
        try:
            await self._patch(pod, nomination_patch(pod, node_name))
        except ApiError as fault:
            log.warning("cannot tell that pod %s is expected on node %s: %s", pod.key, node_name, fault)

    async def _patch(self, pod: Pod, patch: dict[str, Any]) -> None:
        pause_s = _FIRST_PAUSE_S
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self.client.patch(
                    PODS, patch, name=pod.name, namespace=pod.namespace, subresource="status", kind=STRATEGIC_PATCH
                )
                return
            except NotFound:
                return
            except (Conflict, ServerError, Unreachable):
                if not left:
                    raise
                await self.clock.sleep(pause_s * (1.0 + _JITTER * self.chance.random()))
                pause_s *= _PAUSE_FACTOR

    def _has_namesake(self, pod: Pod) -> bool:
        return any(other.key == pod.key for other in self.engine.pending.values())


def _rejectors(status: Status, diagnosis: Diagnosis | None) -> tuple[set[str], set[str]]:
    """Who rejected the pod, and who of them waits for something outside. Nobody where it is an error."""
    if not status.rejected:
        return set(), set()
    if diagnosis is None:
        return ({status.plugin} if status.plugin else set()), set()
    pending = set(diagnosis.pending_plugins)
    return set(diagnosis.unschedulable_plugins) - pending, pending
