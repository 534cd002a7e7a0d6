"""What is to become of one request? Asked for one key at a time, and again whenever it failed and may be tried again.

Everything is read anew at each attempt, so that a process that starts after a crash needs no memory. What cannot be
carried out, now or ever, ends as Failed with a sentence; nothing is tried for ever, not even what kills the process.
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
    """Makes requests true."""

    def __init__(self, view: InformerCache, carrying_out: Binder, reports: StatusUpdater, clock: Clock) -> None:
        self._view = view
        self._carrying_out = carrying_out
        self._reports = reports
        self._clock = clock

    async def reconcile(self, key: RequestKey, *, inherited: bool = False) -> float | None:
        """One attempt, if the request of this key wants one; after how many seconds to try again, if at all.

        `inherited`: the request was there when this process began, and the one before may have died of it. Its attempts
        are counted before they are made."""
        request = self._view.requests.get(key)
        if request is None or not request.is_active or request.has_succeeded:
            return None
        request = self._reports.without_own_mark(request)
        start_s = self._clock.monotonic_s()
        outcome = await self._reconcile_request(request, inherited=inherited)
        if outcome is None:
            return None
        return await self._reports.write_result(request, outcome, self._clock.monotonic_s() - start_s)

    async def fail_unreadable(self, key: RequestKey, uid: str, why: str) -> None:
        """A request that cannot be read is given up, once: with its limit reached, whatever that is."""
        request = await self._view.read_request(key)
        if request is None or request.metadata.uid != uid:
            return
        if not request.is_active or request.has_succeeded:
            return  # we, or an earlier one of us, have told it before
        await self._reports.write_result(request, BindFailed(why, await self._waiting_pod(request), final=True), 0.0)

    # inside -----------------------------------------------------------------------------------------------------

    async def _reconcile_request(self, request: BindRequest, *, inherited: bool) -> BindSucceeded | BindFailed | None:
        """What came of it; None where the request itself is gone."""
        if fault := request_error(request):
            return BindFailed(fault, await self._waiting_pod(request), final=True)
        pod = await self._view.pod(request)
        if pod is None or not request.is_for(pod):
            await self._clean_up_crash_counted(placeholder_pod(request), request, inherited=inherited)
            was = "gone" if pod is None else "gone; another pod has its name"
            return BindFailed(f"the pod is {was}", final=True)
        if pod.spec.node_name:
            return await self._handle_bound_pod(pod, request, inherited=inherited)
        if pod.terminating:
            await self._clean_up_crash_counted(pod, request, inherited=inherited)
            return BindFailed("the pod is gone: it is being deleted", pod, final=True)
        if fault := annotations_error(request, pod.metadata.annotations):
            await self._clean_up_crash_counted(pod, request, inherited=inherited)
            return BindFailed(fault, pod, final=True)
        return await (self._attempt_crash_counted(pod, request) if inherited else self._attempt_on_node(pod, request))

    async def _attempt_crash_counted(self, pod: Pod, request: BindRequest) -> BindSucceeded | BindFailed | None:
        """An attempt that is counted before it is made."""
        if fault := crash_limit_error(request):
            fault = self._node_error(request) or fault
            return await self._fail_after_crash(pod, request, BindFailed(fault, pod, final=True))
        async with self._marked_in_status(request, ATTEMPT_IN_PROGRESS) as begun:
            outcome = await self._attempt_on_node(pod, request)
        if outcome is None:
            await self._reports.clear_mark(begun, request)
        return outcome

    async def _fail_after_crash(
        self, pod: Pod, request: BindRequest, outcome: BindFailed
    ) -> BindSucceeded | BindFailed | None:
        """What was prepared is taken back before anybody is told, for then the pod may go elsewhere. That may kill the
        process, too: it is tried once."""
        if request.status.reason != ROLLBACK_IN_PROGRESS:
            async with self._marked_in_status(request, ROLLBACK_IN_PROGRESS):
                settled = await self._roll_back(pod, request, BindingState(), outcome)
            if settled is None or isinstance(settled, BindSucceeded):
                return settled
            outcome = settled
        await self._reports.write_result(with_last_attempt_counted(request), outcome, 0.0)
        return None

    async def _handle_bound_pod(self, pod: Pod, request: BindRequest, *, inherited: bool) -> BindSucceeded | BindFailed:
        if not inherited:
            return await self._finish_bound_pod(pod, request, BindingState())
        if request.status.reason == POST_BIND_IN_PROGRESS:
            log.error("the binder died after pod %s was bound; its plugins are not told again", pod.key)
            return result_of_bound_pod(pod, request)
        async with self._marked_in_status(request, POST_BIND_IN_PROGRESS):
            return await self._finish_bound_pod(pod, request, BindingState())

    async def _clean_up_crash_counted(self, pod: Pod, request: BindRequest, *, inherited: bool) -> None:
        """The pod does not come. What attempts have left for it goes; if that killed the process before, it stays."""
        if not inherited:
            await self._clean_up(pod, request)
        elif request.status.reason == ROLLBACK_IN_PROGRESS:
            log.error("the binder died while it took back what it had prepared for pod %s; that stays", pod.key)
        else:
            async with self._marked_in_status(request, ROLLBACK_IN_PROGRESS):
                await self._clean_up(pod, request)

    @asynccontextmanager
    async def _marked_in_status(self, request: BindRequest, what: str) -> AsyncIterator[BindRequest]:
        """What may kill the process is written down before. Whoever ends in order takes that back: only who dies does
        not, nor who has lost the lease and may write no more."""
        begun = await self._reports.mark_in_progress(request, what)
        try:
            yield begun
        except asyncio.CancelledError:
            await self._reports.clear_mark(begun, request)
            raise

    async def _waiting_pod(self, request: BindRequest) -> Pod | None:
        """Who is to be told that a request which was never tried is given up: its pod, if that is there and waits."""
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
        """Why nothing can be brought to the node; nothing where it is there to stay."""
        node = self._view.node(request.spec.selected_node)
        if node is None:
            return f'node "{request.spec.selected_node}" is not there'
        return f'node "{node.name}" is being deleted' if node.metadata.deletion_timestamp is not None else ""

    async def _attempt(self, pod: Pod, node: Node, request: BindRequest) -> BindSucceeded | BindFailed | None:
        state, refused = BindingState(), False
        outcome: BindFailed | None
        try:
            await self._carrying_out.bind(pod, node, request, state)
            return BindSucceeded(pod)
        except LeaseLost:
            raise  # whoever leads now does it; nothing that we did is in their way
        except BindingCancelled as fault:
            log.info("%s", fault)
            outcome = None
        except (InvalidRequest, RejectBind) as fault:
            outcome = BindFailed(str(fault), pod, final=True)
        except BayplanError as fault:
            refused = isinstance(fault, NotFound | Conflict)
            outcome = BindFailed(_error_text(fault), pod)
        except Exception as fault:  # a bug of ours costs the request one attempt, and never the process
            log.exception("the binding of pod %s broke", pod.key)
            outcome = BindFailed(f"{type(fault).__name__}: {fault}", pod)
        return await self._roll_back(pod, request, state, outcome, refused=refused)

    async def _roll_back(
        self, pod: Pod, request: BindRequest, state: BindingState, outcome: BindFailed | None, *, refused: bool = False
    ) -> BindSucceeded | BindFailed | None:
        """It failed: what was done for the pod is undone, unless the pod is on its node after all.

        The server is asked, for what an earlier process did may not have been told yet: a pod that starts would lose
        its devices. Without an answer the pod is what it was, except where the server has `refused` it as that.
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
            settled = await self._finish_bound_pod(found, request, state)
            return settled if outcome is not None or isinstance(settled, BindSucceeded) else None
        await self._clean_up(found, request, state)
        return outcome and (BindFailed(POD_DELETED, final=True) if found.terminating else replace(outcome, pod=found))

    async def _finish_bound_pod(
        self, pod: Pod, request: BindRequest, state: BindingState
    ) -> BindSucceeded | BindFailed:
        """The pod has a node. If it is ours, an earlier attempt put it there: the plugins are told, maybe once more.

        If it is another, nobody comes for what was prepared here."""
        where = result_of_bound_pod(pod, request)
        node = self._view.node(request.spec.selected_node)
        if isinstance(where, BindFailed):
            await self._clean_up(pod, request, state)
        elif node is not None:
            await self._carrying_out.run_post_bind(pod, node, request, state)
        return where

    async def _clean_up(self, pod: Pod, request: BindRequest, state: BindingState | None = None) -> None:
        """What attempts, this one or those before a crash, have left for a pod that does not come.

        A node that is gone is no reason to leave it: claims, labels and reservations outlive the node."""
        node = self._view.node(request.spec.selected_node) or placeholder_node(request)
        await self._carrying_out.roll_back(pod, node, request, state or BindingState())


def result_of_bound_pod(pod: Pod, request: BindRequest) -> BindSucceeded | BindFailed:
    """Of a pod that has a node: whether that is the one it was meant for."""
    if pod.spec.node_name == request.spec.selected_node:
        return BindSucceeded(pod)
    return BindFailed(f'the pod is bound elsewhere: to node "{pod.spec.node_name}"', final=True)


def crash_limit_error(request: BindRequest) -> str:
    """What to say of a request whose last attempt was begun and never told, and that has no attempt left; nothing
    where it may be tried. One attempt it has in any case: nobody knows whether the process before came to it."""
    begun, limit = request.status.failed_attempts, _limit(request)
    if begun < limit or request.status.reason not in (ATTEMPT_IN_PROGRESS, ROLLBACK_IN_PROGRESS):
        return ""
    return f"the binder died in the midst of attempt {limit} of {limit}; it is not tried again"


def with_last_attempt_counted(request: BindRequest) -> BindRequest:
    """The request before the attempt that is the last: what is told of it is counted already."""
    return structs.replace(request, status=structs.replace(request.status, failed_attempts=_limit(request) - 1))


def _limit(request: BindRequest) -> int:
    return max(request.spec.backoff_limit or 0, 1)


def placeholder_pod(request: BindRequest) -> Pod:
    """As much as is known of a pod that is gone."""
    meta = ObjectMeta(name=request.spec.pod_name, namespace=request.namespace, uid=request.pod_uid)
    return Pod(metadata=meta)


def placeholder_node(request: BindRequest) -> Node:
    """The same of a node."""
    return Node(metadata=ObjectMeta(name=request.spec.selected_node))


def _error_text(fault: BayplanError) -> str:
    return fault.details if isinstance(fault, ApiError) else str(fault)
