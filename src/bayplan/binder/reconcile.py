"""Reconciles one BindRequest. Called for one key at a time, and again for a retry.

Every attempt reads all state again, so that a process that starts after a crash needs no memory. A request that cannot
be carried out ends as Failed with a reason. Attempts are limited, also those that kill the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from msgspec import structs

from bayplan.binder.binder import Binder
from bayplan.binder.cancellable_waits import BindingCancelled
from bayplan.binder.informer_cache import InformerCache, RequestKey
from bayplan.binder.plugin import BindingState, InvalidRequest, RejectBind
from bayplan.binder.status_updater import (
    ATTEMPT_IN_PROGRESS,
    POST_BIND_IN_PROGRESS,
    ROLLBACK_IN_PROGRESS,
    BindFailed,
    BindSucceeded,
    StatusUpdater,
)
from bayplan.binder.validation import annotations_error, request_error
from bayplan.clock import Clock
from bayplan.errors import ApiError, BayplanError, Conflict, LeaseLost, NotFound
from bayplan.objects.core import Node, ObjectMeta, Pod
from bayplan.objects.kai.bind_request import BindRequest

log = logging.getLogger(__name__)

POD_DELETED = "the pod is gone"


class BindRequestReconciler:
    """Brings pods to the state that their requests want."""

    def __init__(self, view: InformerCache, binder: Binder, status_updater: StatusUpdater, clock: Clock) -> None:
        self._view = view
        self._binder = binder
        self._status_updater = status_updater
        self._clock = clock

    async def reconcile(self, key: RequestKey, *, existed_at_start: bool = False) -> float | None:
        """Make one attempt, if the request wants one. Returns the delay in seconds until a retry; None: no retry.

        `existed_at_start`: the request existed when this process started, so the previous process may have died of it.
        Its attempts are counted before they are made."""
        request = self._view.requests.get(key)
        if request is None or not request.is_active or request.has_succeeded:
            return None
        request = self._status_updater.without_own_mark(request)
        start_s = self._clock.monotonic_s()
        outcome = await self._reconcile_request(request, crash_counted=existed_at_start)
        if outcome is None:
            return None
        return await self._status_updater.write_result(request, outcome, self._clock.monotonic_s() - start_s)

    async def fail_unreadable(self, key: RequestKey, uid: str, why: str) -> None:
        """Fail a request that cannot be decoded, finally: with its attempt limit reached."""
        request = await self._view.read_request(key)
        if request is None or request.metadata.uid != uid:
            return
        if not request.is_active or request.has_succeeded:
            return  # its status was written before
        await self._status_updater.write_result(
            request, BindFailed(why, await self._waiting_pod(request), final=True), 0.0
        )

    # internal

    async def _reconcile_request(
        self, request: BindRequest, *, crash_counted: bool
    ) -> BindSucceeded | BindFailed | None:
        """The result of an attempt; None if the request was deleted or replaced."""
        if fault := request_error(request):
            return BindFailed(fault, await self._waiting_pod(request), final=True)
        pod = await self._view.pod(request)
        if pod is None or not request.is_for(pod):
            await self._clean_up_crash_counted(placeholder_pod(request), request, crash_counted=crash_counted)
            reason = "gone" if pod is None else "gone; another pod has its name"
            return BindFailed(f"the pod is {reason}", final=True)
        if pod.spec.node_name:
            return await self._handle_bound_pod(pod, request, crash_counted=crash_counted)
        if pod.terminating:
            await self._clean_up_crash_counted(pod, request, crash_counted=crash_counted)
            return BindFailed("the pod is gone: it is being deleted", pod, final=True)
        if fault := annotations_error(request, pod.metadata.annotations):
            await self._clean_up_crash_counted(pod, request, crash_counted=crash_counted)
            return BindFailed(fault, pod, final=True)
        return await (
            self._attempt_crash_counted(pod, request) if crash_counted else self._attempt_on_node(pod, request)
        )

    async def _attempt_crash_counted(self, pod: Pod, request: BindRequest) -> BindSucceeded | BindFailed | None:
        """Make an attempt that is counted before it starts."""
        if fault := crash_limit_error(request):
            fault = self._node_error(request) or fault
            return await self._fail_after_crash(pod, request, BindFailed(fault, pod, final=True))
        async with self._marked_in_status(request, ATTEMPT_IN_PROGRESS) as marked:
            outcome = await self._attempt_on_node(pod, request)
        if outcome is None:
            await self._status_updater.clear_mark(marked, request)
        return outcome

    async def _fail_after_crash(
        self, pod: Pod, request: BindRequest, outcome: BindFailed
    ) -> BindSucceeded | BindFailed | None:
        """Roll back, then report the failure, for then the pod may be placed on another node. The rollback may kill the
        process, too: it is tried once."""
        if request.status.reason != ROLLBACK_IN_PROGRESS:
            async with self._marked_in_status(request, ROLLBACK_IN_PROGRESS):
                result = await self._roll_back(pod, request, BindingState(), outcome)
            if result is None or isinstance(result, BindSucceeded):
                return result
            outcome = result
        await self._status_updater.write_result(with_last_attempt_counted(request), outcome, 0.0)
        return None

    async def _handle_bound_pod(
        self, pod: Pod, request: BindRequest, *, crash_counted: bool
    ) -> BindSucceeded | BindFailed:
        if not crash_counted:
            return await self._finish_bound_pod(pod, request, BindingState())
        if request.status.reason == POST_BIND_IN_PROGRESS:
            log.error("the binder died after pod %s was bound; PostBind is not repeated", pod.key)
            return result_of_bound_pod(pod, request)
        async with self._marked_in_status(request, POST_BIND_IN_PROGRESS):
            return await self._finish_bound_pod(pod, request, BindingState())

    async def _clean_up_crash_counted(self, pod: Pod, request: BindRequest, *, crash_counted: bool) -> None:
        """Roll back for a pod that will not be bound, unless an earlier rollback killed the process."""
        if not crash_counted:
            await self._clean_up(pod, request)
        elif request.status.reason == ROLLBACK_IN_PROGRESS:
            log.error("the binder died during the rollback for pod %s; the rollback is not repeated", pod.key)
        else:
            async with self._marked_in_status(request, ROLLBACK_IN_PROGRESS):
                await self._clean_up(pod, request)

    @asynccontextmanager
    async def _marked_in_status(self, request: BindRequest, what: str) -> AsyncIterator[BindRequest]:
        """Mark a step in the request's status that may kill the process. A cancelled process removes the mark. One that
        dies cannot, nor one that has lost its lease and may not write."""
        marked = await self._status_updater.mark_in_progress(request, what)
        try:
            yield marked
        except asyncio.CancelledError:
            await self._status_updater.clear_mark(marked, request)
            raise

    async def _waiting_pod(self, request: BindRequest) -> Pod | None:
        """The pod of a request that fails without an attempt, if it exists and is pending: it gets the condition."""
        pod = await self._view.pod(request) if request.has_valid_pod_name else None
        if pod is None or not request.is_for(pod) or pod.spec.node_name or pod.terminating:
            return None
        return pod

    async def _attempt_on_node(self, pod: Pod, request: BindRequest) -> BindSucceeded | BindFailed | None:
        if fault := self._node_error(request):
            return await self._roll_back(pod, request, BindingState(), BindFailed(fault, pod))
        node = self._view.node(request.spec.selected_node)
        assert node is not None
        return await self._attempt(pod, node, request)

    def _node_error(self, request: BindRequest) -> str:
        """Why the node cannot be used; empty if it exists and is not being deleted."""
        node = self._view.node(request.spec.selected_node)
        if node is None:
            return f'node "{request.spec.selected_node}" is not there'
        return f'node "{node.name}" is being deleted' if node.metadata.deletion_timestamp is not None else ""

    async def _attempt(self, pod: Pod, node: Node, request: BindRequest) -> BindSucceeded | BindFailed | None:
        state, refused = BindingState(), False
        outcome: BindFailed | None
        try:
            await self._binder.bind(pod, node, request, state)
            return BindSucceeded(pod)
        except LeaseLost:
            raise  # the new leader continues; nothing that was done is in its way
        except BindingCancelled as fault:
            log.info("%s", fault)
            outcome = None
        except (InvalidRequest, RejectBind) as fault:
            outcome = BindFailed(str(fault), pod, final=True)
        except BayplanError as fault:
            refused = isinstance(fault, NotFound | Conflict)
            outcome = BindFailed(_error_text(fault), pod)
        except Exception as fault:  # a bug costs the request one attempt, and never stops the process
            log.exception("the binding of pod %s failed", pod.key)
            outcome = BindFailed(f"{type(fault).__name__}: {fault}", pod)
        return await self._roll_back(pod, request, state, outcome, refused=refused)

    async def _roll_back(
        self, pod: Pod, request: BindRequest, state: BindingState, outcome: BindFailed | None, *, refused: bool = False
    ) -> BindSucceeded | BindFailed | None:
        """Roll back a failed attempt, unless the pod is on its node after all.

        The pod is read from the API server, because the binding of an earlier process may not be known yet: a running
        pod would lose its devices. If that fails the known pod is used, except when the API server `refused` that pod.
        """
        try:
            found = await self._view.read_pod(request)
        except BayplanError:
            if refused:
                raise
            found = pod
        if found is None or not request.is_for(found):
            await self._clean_up(pod, request, state)
            return outcome and BindFailed(POD_DELETED, final=True)
        if found.spec.node_name:
            result = await self._finish_bound_pod(found, request, state)
            return result if outcome is not None or isinstance(result, BindSucceeded) else None
        await self._clean_up(found, request, state)
        return outcome and (BindFailed(POD_DELETED, final=True) if found.terminating else replace(outcome, pod=found))

    async def _finish_bound_pod(
        self, pod: Pod, request: BindRequest, state: BindingState
    ) -> BindSucceeded | BindFailed:
        """Finish a pod that has a node. On the request's node an earlier attempt bound it: PostBind runs, maybe again.

        On another node, what was prepared here is rolled back."""
        result = result_of_bound_pod(pod, request)
        node = self._view.node(request.spec.selected_node)
        if isinstance(result, BindFailed):
            await self._clean_up(pod, request, state)
        elif node is not None:
            await self._binder.run_post_bind(pod, node, request, state)
        return result

    async def _clean_up(self, pod: Pod, request: BindRequest, state: BindingState | None = None) -> None:
        """Roll back what this or earlier attempts have left for a pod that will not be bound.

        Also if the node was deleted: claims, labels and reservations outlive the node."""
        node = self._view.node(request.spec.selected_node) or placeholder_node(request)
        await self._binder.roll_back(pod, node, request, state or BindingState())


def result_of_bound_pod(pod: Pod, request: BindRequest) -> BindSucceeded | BindFailed:
    """The result for a pod that has a node: success if it is the request's node."""
    if pod.spec.node_name == request.spec.selected_node:
        return BindSucceeded(pod)
    return BindFailed(f'the pod is bound elsewhere: to node "{pod.spec.node_name}"', final=True)


def crash_limit_error(request: BindRequest) -> str:
    """The error of a request whose last attempt started and has no result, and that has no attempt left; empty if it
    may be attempted. One attempt is always allowed: the previous process may not have started it."""
    started, limit = request.status.failed_attempts, _limit(request)
    if started < limit or request.status.reason not in (ATTEMPT_IN_PROGRESS, ROLLBACK_IN_PROGRESS):
        return ""
    return f"the binder died during attempt {limit} of {limit}; it is not tried again"


def with_last_attempt_counted(request: BindRequest) -> BindRequest:
    """The request as before its last attempt, so that the failure that is written next counts that attempt once."""
    return structs.replace(request, status=structs.replace(request.status, failed_attempts=_limit(request) - 1))


def _limit(request: BindRequest) -> int:
    return max(request.spec.backoff_limit or 0, 1)


def placeholder_pod(request: BindRequest) -> Pod:
    """What is known of a deleted pod."""
    meta = ObjectMeta(name=request.spec.pod_name, namespace=request.namespace, uid=request.pod_uid)
    return Pod(metadata=meta)


def placeholder_node(request: BindRequest) -> Node:
    """What is known of a deleted node."""
    return Node(metadata=ObjectMeta(name=request.spec.selected_node))


def _error_text(fault: BayplanError) -> str:
    return fault.details if isinstance(fault, ApiError) else str(fault)
