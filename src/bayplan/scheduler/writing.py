"""Carries out intents: turns what plugins, sessions and the binder decided into requests to the API server.

`perform` returns or raises when the outcome of the write is known (`client.confirmed_writes`), so the caller keeps the
capacity that the write may take until then. Failures of `submit` are only logged. Cost: one request an intent, mostly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

from bayplan.client import (
    PODS,
    REQUEST_TIMEOUT_S,
    Client,
    ConfirmedWrites,
    Found,
    Missing,
    Resource,
    Written,
    worker_slot,
)
from bayplan.client.cancellation import finish_write, leave_cancellation
from bayplan.clock import LoopClock
from bayplan.devices import intents as devices
from bayplan.devices.faults import DeviceBindingFailed, DeviceBindingTimeout
from bayplan.errors import ApiError, Conflict, LeaseLost, NotFound
from bayplan.framework import steps
from bayplan.framework.intents import AnnotatePod, BindPod, CreateBindRequest, DeleteBindRequest, DeletePod
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.scheduler.claim_writing import ClaimWrites, Unperformable, Withdrawal
from bayplan.scheduler.guarded_patches import GuardedPatches
from bayplan.scheduler.observing import ERROR, FAILED, SUCCEEDED, TIMED_OUT, NoObserver, Observer
from bayplan.scheduler.request_writing import RequestWrites
from bayplan.scheduler.telling import NORMAL, Events
from bayplan.volumes.promises import AwaitVolumes, PromiseVolume, SelectNode, pod_gone

T = TypeVar("T", bound=KubeObject)

log = logging.getLogger(__name__)


class ApiWrites:
    """Fits `framework.handle.Writes`. `claims` is the resource of device claims as the server offers it."""

    def __init__(
        self,
        client: Client,
        events: Events,
        *,
        clock: LoopClock,
        claims: Resource | None = None,
        exists: Callable[[Pod], bool] = lambda _: True,
        observer: Observer | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._exists = exists  # whether the API server still has a pod, as far as is known
        self._observer: Observer = observer or NoObserver()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.confirmed = ConfirmedWrites(clock, request_timeout_s)
        self.patches = GuardedPatches(client, self.confirmed)
        self._requests = RequestWrites(client, self.confirmed)
        self._claim_writes = ClaimWrites(client, self.confirmed, self.patches, clock, claims, self._observer)
        self.reached: steps.Reached = steps.unarmed
        self._performers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            BindPod: self._bind,
            DeletePod: self._delete_pod,
            AnnotatePod: self._annotate,
            CreateBindRequest: self._request,
            DeleteBindRequest: self._requests.delete,
            PromiseVolume: self._promise_volume,
            SelectNode: self._select_node,
            AwaitVolumes: self._await_volumes,
            devices.ReserveClaim: self._claim_writes.reserve,
            devices.CreateSpecialClaim: self._claim_writes.create,
            devices.RecordSpecialClaim: self._claim_writes.record,
            devices.UnreserveClaim: self._claim_writes.unreserve,
            devices.DeallocateClaim: self._claim_writes.deallocate,
            devices.DeleteClaim: self._claim_writes.delete,
            devices.AwaitDevices: self._await_devices,
        }

    async def perform(self, intent: object) -> Any:
        performer = self._performers.get(type(intent))
        if performer is None:
            raise Unperformable(f"{type(intent).__name__} is no intent that can be carried out here")
        if isinstance(intent, AwaitVolumes | devices.AwaitDevices):
            return await performer(intent)
        return await finish_write(performer(intent))

    def submit(self, intent: object) -> None:
        task = self.start(self.perform(intent), f"{type(intent).__name__}")
        if isinstance(intent, Withdrawal):
            self._claim_writes.withdrawal_started(intent, task)

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Do it meanwhile; what goes wrong is logged."""
        task = asyncio.ensure_future(self._logged(work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def busy(self) -> bool:
        """Whether something that was submitted is not done yet."""
        return bool(self._tasks)

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect, of this process and as far as it knows."""
        return self.busy or self.confirmed.open > 0

    async def drain(self) -> None:
        """Wait for everything that was submitted."""
        while self._tasks:
            await asyncio.wait(self._tasks)  # it cancels no write when it is cancelled itself

    async def abandon(self) -> None:
        """Give up everything that was submitted."""
        for task in self._tasks:
            task.cancel()
        await self.drain()

    async def _logged(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        leave_cancellation()
        worker_slot.set(nullcontext)  # the slot of the task that has started this one is not ours to leave
        try:
            await work
        except LeaseLost as fault:
            log.debug("%s failed: %s", what, fault)
        except ApiError as fault:
            log.warning("%s failed: %s", what, fault)
        except Exception:
            log.exception("%s failed", what)

    # pods and volumes -------------------------------------------------------------------------------------------

    async def _bind(self, intent: BindPod) -> None:
        """Bind a pod. Returns when the pod is on the node, and raises when it cannot come to be there any more."""
        meta = intent.pod.metadata

        async def send() -> None:
            await self._client.bind(
                meta.namespace, meta.name, intent.node_name, uid=meta.uid, annotations=intent.annotations
            )

        what = f"binding pod {intent.pod.key} to node {intent.node_name}"
        await self.confirmed.write(send, lambda: self._find_binding(intent), what=what)

    async def _find_binding(self, intent: BindPod) -> Found[None]:
        """A binding never changes, and the API server binds no pod that is being deleted."""
        meta = intent.pod.metadata
        try:
            found = await self._client.get(Pod, meta.namespace, meta.name)
        except NotFound:
            return Missing.FOR_EVER
        if found.uid != meta.uid:
            return Missing.FOR_EVER
        if found.spec.node_name == intent.node_name:
            return Written(None)
        return Missing.FOR_EVER if found.spec.node_name or found.terminating else Missing.SO_FAR

    async def await_binding(self, intent: BindPod, refusal: ApiError) -> bool:
        """Whether the pod is on the node after all, for a binding that another program was asked to write.

        With an unknown outcome the answer comes when the API server's request timeout has passed.
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

        async def find() -> Found[bool]:
            try:
                found = await self._client.get(Pod, pod.namespace, pod.name)
            except NotFound:
                return Written(may_be_deleted or not says_gone)
            if found.uid != pod.uid:
                return Written(may_be_deleted or not says_gone)
            return Written(True) if found.terminating else Missing.SO_FAR

        return await self.confirmed.write(send, find, what=f"deleting pod {pod.key}", retry_refused=True)

    async def _request(self, intent: CreateBindRequest) -> BindRequest:
        made = await self._requests.create(intent)
        self.reached(steps.REQUESTED)
        return made

    async def _annotate(self, intent: AnnotatePod) -> None:
        async def attempt(pod: Pod) -> Pod:
            if pod is not intent.pod and intent.is_done(pod):  # the caller's pod may be an old version
                return pod
            return await self.patches.patch(pod, intent.patch(pod), is_done=intent.is_done)

        await self.patches.repeat(intent.pod, attempt)

    async def _promise_volume(self, intent: PromiseVolume) -> PersistentVolume:
        return await self.patches.patch(intent.volume, intent.patch(), is_done=intent.is_done)

    async def _select_node(self, intent: SelectNode) -> PersistentVolumeClaim:
        return await self.patches.patch(intent.claim, intent.patch(), is_done=intent.is_done)

    async def _await_volumes(self, intent: AwaitVolumes) -> None:
        def done() -> bool:
            if not self._exists(intent.pod):
                raise pod_gone(intent.pod)
            return intent.done()

        await self._until(done, intent.every_s, intent.timeout_s)

    async def _until(self, done: Callable[[], bool], every_s: float, timeout_s: float) -> None:
        """Ask again and again, the first time after one interval; `TimeoutError` when time is up."""
        end_s = self._clock.monotonic_s() + timeout_s
        while (left_s := end_s - self._clock.monotonic_s()) > 0:
            await self._clock.sleep(min(every_s, left_s))
            if done():
                return
        raise TimeoutError

    # devices ----------------------------------------------------------------------------------------------------

    async def _await_devices(self, intent: devices.AwaitDevices) -> None:
        self._events.record(intent.pod, NORMAL, intent.reason, intent.action, intent.note)
        start_s, status = self._clock.monotonic_s(), ERROR
        try:
            if not intent.done():
                await self._until(intent.done, intent.every_s, intent.timeout_s)
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
                self._observer.conditions_awaited(intent.pod.scheduler_name, driver, status, took_s)
