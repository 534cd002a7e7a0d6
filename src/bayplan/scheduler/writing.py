"""Performs what was decided: intents of plugins become requests to the API server.

Whoever decides knows nothing of the wire, and whoever performs knows nothing of why. A write that somebody waits for
raises what went wrong; one that nobody waits for (`submit`) is only logged. Cost: one request an intent, mostly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from bayplan.client import MERGE_PATCH, PODS, STRATEGIC_PATCH, Client, Resource
from bayplan.clock import LoopClock
from bayplan.devices import intents as devices
from bayplan.devices.faults import DeviceBindingFailed, DeviceBindingTimeout
from bayplan.errors import (
    ApiError,
    BayplanError,
    Conflict,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from bayplan.framework import steps
from bayplan.framework.intents import AnnotatePod, BindPod, CreateBindRequest, DeleteBindRequest
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.scheduler.observing import ERROR, FAILED, SUCCEEDED, TIMED_OUT, NoObserver, Observer
from bayplan.scheduler.request_writing import RequestWrites
from bayplan.scheduler.telling import NORMAL, Events
from bayplan.volumes.promises import AwaitVolumes, PromiseVolume, SelectNode, pod_gone

T = TypeVar("T", bound=KubeObject)

log = logging.getLogger(__name__)

_TRIES = 5
_FIRST_LOOK_S, _LAST_LOOK_S = 0.25, 5.0


class Unperformable(BayplanError):
    """An intent that nobody here knows how to carry out."""


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
    ) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._claims = claims
        self._exists = exists  # whether the API server still has a pod, as far as is known
        self._observer: Observer = observer or NoObserver()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requests = RequestWrites(client)
        self.reached: steps.Reached = steps.unarmed
        self._performers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            BindPod: self._bind,
            AnnotatePod: self._annotate,
            CreateBindRequest: self._request,
            DeleteBindRequest: self._requests.delete,
            PromiseVolume: self._promise_volume,
            SelectNode: self._select_node,
            AwaitVolumes: self._await_volumes,
            devices.ReserveClaim: self._reserve_claim,
            devices.CreateSpecialClaim: self._create_claim,
            devices.RecordSpecialClaim: self._record_claim,
            devices.UnreserveClaim: self._unreserve_claim,
            devices.DeallocateClaim: self._deallocate_claim,
            devices.DeleteClaim: self._delete_claim,
            devices.AwaitDevices: self._await_devices,
        }

    async def perform(self, intent: object) -> Any:
        performer = self._performers.get(type(intent))
        if performer is None:
            raise Unperformable(f"{type(intent).__name__} is no intent that can be carried out here")
        return await performer(intent)

    def submit(self, intent: object) -> None:
        self.start(self.perform(intent), f"{type(intent).__name__}")

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

    async def drain(self) -> None:
        """Wait for everything that was submitted."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def abandon(self) -> None:
        """Give up everything that was submitted."""
        for task in self._tasks:
            task.cancel()
        await self.drain()

    async def _logged(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        try:
            await work
        except ApiError as fault:
            log.warning("%s failed: %s", what, fault)
        except Exception:
            log.exception("%s failed", what)

    # pods and volumes -------------------------------------------------------------------------------------------

    async def _bind(self, intent: BindPod) -> None:
        """Bind; where no answer says whether that was done, look. Until then the pod keeps its node: it may have it."""
        meta = intent.pod.metadata
        try:
            await self._client.bind(
                meta.namespace, meta.name, intent.node_name, uid=meta.uid, annotations=intent.annotations
            )
        except Unreachable as lost:
            if not lost.sent or not await self._is_on(intent):
                raise
            log.info("pod %s is on node %s, though the answer was lost: %s", intent.pod.key, intent.node_name, lost)
        except ServerError as fault:
            if not await self._is_on(intent):
                raise
            log.info("pod %s is on node %s all the same: %s", intent.pod.key, intent.node_name, fault)

    async def _is_on(self, intent: BindPod) -> bool:
        """Whether the server has the pod on this node. Asked until there is an answer."""
        meta = intent.pod.metadata
        pause_s = _FIRST_LOOK_S
        while True:
            try:
                found = await self._client.get(Pod, meta.namespace, meta.name)
                return found.uid == meta.uid and found.spec.node_name == intent.node_name
            except (Unreachable, ServerError, TooManyRequests, Unauthorized):
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_LOOK_S)
            except ApiError:
                return False

    async def _request(self, intent: CreateBindRequest) -> BindRequest:
        made = await self._requests.create(intent)
        self.reached(steps.REQUESTED)
        return made

    async def _annotate(self, intent: AnnotatePod) -> None:
        meta = intent.pod.metadata
        await self._client.patch(PODS, intent.patch(), name=meta.name, namespace=meta.namespace, kind=MERGE_PATCH)

    async def _promise_volume(self, intent: PromiseVolume) -> PersistentVolume:
        return await self._client.patched(PersistentVolume, intent.patch(), name=intent.volume.name)

    async def _select_node(self, intent: SelectNode) -> PersistentVolumeClaim:
        claim = intent.claim
        return await self._client.patched(
            PersistentVolumeClaim, intent.patch(), name=claim.name, namespace=claim.namespace
        )

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

    async def _reserve_claim(self, intent: devices.ReserveClaim) -> ResourceClaim:
        claim = intent.claim
        for _ in range(_TRIES):
            try:
                return await self._reserve_once(intent, claim)
            except Conflict as fault:
                conflict = fault.details
                claim = await self._client.get(
                    ResourceClaim, claim.namespace, claim.name, resource=self._claim_resource()
                )
        raise ApiError(f"{intent.describe()}: {conflict}", code=409, reason="Conflict")

    async def _reserve_once(self, intent: devices.ReserveClaim, claim: ResourceClaim) -> ResourceClaim:
        finalizer = intent.finalizer_patch(claim)
        if finalizer is not None:
            with _saying(intent.describe(finalizer=True)):
                claim = await self._patch_claim(claim, finalizer)
        with _saying(intent.describe()):
            return await self._patch_claim(claim, intent.status_patch(claim), subresource="status")

    async def _create_claim(self, intent: devices.CreateSpecialClaim) -> ResourceClaim:
        result = FAILED
        try:
            with _saying(intent.describe()):
                claim = await self._client.created(
                    ResourceClaim,
                    intent.manifest(),
                    namespace=intent.claim.namespace,
                    resource=self._claim_resource(),
                )
            result = SUCCEEDED
            return claim
        finally:
            self._observer.claim_created(result)

    async def _record_claim(self, intent: devices.RecordSpecialClaim) -> None:
        pod = intent.pod
        with _saying(intent.describe()):
            await self._client.patch(
                PODS, intent.patch(), name=pod.name, namespace=pod.namespace, subresource="status", kind=STRATEGIC_PATCH
            )

    async def _unreserve_claim(self, intent: devices.UnreserveClaim) -> None:
        await self._patch_claim(intent.claim, intent.patch(), subresource="status", kind=STRATEGIC_PATCH)

    async def _deallocate_claim(self, intent: devices.DeallocateClaim) -> None:
        await self._patch_claim(intent.claim, intent.patch(), subresource="status")

    async def _delete_claim(self, intent: devices.DeleteClaim) -> None:
        claim = intent.claim
        for _ in range(_TRIES):
            try:
                patch = intent.finalizer_patch(claim)
                if patch is not None:
                    claim = await self._patch_claim(claim, patch)
                break
            except Conflict:
                claim = await self._client.get(
                    ResourceClaim, claim.namespace, claim.name, resource=self._claim_resource()
                )
            except NotFound:
                return
        try:
            await self._client.delete(
                self._claim_resource(), name=claim.name, namespace=claim.namespace, uid=claim.metadata.uid
            )
        except NotFound:
            return

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

    async def _patch_claim(
        self, claim: ResourceClaim, patch: dict[str, Any], *, subresource: str = "", kind: str = MERGE_PATCH
    ) -> ResourceClaim:
        return await self._client.patched(
            ResourceClaim,
            patch,
            name=claim.name,
            namespace=claim.namespace,
            subresource=subresource,
            kind=kind,
            resource=self._claim_resource(),
        )

    def _claim_resource(self) -> Resource:
        if self._claims is None:
            raise Unperformable("the API server offers no resource claims, so devices cannot be reserved")
        return self._claims


class _saying:  # noqa: N801
    """Failures of the API say what was being done."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        if isinstance(fault, ApiError) and not isinstance(fault, Conflict):
            raise ApiError(f"{self._doing}: {fault.details}", code=fault.code, reason=fault.reason) from fault
