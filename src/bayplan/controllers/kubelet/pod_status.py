"""Pod statuses as a kubelet reports them, as trees. Pure functions, some ten microseconds each.

`pod_sync` decides when to report. The containers of a pod start and end together, so one `ContainerRun` describes them
all. Init containers have completed, and sidecars run as long as the pod."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from bayplan.codec.go_duration import GoDuration
from bayplan.controllers.core.api_types import ContainerStateTerminated, ContainerStatusFields, PodFields, Tree
from bayplan.controllers.kubelet.node_template import ADDRESS
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.meta import format_time

_READY = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_RESIZING = ("PodResizePending", "PodResizeInProgress")
BACK_OFF = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """State of the containers between one start and the next."""

    count: int = 0
    """Number of restarts."""
    state: Tree
    last: Tree = field(default_factory=dict)
    """Termination of the previous run."""
    ready: bool = True


# Runs.


def current_run(pod: PodFields) -> ContainerRun:
    """Run that was reported last."""
    reported = _first(pod)
    containers_ready = pod.condition("ContainersReady")
    return ContainerRun(
        count=restarts(pod),
        state=_reported_state(pod, reported),
        last=_terminated_status(reported.last_state.terminated) if reported.last_state.terminated is not None else {},
        ready=containers_ready is None or containers_ready.status == "True",
    )


def restarts(pod: PodFields) -> int:
    return max((each.restart_count for each in pod.status.container_statuses), default=0)


def last_termination(pod: PodFields) -> ContainerStateTerminated | None:
    """Termination of the containers, if they have not restarted since."""
    reported = _first(pod)
    return reported.last_state.terminated if in_crash_loop_backoff(pod) else reported.state.terminated


def in_crash_loop_backoff(pod: PodFields) -> bool:
    waiting = _first(pod).state.waiting
    return waiting is not None and waiting.reason == BACK_OFF


def started_at(pod: PodFields) -> datetime | None:
    """Last start of the containers, if it was reported."""
    running = _first(pod).state.running
    return running.started_at if running is not None and running.started_at is not None else pod.status.start_time


def running_run(started: datetime, *, count: int, last: ContainerStateTerminated | None, ready: bool) -> ContainerRun:
    state = {"running": {"startedAt": format_time(started)}}
    return ContainerRun(
        count=count, state=state, last=_terminated_status(last) if last is not None else {}, ready=ready
    )


def terminated_run(end: ContainerStateTerminated, *, count: int, last: Tree) -> ContainerRun:
    return ContainerRun(count=count, state=_terminated_status(end), last=last, ready=False)


def waiting_run(pod: PodFields, end: ContainerStateTerminated, pause_s: float) -> ContainerRun:
    """Run that waits for a restart (CrashLoopBackOff)."""
    text = f"back-off {GoDuration.of_seconds(int(pause_s))} restarting failed"
    waiting = {"reason": BACK_OFF, "message": f"{text} container={{name}} pod={pod_text(pod)}"}
    return ContainerRun(count=restarts(pod), state={"waiting": waiting}, last=_terminated_status(end), ready=False)


def terminated_state(started: datetime, now: datetime, exit_code: int) -> ContainerStateTerminated:
    reason = "Error" if exit_code else "Completed"
    return ContainerStateTerminated(exit_code=exit_code, reason=reason, started_at=started, finished_at=now)


def pod_text(pod: PodFields) -> str:
    """Name of a pod in kubelet messages."""
    return f"{pod.name}_{pod.namespace}({pod.uid})"


def _first(pod: PodFields) -> ContainerStatusFields:
    return pod.status.container_statuses[0] if pod.status.container_statuses else ContainerStatusFields()


def _reported_state(pod: PodFields, reported: ContainerStatusFields) -> Tree:
    if reported.state.terminated is not None:
        return _terminated_status(reported.state.terminated)
    if reported.state.waiting is not None:
        message = reported.state.waiting.message.replace(f"container={reported.name} ", "container={name} ")
        return {"waiting": {"reason": reported.state.waiting.reason, "message": message}}
    started = started_at(pod)
    return {"running": {"startedAt": format_time(started)} if started is not None else {}}


def _terminated_status(end: ContainerStateTerminated) -> Tree:
    moments = {"startedAt": end.started_at, "finishedAt": end.finished_at}
    times = {key: format_time(moment) for key, moment in moments.items() if moment is not None}
    return {"terminated": {"exitCode": end.exit_code, "reason": end.reason, **times}}


# Statuses.


def pod_address(pod: PodFields) -> str:
    """Stable address of a pod in 10.0.0.0/8. Nothing listens there."""
    if pod.spec.host_network:
        return ADDRESS
    if pod.status.pod_ip:
        return pod.status.pod_ip
    number = zlib.crc32(pod.uid.encode())
    return f"10.{number >> 16 & 0xFF}.{number >> 8 & 0xFF}.{number % 254 + 1}"


def running_status(pod: PodFields, now: datetime, run: ContainerRun) -> Tree:
    address = pod_address(pod)
    present = {each.type for each in pod.status.conditions}
    scheduled = () if "PodScheduled" in present else ("PodScheduled",)
    return {
        "phase": "Running",
        "startTime": format_time(pod.status.start_time or now),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_ready_condition(pod, kind, now, ready=run.ready) for kind in (*scheduled, *_READY)],
        **_containers(pod, now, run),
        **_observed_generation(pod),
        **_pod_level_resources(pod),
    }


def ended_status(pod: PodFields, now: datetime, phase: str, exit_code: int) -> Tree:
    end = terminated_state(started_at(pod) or now, now, exit_code)
    reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    conditions = [
        _condition(pod, "PodReadyToStartContainers", "False", now),
        _condition(pod, "Initialized", "True", now, reason if phase == "Succeeded" else ""),
        _condition(pod, "ContainersReady", "False", now, reason),
        _condition(pod, "Ready", "False", now, reason),
    ]
    run = terminated_run(end, count=restarts(pod), last=current_run(pod).last)
    return {
        "phase": phase,
        "conditions": conditions,
        **_containers(pod, now, run, sidecars=run.state),
        **_observed_generation(pod),
    }


def resized_status(pod: PodFields, now: datetime) -> Tree:
    """Status with the containers' new resources. The resize is complete: nothing is pending or in progress."""
    running = running_status(pod, now, current_run(pod))
    present = {each.type for each in pod.status.conditions}
    removed = [{"type": kind, "$patch": "delete"} for kind in _RESIZING if kind in present]
    fields = ("initContainerStatuses", "containerStatuses", "observedGeneration", "allocatedResources", "resources")
    status = {key: running[key] for key in fields if key in running}
    return {**status, "conditions": removed} if removed else status


def _ready_condition(pod: PodFields, kind: str, now: datetime, *, ready: bool) -> Tree:
    if ready or kind not in ("ContainersReady", "Ready"):
        return _condition(pod, kind, "True", now)
    names = " ".join(each.name for each in pod.spec.containers)
    return _condition(pod, kind, "False", now, "ContainersNotReady", f"containers with unready status: [{names}]")


def _containers(pod: PodFields, now: datetime, run: ContainerRun, *, sidecars: Tree | None = None) -> Tree:
    """Statuses of containers and init containers. `sidecars`: state of sidecars that do not run."""
    start = pod.status.start_time or now
    statuses = {"containerStatuses": [_container(pod, each, run) for each in pod.spec.containers]}
    if pod.spec.init_containers:
        done = ContainerRun(state=_terminated_status(terminated_state(start, start, 0)))
        sidecar_run = ContainerRun(state=sidecars or {"running": {"startedAt": format_time(start)}})
        statuses["initContainerStatuses"] = [
            _container(pod, each, sidecar_run if each.is_sidecar else done, done=not each.is_sidecar)
            for each in pod.spec.init_containers
        ]
    return statuses


def _container(pod: Pod, container: Container, run: ContainerRun, *, done: bool = False) -> Tree:
    running = "running" in run.state
    resources = container.resources
    status: Tree = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "containerID": f"fake://{pod.uid}/{container.name}",
        "ready": (running and run.ready) or done,
        "started": running,
        "restartCount": run.count,
        "state": _state_of_container(run.state, container.name),
        "resources": msgspec.to_builtins(ResourceRequirements(resources.requests, resources.limits)),
    }
    if run.last:
        status["lastState"] = run.last
    if resources.requests:
        status["allocatedResources"] = dict(resources.requests)
    return status


def _state_of_container(state: Tree, name: str) -> Tree:
    """State of one container: the message of a waiting state contains the container's name."""
    waiting = state.get("waiting")
    return {"waiting": {**waiting, "message": waiting["message"].replace("{name}", name)}} if waiting else state


def _condition(pod: Pod, kind: str, status: str, now: datetime, reason: str = "", message: str = "") -> Tree:
    """Build a condition. One with the same status keeps its lastTransitionTime; old reason and message are cleared."""
    before = next((each for each in pod.status.conditions if each.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == status else None
    condition: Tree = {
        "type": kind,
        "status": status,
        "lastTransitionTime": format_time(since or now),
        **_observed_generation(pod),
    }
    for key, text, previous in (
        ("reason", reason, before.reason if before is not None else ""),
        ("message", message, before.message if before is not None else ""),
    ):
        if text or previous:
            condition[key] = text or None
    return condition


def _observed_generation(pod: Pod) -> Tree:
    return {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}


def _pod_level_resources(pod: Pod) -> Tree:
    """Pod-level resources, on servers that support them."""
    resources = pod.spec.resources
    if resources is None:
        return {}
    status: dict[str, Any] = {
        "resources": msgspec.to_builtins(ResourceRequirements(resources.requests, resources.limits))
    }
    return {**status, "allocatedResources": dict(resources.requests)} if resources.requests else status
