"""Reconciles one BindRequest. Called for one key at a time, and again for a retry.

`classify` is the table of states: for each state of a request, its pod and its node, what is done and which result is
written. Every attempt reads all state again, so that a process that starts after a crash needs no memory. A request
that cannot be carried out ends as Failed with a reason. Attempts are limited, also those that kill the process.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from enum import Enum

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
    placeholder_pod,
)
from bayplan.binder.validation import annotations_error, request_error
from bayplan.clock import Clock
from bayplan.errors import ApiError, BayplanError, Conflict, LeaseLost, NotFound
from bayplan.objects.core import Node, ObjectMeta, Pod
from bayplan.objects.kai.bind_request import BindRequest

log = logging.getLogger(__name__)

POD_DELETED = "the pod is gone"
_NOT_REPEATED = {
    POST_BIND_IN_PROGRESS: "the binder died after pod %s was bound; PostBind is not repeated",
    ROLLBACK_IN_PROGRESS: "the binder died during the rollback for pod %s; the rollback is not repeated",
}
"""Log messages by mark. A step with another mark is repeated after a crash."""

Result = BindSucceeded | BindFailed


class ReconcileAction(Enum):
    """What is done for a request before its result is written."""

    NOTHING = 0
    ATTEMPT = 1
    POST_BIND = 2
    ROLL_BACK = 3
    """Roll back what this or earlier attempts have left for a pod that will not be bound."""
    ROLL_BACK_UNLESS_BOUND = 4
    """Read the pod again, and roll back unless it is bound after all."""


@dataclass(frozen=True, slots=True)
class ReconcileStep:
    """What is done in a state. `result`: what is written afterwards, unless the action finds another result."""

    action: ReconcileAction
    result: Result
    mark: str = ""
    """The status that is written first if the previous process may have died of this step."""
    is_after_limit: bool = False
    """Whether the last allowed attempt killed a process. The failure counts that attempt, and no other."""


def classify(request: BindRequest, pod: Pod | None, node: Node | None, *, existed_at_start: bool) -> ReconcileStep:
    """The step for the first state that applies. `existed_at_start`: the previous process may have made attempts."""
    if fault := request_error(request):
        return ReconcileStep(ReconcileAction.NOTHING, BindFailed(fault, pending_pod(request, pod), final=True))
    if pod is None:
        return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(POD_DELETED, final=True), ROLLBACK_IN_PROGRESS)
    if not request.is_for(pod):
        fault = f"{POD_DELETED}; another pod has its name"
        return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(fault, final=True), ROLLBACK_IN_PROGRESS)
    if pod.spec.node_name:
        return step_of_bound_pod(request, pod)
    if pod.terminating:
        fault = f"{POD_DELETED}: it is being deleted"
        return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(fault, pod, final=True), ROLLBACK_IN_PROGRESS)
    if fault := annotations_error(request, pod.metadata.annotations):
        return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(fault, pod, final=True), ROLLBACK_IN_PROGRESS)
    node_fault = node_error(request, node)
    if existed_at_start and (fault := crash_limit_error(request)):
        failure = BindFailed(node_fault or fault, pod, final=True)
        return ReconcileStep(ReconcileAction.ROLL_BACK_UNLESS_BOUND, failure, ROLLBACK_IN_PROGRESS, is_after_limit=True)
    if node_fault:
        return ReconcileStep(ReconcileAction.ROLL_BACK_UNLESS_BOUND, BindFailed(node_fault, pod), ATTEMPT_IN_PROGRESS)
    return ReconcileStep(ReconcileAction.ATTEMPT, BindSucceeded(pod), ATTEMPT_IN_PROGRESS)


def step_of_bound_pod(request: BindRequest, pod: Pod) -> ReconcileStep:
    """An earlier attempt or another client bound the pod. On the request's node PostBind runs, maybe again."""
    if pod.spec.node_name == request.spec.selected_node:
        return ReconcileStep(ReconcileAction.POST_BIND, BindSucceeded(pod), POST_BIND_IN_PROGRESS)
    fault = f'the pod is bound elsewhere: to node "{pod.spec.node_name}"'
    return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(fault, final=True), ROLLBACK_IN_PROGRESS)


def step_after_failure(request: BindRequest, pod: Pod | None, failure: BindFailed) -> ReconcileStep:
    """The step after a failed attempt, for the pod as it is then."""
    if pod is None or not request.is_for(pod):
        return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(POD_DELETED, final=True))
    if pod.spec.node_name:
        return step_of_bound_pod(request, pod)
    if pod.terminating:
        return ReconcileStep(ReconcileAction.ROLL_BACK, BindFailed(POD_DELETED, final=True))
    return ReconcileStep(ReconcileAction.ROLL_BACK, replace(failure, pod=pod))


class BindRequestReconciler:
    def __init__(self, view: InformerCache, binder: Binder, status_updater: StatusUpdater, clock: Clock) -> None:
        self._view = view
        self._binder = binder
        self._status_updater = status_updater
        self._clock = clock

    async def reconcile(self, key: RequestKey, *, existed_at_start: bool = False) -> float | None:
        """Take the step of the request, if it has one. Returns the delay in seconds until a retry; None: no retry.

        `existed_at_start`: the request existed when this process started, so the previous process may have died of it.
        Its steps are marked in the status, and its attempts counted, before they are made."""
        request = self._view.requests.get(key)
        if request is None or not request.is_active or request.has_succeeded:
            return None
        request = self._status_updater.without_own_mark(request)
        start_s = self._clock.monotonic_s()
        pod = await self._view.pod(request)
        node = self._view.node(request.spec.selected_node)
        step = classify(request, pod, node, existed_at_start=existed_at_start)
        if pod is None or not request.is_for(pod):
            pod = placeholder_pod(request)
        if not existed_at_start or not step.mark:
            result = await self._perform(step, pod, node, request, BindingState())
        elif step.mark == request.status.reason and step.mark in _NOT_REPEATED:
            if not step.is_after_limit:
                log.error(_NOT_REPEATED[step.mark], pod.key)
            result = step.result
        else:
            result = await self._perform_marked(step, pod, node, request)
        if result is None:
            return None
        took_s = self._clock.monotonic_s() - start_s
        if step.is_after_limit and isinstance(result, BindFailed):
            request, took_s = with_last_attempt_counted(request), 0.0
        return await self._status_updater.write_result(request, result, took_s)

    async def fail_unreadable(self, key: RequestKey, uid: str, why: str) -> None:
        """Fail a request that cannot be decoded, finally: with its attempt limit reached."""
        request = await self._view.read_request(key)
        if request is None or request.metadata.uid != uid:
            return
        if not request.is_active or request.has_succeeded:
            return  # its status was written before
        pod = pending_pod(request, await self._view.pod(request))
        await self._status_updater.write_result(request, BindFailed(why, pod, final=True), 0.0)

    # internal

    async def _perform_marked(
        self, step: ReconcileStep, pod: Pod, node: Node | None, request: BindRequest
    ) -> Result | None:
        """Perform a step that may kill the process, with a mark in the request's status. A cancelled process removes
        the mark. One that dies cannot, nor one that has lost its lease and may not write."""
        marked = await self._status_updater.mark_in_progress(request, step.mark)
        try:
            result = await self._perform(step, pod, node, request, BindingState())
        except asyncio.CancelledError:
            await self._status_updater.clear_mark(marked, request)
            raise
        if result is None:
            await self._status_updater.clear_mark(marked, request)
        return result

    async def _perform(
        self, step: ReconcileStep, pod: Pod, node: Node | None, request: BindRequest, state: BindingState
    ) -> Result | None:
        """Perform the action of a step. Returns the result; None if the request was deleted or replaced."""
        match step:
            case ReconcileStep(ReconcileAction.ATTEMPT) if node is not None:
                return await self._attempt(pod, node, request, state)
            case ReconcileStep(ReconcileAction.ROLL_BACK_UNLESS_BOUND, BindFailed() as failure):
                return await self._roll_back(pod, request, state, failure)
            case ReconcileStep(ReconcileAction.ROLL_BACK):
                # Also if the node was deleted: claims, labels and reservations outlive it.
                await self._binder.roll_back(pod, node or placeholder_node(request), request, state)
            case ReconcileStep(ReconcileAction.POST_BIND) if node is not None:
                await self._binder.run_post_bind(pod, node, request, state)
        return step.result

    async def _attempt(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> Result | None:
        refused = cancelled = False
        try:
            await self._binder.bind(pod, node, request, state)
            return BindSucceeded(pod)
        except LeaseLost:
            raise  # the new leader continues; nothing that was done is in its way
        except BindingCancelled as fault:
            log.info("%s", fault)
            cancelled, failure = True, BindFailed(str(fault), pod)
        except (InvalidRequest, RejectBind) as fault:
            failure = BindFailed(str(fault), pod, final=True)
        except BayplanError as fault:
            refused = isinstance(fault, NotFound | Conflict)
            failure = BindFailed(fault.details if isinstance(fault, ApiError) else str(fault), pod)
        except Exception as fault:  # a bug costs the request one attempt, and never stops the process
            log.exception("the binding of pod %s failed", pod.key)
            failure = BindFailed(f"{type(fault).__name__}: {fault}", pod)
        result = await self._roll_back(pod, request, state, failure, refused=refused)
        return None if cancelled and isinstance(result, BindFailed) else result

    async def _roll_back(
        self, pod: Pod, request: BindRequest, state: BindingState, failure: BindFailed, *, refused: bool = False
    ) -> Result | None:
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
        step = step_after_failure(request, found, failure)
        if found is None or not request.is_for(found):
            found = pod
        return await self._perform(step, found, self._view.node(request.spec.selected_node), request, state)


def pending_pod(request: BindRequest, pod: Pod | None) -> Pod | None:
    """The pod of a request that fails without an attempt, if it exists and is pending: it gets the condition."""
    if pod is None or not request.is_for(pod) or pod.spec.node_name or pod.terminating:
        return None
    return pod


def node_error(request: BindRequest, node: Node | None) -> str:
    """Why the node cannot be used; empty if it exists and is not being deleted."""
    if node is None:
        return f'node "{request.spec.selected_node}" is not there'
    return f'node "{node.name}" is being deleted' if node.metadata.deletion_timestamp is not None else ""


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


def placeholder_node(request: BindRequest) -> Node:
    """What is known of a deleted node."""
    return Node(metadata=ObjectMeta(name=request.spec.selected_node))
