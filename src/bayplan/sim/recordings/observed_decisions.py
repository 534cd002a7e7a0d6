"""What was decided in a live cluster? Read from the cluster itself: which pods have nodes, and since when.

A pod on a node is a decision of whoever serves its scheduler name; one that was told why it has none is another. Events
say to the microsecond when a pod was bound, the pod's own condition to the second. Several pods may be on their way at
once, so the order of decisions that lie close together is not known; a replay looks for one that explains them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bayplan.batch.model.tasks import Task
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.sim.recordings.recording_file import (
    BATCH_ENGINE,
    POD_ENGINE,
    RecordedChange,
    RecordedDecision,
)

CONCURRENT_WINDOW = timedelta(seconds=2)
"""Decisions this close may have been made in another order; a condition's time is cut to the second."""
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
    """The decisions that a cluster shows, in the order in which they seem to have been made; pods that wait come last.

    `bound_at`: by uid when events say that pods were bound.
    """
    story, pods = DecisionLog(is_batch), []
    for item in objects:
        if isinstance(item, BindRequest):
            story.add_bind_request(item)
        elif isinstance(item, Pod) and serves(item) and is_scheduler_managed(item):
            pods.append(item)
    for pod in sorted((pod for pod in pods if pod.spec.node_name), key=lambda pod: _sort_key(pod, bound_at)):
        story.add_decision(pod, bound_time(pod, bound_at))
    return story.result(pods)[0]


class DecisionLog:
    """Decisions, and changes between them, in order. Pods of one group that were bound at once are one session's."""

    def __init__(self, is_batch: Callable[[Pod], bool]) -> None:
        self._is_batch = is_batch
        self._steps: list[list[tuple[Pod, datetime]] | RecordedChange] = []
        self._requests: dict[str, BindRequest] = {}  # by key of the pod, the newest
        self._handed: dict[str, dict[str, str]] = {}  # by uid of a pod with a node, what its request told the binder
        self._open_steps: dict[str, list[tuple[Pod, datetime]]] = {}  # by group the session of its last pod

    def add_bind_request(self, request: BindRequest) -> None:
        """A pod is about to be bound: what is handed to the binder belongs to that decision."""
        self._requests[request.pod_key] = request

    def add_decision(self, pod: Pod, at: datetime) -> None:
        """A pod was given its node."""
        request = self._requests.get(pod.key)
        if request is not None and _is_bound_as_requested(request, pod):
            self._handed[pod.uid] = dict(request.metadata.annotations)
        if not self._is_batch(pod):
            self._steps.append([(pod, at)])
            return
        job = Task(pod).job or pod.key
        step = self._open_steps.get(job)
        if step is None or at - step[-1][1] > CONCURRENT_WINDOW:
            step = self._open_steps[job] = []
            self._steps.append(step)
        step.append((pod, at))

    def add_change(self, item: KubeObject, at: datetime, *, gone: bool = False) -> None:
        self._steps.append(RecordedChange(item, gone, at))

    def result(self, pods: Iterable[Pod]) -> tuple[list[RecordedDecision], list[RecordedChange]]:
        """All of it; those of the `pods` that wait come last."""
        verdicts: list[RecordedDecision] = []
        changes: list[RecordedChange] = []
        sessions = 0
        for step in self._steps:
            if isinstance(step, RecordedChange):
                changes.append(replace(step, after=len(verdicts)))
                continue
            is_batch = self._is_batch(step[0][0])
            sessions += is_batch
            verdicts += [
                RecordedDecision(
                    pod=pod.key,
                    engine=BATCH_ENGINE if is_batch else POD_ENGINE,
                    node=pod.spec.node_name,
                    session=sessions if is_batch else 0,
                    at=None if at == _UNKNOWN_TIME else at,
                    annotations=self._handed.get(pod.uid, {}),
                )
                for pod, at in step
            ]
        return [*verdicts, *_pending_decisions(pods, self._is_batch, sessions + 1)], changes


def _is_bound_as_requested(request: BindRequest, pod: Pod) -> bool:
    """Whether the pod is where the request wants it. An upstream CRD prunes the uid."""
    return request.spec.selected_node == pod.spec.node_name and request.spec.pod_uid in ("", pod.uid)


def _pending_decisions(pods: Iterable[Pod], is_batch: Callable[[Pod], bool], session: int) -> list[RecordedDecision]:
    """Pods that were told that they wait; of others nobody knows yet."""
    told = [pod for pod in pods if not pod.spec.node_name and _condition(pod, "False") is not None]
    single = [RecordedDecision(pod=pod.key) for pod in told if not is_batch(pod)]
    return single + [
        RecordedDecision(pod=pod.key, engine=BATCH_ENGINE, session=session) for pod in told if is_batch(pod)
    ]


def is_scheduler_managed(pod: Pod) -> bool:
    """Whether a scheduler has, or had, a say in where the pod is; not so of one that a kubelet made by itself."""
    return (
        pod.status.phase not in _ENDED_PHASES
        and not pod.terminating
        and _MIRROR_ANNOTATION not in pod.metadata.annotations
    )


def bound_time(pod: Pod, bound_at: Mapping[str, datetime]) -> datetime:
    """When a pod got its node, as well as that is known."""
    condition = _condition(pod, "True")
    return bound_at.get(pod.uid) or condition or pod.metadata.creation_timestamp or _UNKNOWN_TIME


def _condition(pod: Pod, status: str) -> datetime | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == status:
            return each.last_transition_time or _UNKNOWN_TIME
    return None


def _sort_key(pod: Pod, bound_at: Mapping[str, datetime]) -> tuple[datetime, int, datetime, str]:
    """By time; where that is not told apart as a queue would have it."""
    created = pod.metadata.creation_timestamp or _UNKNOWN_TIME
    return bound_time(pod, bound_at), -pod.priority, created, pod.key
