"""Binding of pods that a session committed, and their return to pending after a failure.

A binding starts at the commit, with a limited number at a time. Waiting pods are entries of a queue, not asyncio tasks:
ten thousand tasks would slow down garbage collection. No pod waits for its whole gang: a member whose write is refused
is placed again by the next session. The order of steps and the messages are Volcano's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from bayplan.batch.live.event_handlers import BatchEventHandlers
from bayplan.batch.live.observer import BatchObserver
from bayplan.batch.live.write_interfaces import IntentWriter, ObjectEventRecorder, PodStatusWriter
from bayplan.batch.session.pre_bind_state import PreBindState
from bayplan.batch.session.verbose_log import DECISIONS
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client import worker_slot
from bayplan.clock import Clock
from bayplan.errors import BayplanError, NotFound
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.intents.pod_intents import AnnotatePod, BindPod, CreateBindRequest
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import whole_device_spec
from bayplan.telemetry.events import NORMAL, WARNING
from bayplan.telemetry.logs import ObjectRef, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

SCHEDULER_ERROR = "SchedulerError"


class _BindError(Exception):
    """Why a pod is not bound; the message becomes its condition."""


class _PlacedPod(NamedTuple):
    """A pod with a node, and the steps before its binding."""

    pod: Pod
    node_name: str
    needs: PreBindState | None
    annotations: Mapping[str, str]
    request_annotations: Mapping[str, str]


@dataclass(slots=True)
class BatchBinder:
    """Binds the pods that sessions placed."""

    event_handlers: BatchEventHandlers
    writes: IntentWriter
    statuses: PodStatusWriter
    event_recorder: ObjectEventRecorder
    observer: BatchObserver
    clock: Clock
    max_workers: int = 64
    requests: BindRequestTracker | None = None
    """Tracker of bind requests, if the binder binds the pods."""
    in_flight: set[str] = field(default_factory=set)
    """uids of pods whose binding is not written yet, or is in progress at the binder."""
    _waiting: deque[_PlacedPod] = field(default_factory=deque)
    _workers: set[asyncio.Task[None]] = field(default_factory=set)
    _idle_workers: int = 0

    def start(
        self,
        pod: Pod,
        node_name: str,
        needs: PreBindState | None,
        annotations: Mapping[str, str] | None,
        request_annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Start the binding of a pod that the cache already counts on its node. `request_annotations` go to the
        binder's plugins."""
        self.observer.task_stage("Assumed", pod)
        self.in_flight.add(pod.uid)
        self._waiting.append(_PlacedPod(pod, node_name, needs, annotations or {}, request_annotations or {}))
        self._start_worker()

    def _start_worker(self) -> None:
        if self._waiting and len(self._workers) - self._idle_workers < self.max_workers:
            worker = asyncio.ensure_future(self._run_worker())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def drain(self) -> None:
        """Wait until everything is written. The binder continues with its requests on its own."""
        if self.requests is not None:
            self.requests.stop_tracking()
        while self._workers:
            await asyncio.wait(self._workers)  # does not cancel a binding when it is cancelled itself
        await asyncio.sleep(0)  # let callbacks of finished workers run
        self.in_flight.clear()

    async def abandon(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.cancel()
        await self.drain()

    # Implementation

    async def _run_worker(self) -> None:
        """Bind the pod that waits longest, until none waits. Workers do not wait for the result of the binder."""
        worker_slot.set(self._release_worker_slot)
        while self._waiting and len(self._workers) - self._idle_workers <= self.max_workers:
            placed = self._waiting.popleft()
            with_binder = False
            try:
                status = await self._run_binding_cycle(placed)
                with_binder = status is None
                if status is not None:
                    self._finish(placed, status)
            finally:
                if not with_binder:
                    self.in_flight.discard(placed.pod.uid)

    @asynccontextmanager
    async def _release_worker_slot(self) -> AsyncIterator[None]:
        """Start another worker while this one only waits for the outcome of a write."""
        self._idle_workers += 1
        self._start_worker()
        try:
            yield
        finally:
            self._idle_workers -= 1

    async def _run_binding_cycle(self, placed: _PlacedPod) -> Status | None:
        """Run the binding cycle of a pod and return its result. None: the binder has the request, which may take
        minutes."""
        pod = placed.pod
        try:
            await self._pre_bind_and_bind(placed)
            self._record_scheduled_event(placed)
            return self._track_bind_request(placed)
        except _BindError as fault:
            return error(str(fault))
        except Exception as fault:  # a bug costs the pod one session, but must not leave it counted on its node
            log.exception("the binding of pod %s failed", pod.key)
            return error(f"{type(fault).__name__}: {fault}")

    def _track_bind_request(self, placed: _PlacedPod) -> Status | None:
        if self.requests is None:
            return SUCCESS
        return self.requests.track(placed.pod, partial(self._schedule_result, placed))

    def _schedule_result(self, placed: _PlacedPod, status: Status) -> None:
        """Handle the binder's result in the next loop iteration, because this callback runs during a cache change."""
        asyncio.get_running_loop().call_soon(self._handle_result, placed, status)

    def _handle_result(self, placed: _PlacedPod, status: Status) -> None:
        self.in_flight.discard(placed.pod.uid)
        self._finish(placed, status)

    def _finish(self, placed: _PlacedPod, status: Status) -> None:
        """Finish the binding of a pod, or undo it."""
        if status.ok:
            self._finish_binding(placed.pod, placed.node_name)
        else:
            self._handle_binding_failure(placed.pod, placed.needs, placed.node_name, status.message)

    async def _pre_bind_and_bind(self, placed: _PlacedPod) -> None:
        await self._run_pre_bind(placed.pod, placed.node_name, placed.needs, placed.annotations)
        await self._bind(placed)

    async def _run_pre_bind(
        self, pod: Pod, node_name: str, needs: PreBindState | None, annotations: Mapping[str, str]
    ) -> None:
        """Run all steps before the binding: volumes, devices, and the plugins' annotations."""
        if needs is not None:
            start_s = self.clock.monotonic_s()
            status = await needs.run_pre_bind(node_name)
            self.observer.stage("PreBind", self.clock.monotonic_s() - start_s)
            if not status.ok:
                raise _BindError(f"execute preBind for pod {pod.key} failed: {status.message}, resync the task")
        if annotations:
            try:
                await self.writes.perform(AnnotatePod(pod, annotations))
            except BayplanError as fault:
                raise _BindError(f"execute preBind for pod {pod.key} failed: {fault}, resync the task") from fault
        self.observer.task_stage("PreBound", pod)

    async def _bind(self, placed: _PlacedPod) -> None:
        pod, node_name = placed.pod, placed.node_name
        if (status_write := self.statuses.pending_write(pod.uid)) is not None:
            await asyncio.wait([status_write])  # otherwise the waiting reason could be written after the binding
        start_s = self.clock.monotonic_s()
        try:
            factory = self.event_handlers.engine.handle.bind_request_factory
            if factory is None:
                await self.writes.perform(BindPod(pod, node_name))
            else:
                fields = {**whole_device_spec(pod), **(placed.needs.request_fields if placed.needs is not None else {})}
                intent = CreateBindRequest(pod, factory.request(pod, node_name, placed.request_annotations, **fields))
                factory.observe_created(await self.writes.perform(intent), pod)
        except NotFound:
            raise _BindError("") from None  # the pod is deleted; no message is needed
        except BayplanError as fault:
            raise _BindError(f"failed to bind to node {node_name}: {fault}") from fault
        finally:
            self.observer.stage("Bind", self.clock.monotonic_s() - start_s)

    def _record_scheduled_event(self, placed: _PlacedPod) -> None:
        """Record the event once the API server has the binding or its request. The binder records further events."""
        pod, node_name = placed.pod, placed.node_name
        self.event_recorder.record_core_event(
            pod, NORMAL, "Scheduled", f"Successfully assigned {pod.key} to {node_name}"
        )

    def _finish_binding(self, pod: Pod, node_name: str) -> None:
        self.observer.observe_bound(pod)
        if outcomes.enabled(DECISIONS):
            outcomes.info("Successfully bound pod to node", v=DECISIONS, pod=ObjectRef(pod.key), node=node_name)

    def _handle_binding_failure(self, pod: Pod, needs: PreBindState | None, node_name: str, message: str) -> None:
        """Undo all reservations of the pod; the next session finds it pending."""
        engine = self.event_handlers.engine
        if needs is not None:
            needs.unreserve(node_name)
        assumed = engine.cache.pod(pod.uid) if engine.cache.is_assumed(pod.uid) else None
        if assumed is not None:
            engine.cache.forget(assumed)
            self.event_handlers.on_pod_released(assumed)
        latest = self.event_handlers.latest_pod(pod)
        if latest is None or latest.spec.node_name:
            return  # deleted or bound: the watch is more reliable than the failed response
        engine.handle_update(latest)
        self.observer.observe_failed(pod)
        if message:
            log.warning("pod %s: %s", pod.key, message)
            if self.statuses.set_unschedulable(latest, SCHEDULER_ERROR, message, None) is not None:
                self.event_recorder.record_core_event(latest, WARNING, "FailedScheduling", message)
