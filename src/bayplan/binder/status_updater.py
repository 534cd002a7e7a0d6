"""What does a request, and its pod, say about an attempt? Status, condition and event: success only after success.

Called once an attempt. A status is written whenever it differs at all, so that every failure is counted. Cost: two
requests, side by side, and an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.binder.informer_cache import InformerCache
from bayplan.binder.observer import (
    RESULT_BOUND,
    RESULT_FAILED,
    RESULT_RETRIED,
    BinderObserver,
)
from bayplan.client import (
    JSON_PATCH,
    PODS,
    STRATEGIC_PATCH,
    Client,
    ConfirmedWrite,
    ConfirmedWrites,
    GroupVersionResource,
    NotWritten,
    WriteState,
)
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, Conflict, Invalid, NotFound, ObjectError
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import (
    FAILED,
    PENDING,
    SUCCEEDED,
    BindRequest,
    BindRequestStatus,
    retry_delay_s,
)
from bayplan.objects.kai.gpu_sharing import share_annotation
from bayplan.objects.meta import ObjectMeta, format_time
from bayplan.telemetry.events import NORMAL, WARNING, EventRecorder

log = logging.getLogger(__name__)

POD_BOUND_CONDITION = "PodBound"
MAX_REASON_BYTES = 1024
ATTEMPT_IN_PROGRESS = "an attempt is under way; the binder was started anew, and the one before may have died of it"
ROLLBACK_IN_PROGRESS = "it is given up, and what was prepared is being taken back"
POST_BIND_IN_PROGRESS = (
    "the pod is bound and plugins are told; the binder was started anew, and the one before may have died of it"
)
IN_PROGRESS_REASONS = (ATTEMPT_IN_PROGRESS, ROLLBACK_IN_PROGRESS, POST_BIND_IN_PROGRESS)
_ACTION = "Binding"
_CLEAR_TIMEOUT_S = 2.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class BindSucceeded:
    """The pod is on its node."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class BindFailed:
    """Why it is not, in a sentence; `final`: trying again is of no use. `pod`: where there is one to be told."""

    reason: str
    pod: Pod | None = None
    final: bool = False


class StatusUpdater:
    """Writes what came of attempts."""

    def __init__(
        self,
        client: Client,
        requests: GroupVersionResource,
        view: InformerCache,
        speaker: EventRecorder,
        confirmed: ConfirmedWrites | None = None,
        *,
        clock: LoopClock,
        chance: random.Random,
        observer: BinderObserver,
    ) -> None:
        self._client = client
        self._requests = requests
        self._view = view
        self._speaker = speaker
        self._confirmed = confirmed or ConfirmedWrites(clock)
        self._clock = clock
        self._chance = chance
        self._observer = observer
        self._before: dict[str, BindRequestStatus] = {}
        """By uid: what requests said before what we have begun, and have not told the end of."""

    async def mark_in_progress(self, request: BindRequest, what: str) -> BindRequest:
        """Count an attempt before it is made: this process may not live to tell of it. The request as it is then.

        Whoever tells then what came of it goes by the request as it was before: a failure has the number that stands
        there already, and success leaves the number of failures as it was."""
        self._before[request.metadata.uid] = request.status  # before it is written: an answer that is lost says nothing
        status = BindRequestStatus(PENDING, what, request.status.failed_attempts + 1)
        with self._view.expect_own_write(request, status):
            await self._write_status(request, status)
        return replace(request, status=status)

    def without_own_mark(self, request: BindRequest) -> BindRequest:
        """The request as it was before what this process has begun and could not tell the end of: nobody has died."""
        before, now = self._before.get(request.metadata.uid), request.status
        if before is None or now.phase != PENDING or now.reason not in IN_PROGRESS_REASONS:
            return request
        return replace(request, status=before) if now.failed_attempts == before.failed_attempts + 1 else request

    async def clear_mark(self, begun: BindRequest, request: BindRequest) -> None:
        """Nobody has died, and nothing failed: the request is as it was. Not at any price: who stops does not wait."""
        try:
            async with asyncio.timeout(_CLEAR_TIMEOUT_S):
                with self._view.expect_own_write(begun, request.status):
                    await self._write_status(begun, request.status)
            self._before.pop(request.metadata.uid, None)
        except (BayplanError, TimeoutError) as fault:
            log.info("bind request %s stays counted as begun: %s", request.key, fault)

    async def write_result(
        self, request: BindRequest, outcome: BindSucceeded | BindFailed, took_s: float
    ) -> float | None:
        """Write it; after how many seconds to try again, if at all."""
        if isinstance(outcome, BindSucceeded):
            self._observer.observe_attempt(RESULT_BOUND, took_s)
            self._observer.observe_wait(self._age_s(request))
            await self._write_success(request, outcome.pod)
            again_s = None
        else:
            again_s = await self._write_failure(request, outcome, took_s)
        self._before.pop(request.metadata.uid, None)
        return again_s

    def record_waiting(self, request: BindRequest) -> None:
        """The pod is in the midst of an attempt, and others take their time."""
        pod = Pod(metadata=ObjectMeta(name=request.spec.pod_name, namespace=request.namespace, uid=request.pod_uid))
        what = f"Pod {pod.key} is on its way to node {request.spec.selected_node}"
        self._record_event(pod, NORMAL, "BindingWaits", f"{what}: the binder waits for a volume, a device or a plugin")

    async def _write_success(self, request: BindRequest, pod: Pod) -> None:
        node = request.spec.selected_node
        status = BindRequestStatus(SUCCEEDED, "", request.status.failed_attempts)
        await asyncio.gather(
            self._write_status(request, status), self._write_condition(pod, "True", "Bound", f"bound to node {node}")
        )
        self._record_event(pod, NORMAL, "Bound", f"Pod {pod.key} is bound to node {node}")
        if not request.is_fraction and (asked := share_annotation(pod)):
            note = f"Pod {pod.key} asks for a part of a GPU ({asked}) and got none: {pod.scheduler_name} gives out none"
            self._record_event(pod, WARNING, "NoGPUShare", f"{note}; the pod engine with its plugin GpuSharing does")

    async def _write_failure(self, request: BindRequest, outcome: BindFailed, took_s: float) -> float | None:
        reason, limit = truncate_reason(outcome.reason), request.spec.backoff_limit
        before = request.status.failed_attempts
        attempts = before + 1
        final = outcome.final or limit is None or attempts >= limit
        if final and limit is not None:
            attempts = max(attempts, limit)  # by which everybody, upstream's scheduler too, knows that it is over
        self._observer.observe_attempt(RESULT_FAILED if final else RESULT_RETRIED, took_s)
        pod, node = outcome.pod, request.spec.selected_node
        log.warning("bind request %s to node %s: %s", request.key, node, reason)
        await self._write_status(request, BindRequestStatus(FAILED, reason, attempts))
        if pod is not None:
            await self._write_condition(pod, "False", "BindingError", reason)
            if final:
                where = f" to node {node}" if node else ""
                self._record_event(pod, WARNING, "BindingError", f"Pod {pod.key} is not bound{where}: {reason}")
            else:
                tried = f"attempt {attempts} of {limit}"
                self._record_event(
                    pod, WARNING, "BindingRetry", f"Pod {pod.key} is not bound to node {node} ({tried}): {reason}"
                )
        return None if final else self.retry_delay_s(before)

    def retry_delay_s(self, failures: int) -> float:
        """How long to wait after so many earlier failures: doubling, with some chance, never much above a minute."""
        return retry_delay_s(failures) * (1.0 + 0.1 * self._chance.random())

    async def _write_status(self, request: BindRequest, status: BindRequestStatus) -> None:
        """Write the status of the version that is known, and after a conflict of the version that is there then."""
        if status == request.status:
            return
        version = self._view.version_of(request)
        for tries_left in reversed(range(_TRIES)):
            try:
                # Until it is known, no further attempt may begin: this status could come to the request after its.
                written = await self._patch_status(request, version, status)
            except ObjectError:
                # It is written. That the answer cannot be read is what was told; who remembers an earlier state of it,
                # which could be read, knows now that it is over.
                self._view.observe_unreadable(replace(request, status=status))
                return
            except ApiError as refusal:
                if not (isinstance(refusal, Conflict | Invalid | NotFound) or refusal.outcome_unknown):
                    raise
                # Also after a 404: a request that is there must not be forgotten because of a wrong answer.
                found = await self._view.read_request((request.namespace, request.name))
                if found is None or found.metadata.uid != request.metadata.uid:
                    log.debug("bind request %s was deleted or replaced: %s", request.key, refusal)
                    if found is None:
                        self._view.forget(request)
                    return
                if found.status == status or (found.has_failed and status.phase != SUCCEEDED):
                    self._view.observe(found)  # what was given up stays so: its pod may be on another node by now
                    return
                if not tries_left or found.metadata.resource_version == version:
                    raise
                version = found.metadata.resource_version
            else:
                self._view.observe(written)
                return

    async def _patch_status(self, request: BindRequest, version: str, status: BindRequestStatus) -> BindRequest:
        """Change this version of the request. Applied late, the patch must not undo what was written after it."""
        fields = {"phase": status.phase, "reason": status.reason, "failedAttempts": status.failed_attempts}
        # Tested, and not only named: of a custom kind's status the API server forgets all metadata that it was sent,
        # so that a uid among them keeps nobody from writing to another request of the name.
        body: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": request.metadata.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": fields},
        ]

        async def send() -> BindRequest:
            return await self._client.patch_typed(
                BindRequest,
                msgspec.json.encode(body),
                name=request.name,
                namespace=request.namespace,
                subresource="status",
                kind=JSON_PATCH,
                resource=self._requests,
            )

        async def find() -> WriteState[BindRequest]:
            try:
                found = await self._client.get(BindRequest, request.namespace, request.name, resource=self._requests)
            except (NotFound, ObjectError):
                return NotWritten.FOR_EVER
            if found.metadata.uid == request.metadata.uid and found.status == status:
                return ConfirmedWrite(found)
            return NotWritten.SO_FAR if found.metadata.resource_version == version else NotWritten.FOR_EVER

        what = f"writing the status of bind request {request.key}"
        return await self._confirmed.write(send, find, what=what, trust_refusal=True)

    async def _write_condition(self, pod: Pod, status: str, reason: str, message: str) -> None:
        """Write the condition of a pod. A failure names the version of a pod that waits: applied late, it must not
        replace what was written when the pod was bound. After that nothing else is written."""
        known = next((each for each in pod.status.conditions if each.type == POD_BOUND_CONDITION), None)
        if known is not None and (known.status, known.reason, known.message) == (status, reason, message):
            return
        condition = {
            "type": POD_BOUND_CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": format_time(self._clock.now()),
        }
        found, meta = pod, {"uid": pod.uid}
        with contextlib.suppress(NotFound, Invalid):  # the pod is gone
            for tries_left in reversed(range(_TRIES)):
                if status != "True":
                    meta["resourceVersion"] = found.metadata.resource_version
                try:
                    await self._client.patch(
                        PODS,
                        {"metadata": meta, "status": {"conditions": [condition]}},
                        name=pod.name,
                        namespace=pod.namespace,
                        subresource="status",
                        kind=STRATEGIC_PATCH,
                    )
                    return
                except ApiError as refusal:
                    if not tries_left or not (isinstance(refusal, Conflict) or refusal.outcome_unknown):
                        raise
                found = await self._client.get(Pod, pod.namespace, pod.name)
                if found.uid != pod.uid or (found.spec.node_name and status != "True"):
                    return

    def _record_event(self, pod: Pod, kind: str, reason: str, note: str) -> None:
        self._speaker.record(pod, type=kind, reason=reason, action=_ACTION, note=note)

    def _age_s(self, request: BindRequest) -> float:
        made = request.metadata.creation_timestamp
        return 0.0 if made is None else max(0.0, (self._clock.now() - made).total_seconds())


def truncate_reason(text: str) -> str:
    """As much of a reason as a status takes, in bytes and without what no answer may hold."""
    told = text.encode(errors="replace")
    if len(told) <= MAX_REASON_BYTES:
        return told.decode()
    return f"{told[: MAX_REASON_BYTES - 4].decode(errors='ignore')} ..."
