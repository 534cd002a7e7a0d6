"""Lifecycle policies of Volcano jobs: finds the events of a job and the action that its policies require.

Each sync derives the events from the pods' state. A failed pod stays visible until it is deleted, so no event is lost
by a refused write or a restart of the controller. Only evictions come from the watch, once. Pure. Cost: a walk over the
job's pods and policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bayplan.admission.job_validation import policy_events
from bayplan.admission.volcano_defaults import MAX_RETRY, replicas
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.controllers.core.api_types import PodFields, Tree
from bayplan.controllers.volcano.job_view import JobView, is_out_of_sync, partition_of, task_of, version_of
from bayplan.objects.volcano.constants import (
    ANY_EVENT,
    JOB_UNKNOWN,
    POD_EVICTED,
    POD_FAILED,
    POD_PENDING,
    SYNC_JOB,
    TASK_COMPLETED,
    TASK_FAILED,
)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Event that a policy may name."""

    event: str
    since: datetime
    task: str = ""
    pod: str = ""
    partition: str = ""
    exit_code: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class JobAction:
    name: str = SYNC_JOB
    task: str = ""
    pod: str = ""
    partition: str = ""
    reason: str = ""


def job_events(
    job: JobView,
    pods: Sequence[PodFields],
    *,
    group_phase: str = "",
    evicted: Iterable[JobEvent] = (),
    seen: Mapping[str, datetime],
    now: datetime,
) -> Iterator[JobEvent]:
    """Yield all current events, those of single pods first. `seen`: time since when a pod is known as failed."""
    current_pods = [pod for pod in pods if not is_out_of_sync(pod) and version_of(pod) >= job.version]
    for pod in current_pods:
        if pod.status.phase == "Failed":
            yield _pod_event(pod, POD_FAILED, seen.get(pod.uid, now), _exit_code(pod))
        elif (pod.status.phase or "Pending") == "Pending":
            yield _pod_event(pod, POD_PENDING, pod.metadata.creation_timestamp or now)
    running = {pod.name for pod in current_pods if pod.status.phase == "Running"}
    yield from (each for each in evicted if each.version >= job.version and each.pod not in running)
    for task in job.tasks:
        of_task = [pod for pod in current_pods if task_of(pod) == task["name"]]
        count = replicas(task)
        if count and sum(pod.status.phase == "Succeeded" for pod in of_task) >= count:
            yield JobEvent(TASK_COMPLETED, now, task["name"], version=job.version)
        limit = int(task.get("maxRetry") or MAX_RETRY)
        if count and limit != -1 and _restarts(of_task) >= limit:
            yield JobEvent(TASK_FAILED, now, task["name"], version=job.version)
    if group_phase == "Unknown":
        yield JobEvent(JOB_UNKNOWN, now, version=job.version)


def with_first_seen_times(
    current_events: Iterable[JobEvent], seen: dict[tuple[str, str, int], datetime]
) -> list[JobEvent]:
    """Set the first-seen time of task and group events. Entries of `seen` that are over are removed: their time starts
    anew when they happen again."""
    found = [
        each if each.pod else replace(each, since=seen.setdefault((each.event, each.task, each.version), each.since))
        for each in current_events
    ]
    active = {(each.event, each.task, each.version) for each in found if not each.pod}
    for ended in seen.keys() - active:
        del seen[ended]
    return found


def _pod_event(pod: PodFields, event: str, since: datetime, exit_code: int = 0) -> JobEvent:
    return JobEvent(event, since, task_of(pod), pod.name, partition_of(pod), exit_code, version_of(pod))


def _exit_code(pod: PodFields) -> int:
    """Exit code of the first container only, as in Volcano."""
    statuses = pod.status.container_statuses
    ended = statuses[0].state.terminated if statuses else None
    return ended.exit_code if ended is not None else 0


def _restarts(pods: Iterable[PodFields]) -> int:
    live = (pod for pod in pods if pod.status.phase in ("Running", "Pending"))
    return sum(
        each.restart_count
        for pod in live
        for each in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )


def due_action(
    job: JobView, current_events: Iterable[JobEvent], now: datetime
) -> tuple[JobAction | None, float | None]:
    """Action that is due now, and the seconds until the next timeout if nothing changes."""
    soonest: float | None = None
    for each in current_events:
        found = matching_policy(job, each)
        if found is None:
            continue
        wait_s = timeout_s(found) - (now - each.since).total_seconds()
        if timeout_s(found) and wait_s > 0:
            soonest = wait_s if soonest is None else min(soonest, wait_s)
        else:
            return JobAction(str(found["action"]), each.task, each.pod, each.partition, each.event), None
    return None, soonest


def matching_policy(job: JobView, current_events: JobEvent) -> Tree | None:
    """Policy of an event: the task's own policies come before the job's."""
    task = job.task(current_events.task) if current_events.task else None
    task_policies = (task or {}).get("policies") or []
    for policy in (*task_policies, *(job.spec.get("policies") or ())):
        events = policy_events(policy)
        matches = current_events.event in events or ANY_EVENT in events
        if matches and (current_events.event != POD_PENDING or policy.get("timeout")):
            return dict(policy)
        if (
            current_events.event == POD_FAILED
            and policy.get("exitCode")
            and policy["exitCode"] == current_events.exit_code
        ):
            return dict(policy)
    return None


def timeout_s(policy: Tree) -> float:
    """Timeout of a policy; invalid text counts as 0."""
    try:
        return parse_duration(str(policy["timeout"])).seconds if policy.get("timeout") else 0.0
    except DurationError:
        return 0.0


def eviction_event(pod: PodFields, now: datetime) -> JobEvent | None:
    """Event of a deleted pod; None when the controller deleted it."""
    return None if is_out_of_sync(pod) else _pod_event(pod, POD_EVICTED, now)
