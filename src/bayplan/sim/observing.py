"""What was decided in a live cluster? Read from the cluster itself: which pods have nodes, and since when.

A pod on a node is a decision of whoever serves its scheduler name; one that was told why it has none is another. Events
say to the microsecond when a pod was bound, the pod's own condition to the second. Several pods may be on their way at
once, so the order of decisions that lie close together is not known; a replay looks for one that explains them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from bayplan.batch.tasks import Task
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.sim.recording import BATCH, Verdict

AT_ONCE = timedelta(seconds=2)
"""Decisions this close may have been made in another order; a condition's time is cut to the second."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_OVER = ("Succeeded", "Failed")
_MIRROR = "kubernetes.io/config.mirror"


def observed(
    objects: Iterable[KubeObject],
    bound_at: Mapping[str, datetime],
    *,
    is_batch: Callable[[Pod], bool],
    serves: Callable[[Pod], bool],
) -> list[Verdict]:
    """The decisions that a cluster shows, in the order in which they seem to have been made; pods that wait come last.

    `bound_at`: by uid when events say that pods were bound.
    """
    pods = [
        pod
        for pod in objects
        if isinstance(pod, Pod)
        and serves(pod)
        and pod.status.phase not in _OVER
        and not pod.terminating
        and _MIRROR not in pod.metadata.annotations
    ]
    placed = sorted((pod for pod in pods if pod.spec.node_name), key=lambda pod: _order(pod, bound_at))
    steps: list[list[Pod]] = []
    open_steps: dict[str, list[Pod]] = {}  # by group the session that its last pod was bound in
    for pod in placed:
        if not is_batch(pod):
            steps.append([pod])
            continue
        job = Task(pod).job or pod.key
        step = open_steps.get(job)
        if step is None or when(pod, bound_at) - when(step[-1], bound_at) > AT_ONCE:
            step = open_steps[job] = []
            steps.append(step)
        step.append(pod)
    verdicts: list[Verdict] = []
    sessions = 0
    for step in steps:
        sessions += is_batch(step[0])
        for pod in step:
            at = when(pod, bound_at)
            told = None if at == _LONG_AGO else at
            if is_batch(pod):
                verdicts.append(Verdict(pod=pod.key, engine=BATCH, node=pod.spec.node_name, session=sessions, at=told))
            else:
                verdicts.append(Verdict(pod=pod.key, node=pod.spec.node_name, at=told))
    return [*verdicts, *_waiting(pods, is_batch, sessions + 1)]


def _waiting(pods: Iterable[Pod], is_batch: Callable[[Pod], bool], session: int) -> list[Verdict]:
    """Pods that were told that they wait; of others nobody knows yet."""
    told = [pod for pod in pods if not pod.spec.node_name and _condition(pod, "False") is not None]
    single = [Verdict(pod=pod.key) for pod in told if not is_batch(pod)]
    return single + [Verdict(pod=pod.key, engine=BATCH, session=session) for pod in told if is_batch(pod)]


def when(pod: Pod, bound_at: Mapping[str, datetime]) -> datetime:
    """When a pod got its node, as well as that is known."""
    condition = _condition(pod, "True")
    return bound_at.get(pod.uid) or condition or pod.metadata.creation_timestamp or _LONG_AGO


def _condition(pod: Pod, status: str) -> datetime | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == status:
            return each.last_transition_time or _LONG_AGO
    return None


def _order(pod: Pod, bound_at: Mapping[str, datetime]) -> tuple[datetime, int, datetime, str]:
    """By time; where that is not told apart as a queue would have it."""
    created = pod.metadata.creation_timestamp or _LONG_AGO
    return when(pod, bound_at), -pod.priority, created, pod.key
