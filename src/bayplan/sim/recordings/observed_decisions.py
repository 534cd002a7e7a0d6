"""Decisions of a live cluster, read from its objects: the pods with nodes, and when they were bound.

A bound pod is a decision of the scheduler that serves it; a pod with a PodScheduled=False condition is another one. The
time of binding comes from events, in microseconds, or from the pod's condition, in seconds. Several bindings may be in
flight at once, so the order of decisions that are close together is unknown. A replay looks for an order that explains
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bayplan.batch.model.tasks import Task
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.sim.recordings.recording_file import BATCH_ENGINE, POD_ENGINE, RecordedChange, RecordedDecision

CONCURRENT_WINDOW = timedelta(seconds=2)
"""Decisions this close may have been made in another order; the time of a condition is truncated to seconds."""
_UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)
_ENDED_PHASES = ("Succeeded", "Failed")
_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


def read_observed_decisions(
    objects: Iterable[KubeObject],
    bound_at: Mapping[str, datetime],
    *,
    is_batch: Callable[[Pod], bool],
    serves: Callable[[Pod], bool],
) -> list[RecordedDecision]:
    """Return the decisions in their probable order; waiting pods come last.

    `bound_at`: time of binding by pod uid, from events.
    """
    log, pods = DecisionLog(is_batch), []
    for item in objects:
        if isinstance(item, BindRequest):
            log.add_bind_request(item)
        elif isinstance(item, Pod) and serves(item) and is_scheduler_managed(item):
            pods.append(item)
    for pod in sorted((pod for pod in pods if pod.spec.node_name), key=lambda pod: _sort_key(pod, bound_at)):
        log.add_decision(pod, bound_time(pod, bound_at))
    return log.result(pods)[0]


class DecisionLog:
    """Decisions and changes in order. Pods of one group that are bound at the same time belong to one session."""

    def __init__(self, is_batch: Callable[[Pod], bool]) -> None:
        self._is_batch = is_batch
        self._steps: list[list[tuple[Pod, datetime]] | RecordedChange] = []
        self._requests: dict[str, BindRequest] = {}  # latest request by pod key
        self._annotations: dict[str, dict[str, str]] = {}  # annotations of the request, by uid of a bound pod
        self._open_steps: dict[str, list[tuple[Pod, datetime]]] = {}  # session of the last bound pod, by group

    def add_bind_request(self, request: BindRequest) -> None:
        """Store a BindRequest; its annotations become part of the decision."""
        self._requests[request.pod_key] = request

    def add_decision(self, pod: Pod, at: datetime) -> None:
        """Add the decision that a pod was bound."""
        request = self._requests.get(pod.key)
        if request is not None and _is_bound_as_requested(request, pod):
            self._annotations[pod.uid] = dict(request.metadata.annotations)
        if not self._is_batch(pod):
            self._steps.append([(pod, at)])
            return
        job = Task(pod).job or pod.key
        step = self._open_steps.get(job)
        if step is None or at - step[-1][1] > CONCURRENT_WINDOW:
            step = self._open_steps[job] = []
            self._steps.append(step)
        step.append((pod, at))

    def add_change(self, item: KubeObject, at: datetime, *, deleted: bool = False) -> None:
        self._steps.append(RecordedChange(item, deleted, at))

    def result(self, pods: Iterable[Pod]) -> tuple[list[RecordedDecision], list[RecordedChange]]:
        """All decisions and changes; waiting pods among `pods` come last."""
        decisions: list[RecordedDecision] = []
        changes: list[RecordedChange] = []
        sessions = 0
        for step in self._steps:
            if isinstance(step, RecordedChange):
                changes.append(replace(step, after=len(decisions)))
                continue
            is_batch = self._is_batch(step[0][0])
            sessions += is_batch
            decisions += [
                RecordedDecision(
                    pod=pod.key,
                    engine=BATCH_ENGINE if is_batch else POD_ENGINE,
                    node=pod.spec.node_name,
                    session=sessions if is_batch else 0,
                    at=None if at == _UNKNOWN_TIME else at,
                    annotations=self._annotations.get(pod.uid, {}),
                )
                for pod, at in step
            ]
        return [*decisions, *_pending_decisions(pods, self._is_batch, sessions + 1)], changes


def _is_bound_as_requested(request: BindRequest, pod: Pod) -> bool:
    """Whether the pod is on the requested node. The upstream CRD prunes the pod uid, so it may be empty."""
    return request.spec.selected_node == pod.spec.node_name and request.spec.pod_uid in ("", pod.uid)


def _pending_decisions(pods: Iterable[Pod], is_batch: Callable[[Pod], bool], session: int) -> list[RecordedDecision]:
    """Decisions for waiting pods with a PodScheduled=False condition; other waiting pods have no decision so far."""
    unschedulable = [pod for pod in pods if not pod.spec.node_name and _condition(pod, "False") is not None]
    decisions = [RecordedDecision(pod=pod.key) for pod in unschedulable if not is_batch(pod)]
    return decisions + [
        RecordedDecision(pod=pod.key, engine=BATCH_ENGINE, session=session) for pod in unschedulable if is_batch(pod)
    ]


def is_scheduler_managed(pod: Pod) -> bool:
    """Whether a scheduler decides about the pod: it is running or waiting, and is no mirror pod."""
    return (
        pod.status.phase not in _ENDED_PHASES
        and not pod.terminating
        and _MIRROR_ANNOTATION not in pod.metadata.annotations
    )


def bound_time(pod: Pod, bound_at: Mapping[str, datetime]) -> datetime:
    """Best known time of binding."""
    condition = _condition(pod, "True")
    return bound_at.get(pod.uid) or condition or pod.metadata.creation_timestamp or _UNKNOWN_TIME


def _condition(pod: Pod, status: str) -> datetime | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == status:
            return each.last_transition_time or _UNKNOWN_TIME
    return None


def _sort_key(pod: Pod, bound_at: Mapping[str, datetime]) -> tuple[datetime, int, datetime, str]:
    """Sort by time of binding; for equal times by priority and creation, as a queue does."""
    created = pod.metadata.creation_timestamp or _UNKNOWN_TIME
    return bound_time(pod, bound_at), -pod.priority, created, pod.key
