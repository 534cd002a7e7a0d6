"""What does a kubelet tell of a pod? Statuses as plain trees; pure, some ten microseconds each.

Asked by `pod_reports`, which decides when. The containers of a pod live and end together, so one `ContainerRun` says
where all of them are; those that initialise have done so, and sidecars run as long as the pod does."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from bayplan.codec.go_duration import GoDuration
from bayplan.controllers.core.api_types import (
    ContainerStateTerminated,
    ContainerStatusFields,
    PodFields,
    Tree,
)
from bayplan.controllers.kubelet.node_template import ADDRESS
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.meta import format_time

_READY = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_RESIZING = ("PodResizePending", "PodResizeInProgress")
BACK_OFF = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """From one start of the containers to the next: where they are in it."""

    count: int = 0
    """How often they were started again."""
    state: Tree
    last: Tree = field(default_factory=dict)
    """How the turn before ended."""
    ready: bool = True


# Turns.


def current_run(pod: PodFields) -> ContainerRun:
    """The turn as it was told last."""
    seen = _first(pod)
    told = pod.condition("ContainersReady")
    return ContainerRun(
        count=restarts(pod),
        state=_reported_state(pod, seen),
        last=_terminated(seen.last_state.terminated) if seen.last_state.terminated is not None else {},
        ready=told is None or told.status == "True",
    )


def restarts(pod: PodFields) -> int:
    return max((each.restart_count for each in pod.status.container_statuses), default=0)


def last_termination(pod: PodFields) -> ContainerStateTerminated | None:
    """How the containers ended, where they have not been started again since."""
    seen = _first(pod)
    return seen.last_state.terminated if in_crash_loop_backoff(pod) else seen.state.terminated


def in_crash_loop_backoff(pod: PodFields) -> bool:
    waiting = _first(pod).state.waiting
    return waiting is not None and waiting.reason == BACK_OFF


def started_at(pod: PodFields) -> datetime | None:
    """When the containers were started last, as far as that was told."""
    running = _first(pod).state.running
    return running.started_at if running is not None and running.started_at is not None else pod.status.start_time


def running_run(started: datetime, *, count: int, last: ContainerStateTerminated | None, ready: bool) -> ContainerRun:
    state = {"running": {"startedAt": format_time(started)}}
    return ContainerRun(count=count, state=state, last=_terminated(last) if last is not None else {}, ready=ready)


def terminated_run(end: ContainerStateTerminated, *, count: int, last: Tree) -> ContainerRun:
    return ContainerRun(count=count, state=_terminated(end), last=last, ready=False)


def waiting_run(pod: PodFields, end: ContainerStateTerminated, pause_s: float) -> ContainerRun:
    """Between an end and the next start."""
    told = f"back-off {GoDuration.of_seconds(int(pause_s))} restarting failed"
    waiting = {"reason": BACK_OFF, "message": f"{told} container={{name}} pod={pod_text(pod)}"}
    return ContainerRun(count=restarts(pod), state={"waiting": waiting}, last=_terminated(end), ready=False)


def terminated_state(started: datetime, now: datetime, exit_code: int) -> ContainerStateTerminated:
    reason = "Error" if exit_code else "Completed"
    return ContainerStateTerminated(exit_code=exit_code, reason=reason, started_at=started, finished_at=now)


def pod_text(pod: PodFields) -> str:
    """As kubelets call it."""
    return f"{pod.name}_{pod.namespace}({pod.uid})"


def _first(pod: PodFields) -> ContainerStatusFields:
    return pod.status.container_statuses[0] if pod.status.container_statuses else ContainerStatusFields()


def _reported_state(pod: PodFields, seen: ContainerStatusFields) -> Tree:
    if seen.state.terminated is not None:
        return _terminated(seen.state.terminated)
    if seen.state.waiting is not None:
        message = seen.state.waiting.message.replace(f"container={seen.name} ", "container={name} ")
        return {"waiting": {"reason": seen.state.waiting.reason, "message": message}}
    started = started_at(pod)
    return {"running": {"startedAt": format_time(started)} if started is not None else {}}


def _terminated(end: ContainerStateTerminated) -> Tree:
    moments = {"startedAt": end.started_at, "finishedAt": end.finished_at}
    times = {key: format_time(moment) for key, moment in moments.items() if moment is not None}
    return {"terminated": {"exitCode": end.exit_code, "reason": end.reason, **times}}


# Statuses.


def pod_address(pod: PodFields) -> str:
    """Where a pod says that it is: nobody is there. Always the same one, in 10.0.0.0/8 as other clusters' pods."""
    if pod.spec.host_network:
        return ADDRESS
    if pod.status.pod_ip:
        return pod.status.pod_ip
    number = zlib.crc32(pod.uid.encode())
    return f"10.{number >> 16 & 0xFF}.{number >> 8 & 0xFF}.{number % 254 + 1}"


def running_status(pod: PodFields, now: datetime, turn: ContainerRun) -> Tree:
    """A pod that has started and not ended, whatever its containers do."""
    address = pod_address(pod)
    told = {each.type for each in pod.status.conditions}
    scheduled = () if "PodScheduled" in told else ("PodScheduled",)
    return {
        "phase": "Running",
        "startTime": format_time(pod.status.start_time or now),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_ready_condition(pod, kind, now, ready=turn.ready) for kind in (*scheduled, *_READY)],
        **_containers(pod, now, turn),
        **_observed(pod),
        **_pod_level(pod),
    }


def ended_status(pod: PodFields, now: datetime, phase: str, exit_code: int) -> Tree:
    end = terminated_state(started_at(pod) or now, now, exit_code)
    told = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    conditions = [
        _condition(pod, "PodReadyToStartContainers", "False", now),
        _condition(pod, "Initialized", "True", now, told if phase == "Succeeded" else ""),
        _condition(pod, "ContainersReady", "False", now, told),
        _condition(pod, "Ready", "False", now, told),
    ]
    turn = terminated_run(end, count=restarts(pod), last=current_run(pod).last)
    return {
        "phase": phase,
        "conditions": conditions,
        **_containers(pod, now, turn, sidecars=turn.state),
        **_observed(pod),
    }


def resized_status(pod: PodFields, now: datetime) -> Tree:
    """The containers with what they ask for now. Nothing is pending and nothing in progress: it is done."""
    running = running_status(pod, now, current_run(pod))
    told = {each.type for each in pod.status.conditions}
    gone = [{"type": kind, "$patch": "delete"} for kind in _RESIZING if kind in told]
    kept = ("initContainerStatuses", "containerStatuses", "observedGeneration", "allocatedResources", "resources")
    status = {key: running[key] for key in kept if key in running}
    return {**status, "conditions": gone} if gone else status


def _ready_condition(pod: PodFields, kind: str, now: datetime, *, ready: bool) -> Tree:
    if ready or kind not in ("ContainersReady", "Ready"):
        return _condition(pod, kind, "True", now)
    names = " ".join(each.name for each in pod.spec.containers)
    return _condition(pod, kind, "False", now, "ContainersNotReady", f"containers with unready status: [{names}]")


def _containers(pod: PodFields, now: datetime, turn: ContainerRun, *, sidecars: Tree | None = None) -> Tree:
    """`sidecars`: their state, where they do not run."""
    start = pod.status.start_time or now
    told = {"containerStatuses": [_container(pod, each, turn) for each in pod.spec.containers]}
    if pod.spec.init_containers:
        done = ContainerRun(state=_terminated(terminated_state(start, start, 0)))
        beside = ContainerRun(state=sidecars or {"running": {"startedAt": format_time(start)}})
        told["initContainerStatuses"] = [
            _container(pod, each, beside if each.is_sidecar else done, done=not each.is_sidecar)
            for each in pod.spec.init_containers
        ]
    return told


def _container(pod: Pod, container: Container, turn: ContainerRun, *, done: bool = False) -> Tree:
    running = "running" in turn.state
    asks = container.resources
    told: Tree = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "containerID": f"fake://{pod.uid}/{container.name}",
        "ready": (running and turn.ready) or done,
        "started": running,
        "restartCount": turn.count,
        "state": _state_of_container(turn.state, container.name),
        "resources": msgspec.to_builtins(ResourceRequirements(asks.requests, asks.limits)),
    }
    if turn.last:
        told["lastState"] = turn.last
    if asks.requests:
        told["allocatedResources"] = dict(asks.requests)
    return told


def _state_of_container(state: Tree, name: str) -> Tree:
    """A kubelet names the container that it waits for; all else is the same for all of them."""
    waiting = state.get("waiting")
    return {"waiting": {**waiting, "message": waiting["message"].replace("{name}", name)}} if waiting else state


def _condition(pod: Pod, kind: str, status: str, now: datetime, reason: str = "", message: str = "") -> Tree:
    """One that was so before keeps the moment at which it became so; what it said besides is taken back."""
    before = next((each for each in pod.status.conditions if each.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == status else None
    told: Tree = {"type": kind, "status": status, "lastTransitionTime": format_time(since or now), **_observed(pod)}
    for key, text, said in (
        ("reason", reason, before.reason if before is not None else ""),
        ("message", message, before.message if before is not None else ""),
    ):
        if text or said:
            told[key] = text or None
    return told


def _observed(pod: Pod) -> Tree:
    return {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}


def _pod_level(pod: Pod) -> Tree:
    """Resources of the pod as a whole, on servers that know them."""
    asks = pod.spec.resources
    if asks is None:
        return {}
    told: dict[str, Any] = {"resources": msgspec.to_builtins(ResourceRequirements(asks.requests, asks.limits))}
    return {**told, "allocatedResources": dict(asks.requests)} if asks.requests else told
