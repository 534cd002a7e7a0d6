"""Performs intents: turns the decisions of plugins, sessions and the binder into requests to the API server.

`perform` returns or raises when the outcome of the write is known (`client.confirmed_writes`), so the caller reserves
the capacity that the write may take until then. Failures of `submit` are only logged. Cost: mostly one request each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

from bayplan.api_writes import crash_points
from bayplan.api_writes.bind_request_writes import BindRequestWrites
from bayplan.api_writes.claim_writes import ClaimRelease, ClaimWrites, UnsupportedIntent
from bayplan.api_writes.guarded_patches import GuardedPatches
from bayplan.api_writes.observer import ERROR, FAILED, SUCCEEDED, TIMED_OUT, NoSchedulerObserver, SchedulerObserver
from bayplan.api_writes.pod_status_messages import NORMAL, PodEventRecorder
from bayplan.client import (
    PODS,
    REQUEST_TIMEOUT_S,
    Client,
    ConfirmedWrite,
    ConfirmedWrites,
    GroupVersionResource,
    NotWritten,
    WriteState,
    worker_slot,
)
from bayplan.client.cancellation import finish_write, leave_cancellation
from bayplan.clock import LoopClock
from bayplan.devices import claim_intents as devices
from bayplan.devices.errors import DeviceBindingFailed, DeviceBindingTimeout
from bayplan.errors import ApiError, Conflict, LeaseLost, NotFound
from bayplan.intents.pod_intents import AnnotatePod, BindPod, CreateBindRequest, DeleteBindRequest, DeletePod
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.volumes.volume_intents import SetSelectedNode, SetVolumeClaimRef, WaitForVolumes, pod_deleted_error

T = TypeVar("T", bound=KubeObject)

log = logging.getLogger(__name__)


class ApiWrites:
    """Implements `framework.handle.Writes`. `claims`: the resource of device claims as the API server serves it."""

    def __init__(
        self,
        client: Client,
        events: PodEventRecorder,
        *,
        clock: LoopClock,
        claims: GroupVersionResource | None = None,
        exists: Callable[[Pod], bool] = lambda _: True,
        observer: SchedulerObserver | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._exists = exists  # whether a pod is known to exist
        self._observer: SchedulerObserver = observer or NoSchedulerObserver()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.confirmed = ConfirmedWrites(clock, request_timeout_s)
        self.patches = GuardedPatches(client, self.confirmed)
        self._requests = BindRequestWrites(client, self.confirmed)
        self._claim_writes = ClaimWrites(client, self.confirmed, self.patches, clock, claims, self._observer)
        self.crash_point: crash_points.CrashPointCallback = crash_points.ignore_crash_point
        self._performers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            BindPod: self._bind,
            DeletePod: self._delete_pod,
            AnnotatePod: self._annotate,
            CreateBindRequest: self._create_bind_request,
            DeleteBindRequest: self._requests.delete,
            SetVolumeClaimRef: self._set_volume_claim_ref,
            SetSelectedNode: self._select_node,
            WaitForVolumes: self._wait_for_volumes,
            devices.ReserveClaim: self._claim_writes.reserve,
            devices.CreateSpecialClaim: self._claim_writes.create,
            devices.RecordSpecialClaim: self._claim_writes.record,
            devices.UnreserveClaim: self._claim_writes.unreserve,
            devices.DeallocateClaim: self._claim_writes.deallocate,
            devices.DeleteClaim: self._claim_writes.delete,
            devices.WaitForDevices: self._wait_for_devices,
        }

    async def perform(self, intent: object) -> Any:
        performer = self._performers.get(type(intent))
        if performer is None:
            raise UnsupportedIntent(f"{type(intent).__name__} is not an intent that this process can perform")
        if isinstance(intent, WaitForVolumes | devices.WaitForDevices):
            return await performer(intent)
        return await finish_write(performer(intent))

    def submit(self, intent: object) -> None:
        task = self.start(self.perform(intent), f"{type(intent).__name__}")
        if isinstance(intent, ClaimRelease):
            self._claim_writes.track_release(intent, task)

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run the work in a task. Errors are logged."""
        task = asyncio.ensure_future(self._run_logged(work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    @property
    def has_open_writes(self) -> bool:
        """Whether a write of this process may still take effect, as far as it knows."""
        return self.busy or self.confirmed.open > 0

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)  # cancelling this wait cancels no write

    async def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.drain()

    async def _run_logged(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        leave_cancellation()
        worker_slot.set(nullcontext)  # this task must not release the slot of the task that started it
        try:
            await work
        except LeaseLost as fault:
            log.debug("%s failed: %s", what, fault)
        except ApiError as fault:
            log.warning("%s failed: %s", what, fault)
        except Exception:
            log.exception("%s failed", what)

    # pods and volumes

    async def _bind(self, intent: BindPod) -> None:
        """Bind a pod. Returns when the pod is on the node; raises when the binding can no longer take effect."""
        meta = intent.pod.metadata

        async def send() -> None:
            await self._client.bind(
                meta.namespace, meta.name, intent.node_name, uid=meta.uid, annotations=intent.annotations
            )

        what = f"binding pod {intent.pod.key} to node {intent.node_name}"
        await self.confirmed.write(send, lambda: self._find_binding(intent), what=what)

    async def _find_binding(self, intent: BindPod) -> WriteState[None]:
        """A binding never changes, and the API server binds no pod that is being deleted."""
        meta = intent.pod.metadata
        try:
            found = await self._client.get(Pod, meta.namespace, meta.name)
        except NotFound:
            return NotWritten.FOR_EVER
        if found.uid != meta.uid:
            return NotWritten.FOR_EVER
        if found.spec.node_name == intent.node_name:
            return ConfirmedWrite(None)
        return NotWritten.FOR_EVER if found.spec.node_name or found.terminating else NotWritten.SO_FAR

    async def await_binding(self, intent: BindPod, refusal: ApiError) -> bool:
        """Whether the pod is on the node after all, for a binding that another program was to write.

        With an unknown outcome this waits until the API server's request timeout has passed.
        """

        async def send() -> None:
            raise refusal

        try:
            await self.confirmed.write(send, lambda: self._find_binding(intent), what=f"binding pod {intent.pod.key}")
        except ApiError:
            return False
        return True

    async def _delete_pod(self, intent: DeletePod) -> bool:
        pod, may_be_deleted, says_gone = intent.pod, False, False

        async def send() -> bool:
            nonlocal may_be_deleted, says_gone
            try:
                await self._client.delete(PODS, name=pod.name, namespace=pod.namespace, uid=pod.uid)
            except ApiError as refusal:
                may_be_deleted = may_be_deleted or refusal.outcome_unknown
                says_gone = isinstance(refusal, Conflict | NotFound)
                raise
            return True

        async def find() -> WriteState[bool]:
            try:
                found = await self._client.get(Pod, pod.namespace, pod.name)
            except NotFound:
                return ConfirmedWrite(may_be_deleted or not says_gone)
            if found.uid != pod.uid:
                return ConfirmedWrite(may_be_deleted or not says_gone)
            return ConfirmedWrite(True) if found.terminating else NotWritten.SO_FAR

        return await self.confirmed.write(send, find, what=f"deleting pod {pod.key}", retry_refused=True)

    async def _create_bind_request(self, intent: CreateBindRequest) -> BindRequest:
        created = await self._requests.create(intent)
        self.crash_point(crash_points.REQUEST_CREATED)
        return created

    async def _annotate(self, intent: AnnotatePod) -> None:
        async def attempt(pod: Pod) -> Pod:
            if pod is not intent.pod and intent.is_done(pod):  # the caller's pod may be an old version
                return pod
            return await self.patches.patch(pod, intent.patch(pod), is_done=intent.is_done)

        await self.patches.repeat(intent.pod, attempt)

    async def _set_volume_claim_ref(self, intent: SetVolumeClaimRef) -> PersistentVolume:
        return await self.patches.patch(intent.volume, intent.patch(), is_done=intent.is_done)

    async def _select_node(self, intent: SetSelectedNode) -> PersistentVolumeClaim:
        return await self.patches.patch(intent.claim, intent.patch(), is_done=intent.is_done)

    async def _wait_for_volumes(self, intent: WaitForVolumes) -> None:
        def done() -> bool:
            if not self._exists(intent.pod):
                raise pod_deleted_error(intent.pod)
            return intent.done()

        await self._poll(done, intent.every_s, intent.timeout_s)

    async def _poll(self, done: Callable[[], bool], every_s: float, timeout_s: float) -> None:
        """Check `done` at an interval, the first time after one interval. Raises `TimeoutError` at the end."""
        end_s = self._clock.monotonic_s() + timeout_s
        while (left_s := end_s - self._clock.monotonic_s()) > 0:
            await self._clock.sleep(min(every_s, left_s))
            if done():
                return
        raise TimeoutError

    # devices

    async def _wait_for_devices(self, intent: devices.WaitForDevices) -> None:
        self._events.record(intent.pod, NORMAL, intent.reason, intent.action, intent.note)
        start_s, status = self._clock.monotonic_s(), ERROR
        try:
            if not intent.done():
                await self._poll(intent.done, intent.every_s, intent.timeout_s)
            status = SUCCEEDED
        except (TimeoutError, DeviceBindingTimeout):
            status = TIMED_OUT
            raise
        except DeviceBindingFailed:
            status = FAILED
            raise
        finally:
            took_s = self._clock.monotonic_s() - start_s
            for driver in intent.drivers:
                self._observer.observe_device_wait(intent.pod.scheduler_name, driver, status, took_s)
