"""Adds BindRequests to an answer: how far the binder has come with a pod, and nodes where it gave up before.

Called by the explainers of both engines, for engines whose pods the binder binds. Cost: a few lookups.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import PENDING, BindRequest
from bayplan.telemetry.answers import Answer, BindRequestProgress, ExcludedNode

BINDING_NOT_WRITTEN = "the binding to be written"


def with_binding_progress(answer: Answer, requests: BindRequestTracker | None, pod: Pod) -> Answer:
    """The answer for a pod that counts on a node and is not bound yet: what it waits for."""
    request = None if requests is None else requests.request_of(pod)
    if requests is None or request is None:
        return replace(answer, waits_for=BINDING_NOT_WRITTEN)
    answer = _add_excluded_nodes(answer, requests, pod)
    in_s = requests.retry_in_s(request)
    return replace(
        answer,
        request=request_progress(request),
        waits_for=awaited_step(request),
        next_try=_time_in(requests, in_s) if in_s is not None and in_s > 0 else None,
    )


def with_bind_failures(
    answer: Answer, requests: BindRequestTracker | None, pod: Pod, *, otherwise: str | None
) -> Answer:
    """The answer for a pending pod: excluded nodes, and the end of the exclusion if the pod waits for that.

    `otherwise`: what else it waits for; None if it will be tried anyway."""
    if requests is None or pod.uid not in requests.failures.records:
        return answer
    answer, blocked_s = _add_excluded_nodes(answer, requests, pod), requests.failures.backoff_left_s(pod.uid)
    if blocked_s:
        total = sum(each.times for each in answer.excluded_nodes)
        pause = f"the pause after {total} bindings that were given up to end"
        return replace(answer, waits_for=pause, next_try=_time_in(requests, blocked_s))
    was_excluded = any(each.text == EXCLUDED_NODE_REASON for each in answer.reasons)
    ends = [(each.until, each.node) for each in answer.excluded_nodes if each.until is not None]
    if otherwise is None or not was_excluded or not ends:
        return answer
    until, node = min(ends)
    pause = f"the pause after the binding to {node} that was given up to end"
    also = f", or {otherwise}" if otherwise else ""
    return replace(answer, waits_for=f"{pause}{also}", next_try=until)


def request_progress(request: BindRequest) -> BindRequestProgress:
    spec, status = request.spec, request.status
    return BindRequestProgress(
        name=request.key,
        node=spec.selected_node,
        phase=status.phase or PENDING,
        failed_attempts=status.failed_attempts,
        limit=spec.backoff_limit,
        reason=status.reason,
        made_at=request.metadata.creation_timestamp,
        is_ours=request.is_handled_by_bayplan,
    )


def awaited_step(request: BindRequest) -> str:
    """The next step that brings the pod to its node."""
    if request.has_succeeded:
        return "the watch to show it on its node"
    binder = "the binder" if request.is_handled_by_bayplan else "another binder, or `bayplan binder --all`,"
    if request.was_attempted:
        return f"{binder} to try the bind request {request.key} again"
    return f"{binder} to handle the bind request {request.key}"


def _add_excluded_nodes(answer: Answer, requests: BindRequestTracker, pod: Pod) -> Answer:
    excluded_nodes = tuple(
        ExcludedNode(
            node=each.node,
            times=each.times,
            error=each.reason,
            until=_time_in(requests, each.left_s) if each.left_s else None,
        )
        for each in requests.failures.exclusions(pod.uid)
    )
    return replace(answer, excluded_nodes=excluded_nodes)


def _time_in(requests: BindRequestTracker, in_s: float) -> datetime:
    return requests.clock.now() + timedelta(seconds=in_s)
