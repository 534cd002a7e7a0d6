"""What does a kubelet do next with this pod? A pure function of the pod, the moment and the habits of the cluster.

Asked whenever the pod changes or its time has come. A kubelet that always can: containers start at once, a resize is
done when it is seen, and a pod ends when it was told to and not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bayplan.config.duration import SECOND, DurationError, parse_duration
from bayplan.controllers.node_template import ADDRESS
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.meta import whole_time

RUNS_FOR = "bayplan.dev/runs-for"
STOPS_AFTER = "bayplan.dev/stops-after"

_READY = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_RESIZING = ("PodResizePending", "PodResizeInProgress")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHabits:
    """What pods do that say nothing themselves."""

    starts_after_s: float = 0.0
    runs_for_s: float | None = None
    """After how long they succeed; None: they run until they are deleted."""
    stops_after_s: float = 0.0
    """How long they take to stop when they are deleted, within their grace period."""


@dataclass(frozen=True, slots=True)
class Report:
    """Patch the pod's status."""

    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """The pod has stopped: delete it with no grace left, after telling its end where somebody waits for that."""

    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after that many seconds."""

    seconds: float


Step = Report | Remove | Wait | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the kubelet knows of a pod to the microsecond, where the API keeps whole seconds or nothing."""

    seen: datetime
    started: datetime | None = None
    stopping: datetime | None = None


def next_step(pod: Pod, *, now: datetime, memory: Memory, habits: PodHabits) -> Step:
    """What is to be done now, if anything."""
    if pod.terminating:
        return _stopping(pod, now, memory, habits)
    if pod.status.phase in ("Succeeded", "Failed"):
        return None
    if pod.status.phase != "Running":
        wait_s = _left_s(memory.seen, habits.starts_after_s, now)
        return Wait(wait_s) if wait_s > 0 else Report(_running(pod, now))
    if resized(pod):
        return Report(_resized_status(pod, now))
    return _finishing(pod, now, memory, habits)


def annotation_problems(pod: Pod) -> list[str]:
    """What the pod's author has to correct; until then the annotation counts for nothing."""
    problems = []
    for annotation in (RUNS_FOR, STOPS_AFTER):
        text = pod.metadata.annotations.get(annotation)
        if text is not None and _seconds(text) is None:
            problems.append(f"{annotation}: {text!r} is no duration; write one such as 90s or 1h30m")
    return problems


def _told_s(pod: Pod, annotation: str) -> float | None:
    text = pod.metadata.annotations.get(annotation)
    return _seconds(text) if text is not None else None


def _seconds(text: str) -> float | None:
    try:
        seconds = parse_duration(text).nanoseconds / SECOND
    except DurationError:
        return None
    return seconds if seconds >= 0 else None


def resized(pod: Pod) -> bool:
    """Whether the pod asks for something else than its containers have; never on servers that know no resize."""
    told = {each.name: each.resources for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    pairs = [(told.get(each.name), each.resources) for each in _resizable(pod)]
    pairs.append((pod.status.resources, pod.spec.resources or ResourceRequirements()))
    return any(has is not None and (has.requests, has.limits) != (asks.requests, asks.limits) for has, asks in pairs)


def _resizable(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.containers, *(each for each in pod.spec.init_containers if each.is_sidecar))


# The ends of a pod.


def _stopping(pod: Pod, now: datetime, memory: Memory, habits: PodHabits) -> Step:
    deadline = pod.metadata.deletion_timestamp
    told_s = _told_s(pod, STOPS_AFTER)
    left_s = _left_s(memory.stopping or now, habits.stops_after_s if told_s is None else told_s, now)
    if deadline is not None:
        left_s = min(left_s, (deadline - now).total_seconds())
    if left_s > 0:
        return Wait(left_s)
    # Whoever keeps the pod with a finalizer wants to know how it ended; for others that would be a wasted request.
    return Remove(_ended(pod, now, "Failed", exit_code=143, reason="Error") if pod.metadata.finalizers else None)


def _finishing(pod: Pod, now: datetime, memory: Memory, habits: PodHabits) -> Step:
    told_s = _told_s(pod, RUNS_FOR)
    runs_for_s = habits.runs_for_s if told_s is None else told_s
    if runs_for_s is None:
        return None
    left_s = _left_s(memory.started or pod.status.start_time or memory.seen, runs_for_s, now)
    return Wait(left_s) if left_s > 0 else Report(_ended(pod, now, "Succeeded", exit_code=0, reason="Completed"))


def _left_s(since: datetime, lasting_s: float, now: datetime) -> float:
    return (since + timedelta(seconds=lasting_s) - now).total_seconds()


# What is told.


def _running(pod: Pod, now: datetime) -> dict[str, Any]:
    state = {"running": {"startedAt": whole_time(pod.status.start_time or now)}}
    told = {each.type for each in pod.status.conditions}
    scheduled = () if "PodScheduled" in told else ("PodScheduled",)
    return {
        "phase": "Running",
        "startTime": whole_time(pod.status.start_time or now),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [_condition(pod, kind, "True", now) for kind in (*scheduled, *_READY)],
        **_containers(pod, state, now),
        **_observed(pod),
        **_pod_level(pod),
    }


def _ended(pod: Pod, now: datetime, phase: str, *, exit_code: int, reason: str) -> dict[str, Any]:
    state = _terminated(pod.status.start_time or now, now, exit_code=exit_code, reason=reason)
    told = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    conditions = [
        _condition(pod, "PodReadyToStartContainers", "False", now),
        _condition(pod, "Initialized", "True", now, told if phase == "Succeeded" else ""),
        _condition(pod, "ContainersReady", "False", now, told),
        _condition(pod, "Ready", "False", now, told),
    ]
    return {
        "phase": phase,
        "conditions": conditions,
        **_containers(pod, state, now),
        **_observed(pod),
    }


def _resized_status(pod: Pod, now: datetime) -> dict[str, Any]:
    """The containers with what they ask for now. Nothing is pending and nothing in progress: it is done."""
    running = _running(pod, now)
    told = {each.type for each in pod.status.conditions}
    gone = [{"type": kind, "$patch": "delete"} for kind in _RESIZING if kind in told]
    kept = ("initContainerStatuses", "containerStatuses", "observedGeneration", "allocatedResources", "resources")
    status = {key: running[key] for key in kept if key in running}
    return {**status, "conditions": gone} if gone else status


def _containers(pod: Pod, state: dict[str, Any], now: datetime) -> dict[str, Any]:
    """All containers in one state, but for those that initialise: they have done so."""
    done = _terminated(pod.status.start_time or now, pod.status.start_time or now, exit_code=0, reason="Completed")
    told = {"containerStatuses": [_container(pod, each, state) for each in pod.spec.containers]}
    if pod.spec.init_containers:
        told["initContainerStatuses"] = [
            _container(pod, each, state if each.is_sidecar else done, done=not each.is_sidecar)
            for each in pod.spec.init_containers
        ]
    return told


def _container(pod: Pod, container: Container, state: dict[str, Any], *, done: bool = False) -> dict[str, Any]:
    running = "running" in state
    asks = container.resources
    told: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "containerID": f"fake://{pod.uid}/{container.name}",
        "ready": running or done,
        "started": running,
        "restartCount": 0,
        "state": state,
        "resources": msgspec.to_builtins(ResourceRequirements(asks.requests, asks.limits)),
    }
    if asks.requests:
        told["allocatedResources"] = dict(asks.requests)
    return told


def _terminated(started: datetime, now: datetime, *, exit_code: int, reason: str) -> dict[str, Any]:
    times = {"startedAt": whole_time(started), "finishedAt": whole_time(now)}
    return {"terminated": {"exitCode": exit_code, "reason": reason, **times}}


def _condition(pod: Pod, kind: str, status: str, now: datetime, reason: str = "") -> dict[str, Any]:
    told = {"type": kind, "status": status, "lastTransitionTime": whole_time(now), **_observed(pod)}
    return {**told, "reason": reason} if reason else told


def _observed(pod: Pod) -> dict[str, Any]:
    return {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}


def _pod_level(pod: Pod) -> dict[str, Any]:
    """Resources of the pod as a whole, on servers that know them."""
    asks = pod.spec.resources
    if asks is None:
        return {}
    told: dict[str, Any] = {"resources": msgspec.to_builtins(ResourceRequirements(asks.requests, asks.limits))}
    return {**told, "allocatedResources": dict(asks.requests)} if asks.requests else told
