"""Pods of the fake kubelet: reports to the API server what a kubelet would report, at the same times.

One watch covers all pods that have a node and have not finished. A pod costs one patch when it starts, one when it
ends, and one request when it is deleted, even if it ends during its deletion. Containers that crash cost three patches
per crash, and an event. Refused requests are retried with growing delays. A pod that cannot be decoded is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Container
from dataclasses import replace

from bayplan.client import CORE_EVENTS, Client, EventSink, Informer, Selection
from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import PODS, PodFields
from bayplan.controllers.core.shared_informers import object_reference
from bayplan.controllers.kubelet.pod_stages import PodBehavior, annotation_problems
from bayplan.controllers.kubelet.pod_sync import (
    PatchAnnotations,
    PatchStatus,
    PodRuntimeState,
    RemovePod,
    WaitStep,
    WarningEvent,
    next_step,
)
from bayplan.errors import Conflict, Invalid, NotFound
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.events import WARNING, EventRecorder

log = logging.getLogger(__name__)

SELECTION = Selection(field_selector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")

Key = tuple[str, str]


class FakePods:
    def __init__(self, client: Client, nodes: Container[object], *, habits: PodBehavior, workers: int = 16) -> None:
        self._client = client
        self._clock = client.clock
        self._nodes = nodes
        self._habits = habits
        self._states: dict[Key, PodRuntimeState] = {}
        self._handled: dict[Key, str] = {}
        """Last handled resourceVersion of each pod: nothing more is sent until a newer one arrives."""
        self._removed: set[str] = set()
        """Uids of pods that were deleted here and that the watch still shows."""
        self._unremoved: dict[Key, PodFields] = {}
        """Terminating pods that left the watch before they were removed: they have finished or are gone."""
        self._queue: WorkQueue[Key] = WorkQueue(
            "pod", self._work, clock=client.clock, chance=client.chance, workers=workers
        )
        self._events = EventSink(client, resource=CORE_EVENTS, senders=1)
        self._recorder = EventRecorder(
            "kubelet", host=platform.node(), clock=client.clock, chance=client.chance, post=self._events.post
        )
        self._informer: Informer = client.informer(PODS, self._on_change, selection=SELECTION)

    @property
    def running(self) -> int:
        """Number of pods that the kubelet handles."""
        return len(self._states)

    async def run(self) -> None:
        """Handle pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run(), name="pods")
            group.create_task(self._queue.run())
            group.create_task(self._events.run(), name="events of pods")

    def _on_change(self, old: KubeObject | None, new: KubeObject | None) -> None:
        if new is None:
            if isinstance(old, PodFields):
                self._forget(old)
        elif isinstance(new, PodFields) and new.spec.node_name in self._nodes:
            self._enqueue_pod(new)

    def _enqueue_pod(self, pod: PodFields) -> None:
        key = (pod.namespace, pod.name)
        state = self._states.get(key) or PodRuntimeState(seen=self._clock.now())
        if new := [each for each in annotation_problems(pod) if each not in state.reported_problems]:
            state = replace(state, reported_problems=state.reported_problems.union(new))
            for problem in new:
                log.warning("pod %s: %s", pod.key, problem)
                self._record_event(pod, WarningEvent("BadAnnotation", problem))
        if pod.terminating and state.stopping is None:
            state = replace(state, stopping=self._clock.now())
        self._states[key] = state
        self._queue.add(key)

    def _forget(self, pod: PodFields) -> None:
        key = (pod.namespace, pod.name)
        state = self._states.pop(key, None)
        self._handled.pop(key, None)
        self._queue.forget(key)
        was_stopping = state is not None and (state.stopping is not None or pod.terminating)
        if was_stopping and pod.uid not in self._removed:
            self._unremoved[key] = pod
            self._queue.add(key)
        self._removed.discard(pod.uid)

    async def _work(self, key: Key) -> float | None:
        if (unremoved := self._unremoved.get(key)) is not None:
            await self._remove(unremoved)
        pod, state = self._informer.store.get(key), self._states.get(key)
        if not isinstance(pod, PodFields) or state is None:
            return None
        step = next_step(pod, now=self._clock.now(), state=state, habits=self._habits)
        if isinstance(step, WaitStep):
            return step.seconds
        version = pod.metadata.resource_version
        if step is None or self._handled.get(key) == version:
            return None
        try:
            await self._do(pod, step)
        except (NotFound, Conflict):
            return None  # deleted, or another pod with this name: the watch delivers the change
        if key in self._states:
            self._handled[key] = version
        return None

    async def _do(self, pod: PodFields, step: PatchStatus | PatchAnnotations | RemovePod) -> None:
        if isinstance(step, PatchAnnotations):
            body = {"metadata": {"uid": pod.uid, "annotations": step.annotations}}
            await self._client.patch(PODS, body, namespace=pod.namespace, name=pod.name)
            return
        if step.status is not None:
            await self._patch_status(pod, step.status)
        if isinstance(step, RemovePod):
            await self._remove(pod)
            return
        for note in step.events:
            self._record_event(pod, note)
        key = (pod.namespace, pod.name)
        if key in self._states:
            self._states[key] = replace(self._states[key], **step.runtime_changes)

    async def _remove(self, pod: PodFields) -> None:
        """Delete a terminating pod that has stopped, without grace period."""
        key = (pod.namespace, pod.name)
        with contextlib.suppress(NotFound, Conflict):  # deleted, or another pod with this name
            await self._client.delete(PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid, grace_s=0)
        if (unremoved := self._unremoved.get(key)) is not None and unremoved.uid == pod.uid:
            del self._unremoved[key]
        elif (cached := self._informer.store.get(key)) is not None and cached.metadata.uid == pod.uid:
            self._removed.add(pod.uid)

    def _record_event(self, pod: PodFields, note: WarningEvent) -> None:
        about = object_reference(PODS, pod)
        self._recorder.record(about, type=WARNING, reason=note.reason, action="", note=note.text)

    async def _patch_status(self, pod: PodFields, status: dict[str, object]) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        try:
            await self._client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, subresource="status")
        except Invalid as refusal:
            if "metadata.uid" not in str(refusal):
                raise
            # Another pod with this name: the watch delivers it.
            raise NotFound(str(refusal), code=refusal.code) from None
