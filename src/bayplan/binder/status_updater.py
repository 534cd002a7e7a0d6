"""Writes the result of an attempt: status of the request, condition of the pod and event.

Called once for each attempt. A status is written whenever it differs, so that every failure counts. Cost: two
concurrent requests and an event.
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
from bayplan.binder.observer import RESULT_BOUND, RESULT_FAILED, RESULT_RETRIED, BinderObserver
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
from bayplan.objects.kai.bind_request import FAILED, PENDING, SUCCEEDED, BindRequest, BindRequestStatus, retry_delay_s
from bayplan.objects.kai.gpu_sharing import share_annotation
from bayplan.objects.meta import ObjectMeta, format_time
from bayplan.telemetry.events import NORMAL, WARNING, EventRecorder

log = logging.getLogger(__name__)

POD_BOUND_CONDITION = "PodBound"
MAX_REASON_BYTES = 1024
ATTEMPT_IN_PROGRESS = (
    "an attempt is in progress; the binder was restarted, and the previous process may have died of it"
)
ROLLBACK_IN_PROGRESS = "it was given up; its rollback is in progress"
POST_BIND_IN_PROGRESS = (
    "the pod is bound and PostBind runs; the binder was restarted, and the previous process may have died of it"
)
IN_PROGRESS_REASONS = (ATTEMPT_IN_PROGRESS, ROLLBACK_IN_PROGRESS, POST_BIND_IN_PROGRESS)
_ACTION = "Binding"
_CLEAR_TIMEOUT_S = 2.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class BindSucceeded:
    pod: Pod


@dataclass(frozen=True, slots=True)
class BindFailed:
    """Why the pod is not bound. `final`: a retry is useless. `pod`: the pod that gets the condition, if it exists."""

    reason: str
    pod: Pod | None = None
    final: bool = False


class StatusUpdater:
    def __init__(
        self,
        client: Client,
        requests: GroupVersionResource,
        view: InformerCache,
        recorder: EventRecorder,
        confirmed: ConfirmedWrites | None = None,
        *,
        clock: LoopClock,
        chance: random.Random,
        observer: BinderObserver,
    ) -> None:
        self._client = client
        self._requests = requests
        self._view = view
        self._recorder = recorder
        self._confirmed = confirmed or ConfirmedWrites(clock)
        self._clock = clock
        self._chance = chance
        self._observer = observer
        self._status_before_mark: dict[str, BindRequestStatus] = {}
        """By uid: the status of a request before `mark_in_progress`, until its result is written."""

    async def mark_in_progress(self, request: BindRequest, what: str) -> BindRequest:
        """Count an attempt before it starts, because this process may not survive it. Returns the marked request.

        The result is written from the request as it was before: a failure then has the number that is already written,
        and success keeps the number of failures."""
        # Before the write: a lost response does not tell its outcome.
        self._status_before_mark[request.metadata.uid] = request.status
        status = BindRequestStatus(PENDING, what, request.status.failed_attempts + 1)
        with self._view.expect_own_write(request, status):
            await self._write_status(request, status)
        return replace(request, status=status)

    def without_own_mark(self, request: BindRequest) -> BindRequest:
        """The request without a mark of this process, which is alive: its attempts need no crash counting."""
        before, now = self._status_before_mark.get(request.metadata.uid), request.status
        if before is None or now.phase != PENDING or now.reason not in IN_PROGRESS_REASONS:
            return request
        return replace(request, status=before) if now.failed_attempts == before.failed_attempts + 1 else request

    async def clear_mark(self, marked: BindRequest, request: BindRequest) -> None:
        """Restore the status: the process survived, and nothing failed. Limited to 2 s, because the process may
        stop."""
        try:
            async with asyncio.timeout(_CLEAR_TIMEOUT_S):
                with self._view.expect_own_write(marked, request.status):
                    await self._write_status(marked, request.status)
            self._status_before_mark.pop(request.metadata.uid, None)
        except (BayplanError, TimeoutError) as fault:
            log.info("cannot restore the status of bind request %s: the attempt stays counted: %s", request.key, fault)

    async def write_result(
        self, request: BindRequest, outcome: BindSucceeded | BindFailed, took_s: float
    ) -> float | None:
        """Write the result. Returns the delay in seconds until a retry; None: no retry."""
        if isinstance(outcome, BindSucceeded):
            self._observer.observe_attempt(RESULT_BOUND, took_s)
            self._observer.observe_wait(self._age_s(request))
            await self._write_success(request, outcome.pod)
            retry_s = None
        else:
            retry_s = await self._write_failure(request, outcome, took_s)
        self._status_before_mark.pop(request.metadata.uid, None)
        return retry_s

    def record_waiting(self, request: BindRequest) -> None:
        """Record an event for a pod whose attempt waits for long."""
        pod = placeholder_pod(request)
        what = f"Pod {pod.key} is on its way to node {request.spec.selected_node}"
        self._record_event(pod, NORMAL, "BindingWaits", f"{what}: the binder waits for a volume, a device or a plugin")

    async def _write_success(self, request: BindRequest, pod: Pod) -> None:
        node = request.spec.selected_node
        status = BindRequestStatus(SUCCEEDED, "", request.status.failed_attempts)
        await asyncio.gather(
            self._write_status(request, status), self._write_condition(pod, "True", "Bound", f"bound to node {node}")
        )
        self._record_event(pod, NORMAL, "Bound", f"Pod {pod.key} is bound to node {node}")
        if not request.is_fraction and (share := share_annotation(pod)):
            note = f"Pod {pod.key} asks for a part of a GPU ({share}) and got none: {pod.scheduler_name} gives out none"
            self._record_event(pod, WARNING, "NoGPUShare", f"{note}; the pod engine with its plugin GpuSharing does")

    async def _write_failure(self, request: BindRequest, outcome: BindFailed, took_s: float) -> float | None:
        reason, limit = truncate_reason(outcome.reason), request.spec.backoff_limit
        before = request.status.failed_attempts
        attempts = before + 1
        final = outcome.final or limit is None or attempts >= limit
        if final and limit is not None:
            attempts = max(attempts, limit)  # all clients, also upstream's scheduler, recognise a final failure by this
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
                count_text = f"attempt {attempts} of {limit}"
                self._record_event(
                    pod, WARNING, "BindingRetry", f"Pod {pod.key} is not bound to node {node} ({count_text}): {reason}"
                )
        return None if final else self.retry_delay_s(before)

    def retry_delay_s(self, failures: int) -> float:
        """The delay after this many earlier failures: doubling, with jitter, at most slightly above a minute."""
        return retry_delay_s(failures) * (1.0 + 0.1 * self._chance.random())

    async def _write_status(self, request: BindRequest, status: BindRequestStatus) -> None:
        """Write the status to the known version of the request, and after a conflict to the current version."""
        if status == request.status:
            return
        version = self._view.version_of(request)
        for tries_left in reversed(range(_TRIES)):
            try:
                # No attempt may start before the outcome is known: this status could overwrite that of the attempt.
                written = await self._patch_status(request, version, status)
            except ObjectError:
                # The status is written: the request is undecodable, and that is its result. A cache with an earlier
                # version, which it could decode, must know that the request is finished.
                self._view.observe_unreadable(replace(request, status=status))
                return
            except ApiError as refusal:
                if not (isinstance(refusal, Conflict | Invalid | NotFound) or refusal.outcome_unknown):
                    raise
                # Also after a 404: an existing request must not be forgotten because of a wrong response.
                found = await self._view.read_request((request.namespace, request.name))
                if found is None or found.metadata.uid != request.metadata.uid:
                    log.debug("bind request %s was deleted or replaced: %s", request.key, refusal)
                    if found is None:
                        self._view.forget(request)
                    return
                if found.status == status or (found.has_failed and status.phase != SUCCEEDED):
                    self._view.observe(found)  # a request that was given up stays so: its pod may have another node
                    return
                if not tries_left or found.metadata.resource_version == version:
                    raise
                version = found.metadata.resource_version
            else:
                self._view.observe(written)
                return

    async def _patch_status(self, request: BindRequest, version: str, status: BindRequestStatus) -> BindRequest:
        """Patch this version of the request. A patch that is applied late must not revert a later one."""
        fields = {"phase": status.phase, "reason": status.reason, "failedAttempts": status.failed_attempts}
        # JSON patch tests, because the API server ignores the metadata of a status patch for custom resources: a uid
        # there would not prevent a write to another request of the name.
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
        """Write the condition of a pod. A failure has the resourceVersion of the pending pod: applied late, it must not
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
        with contextlib.suppress(NotFound, Invalid):  # the pod was deleted
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
        self._recorder.record(pod, type=kind, reason=reason, action=_ACTION, note=note)

    def _age_s(self, request: BindRequest) -> float:
        created = request.metadata.creation_timestamp
        return 0.0 if created is None else max(0.0, (self._clock.now() - created).total_seconds())


def placeholder_pod(request: BindRequest) -> Pod:
    """What the request says of its pod, without a read."""
    meta = ObjectMeta(name=request.spec.pod_name, namespace=request.namespace, uid=request.pod_uid)
    return Pod(metadata=meta)


def truncate_reason(text: str) -> str:
    """A reason cut to the size of a status field, as valid UTF-8."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_REASON_BYTES:
        return encoded.decode()
    return f"{encoded[: MAX_REASON_BYTES - 4].decode(errors='ignore')} ..."
