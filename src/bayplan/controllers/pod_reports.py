"""What does a kubelet do next with this pod? A pure function of the pod, the moment and the habits of the cluster.

Asked whenever the pod changes or its time has come. A kubelet that always can: containers start at once, a resize is
done when it is seen, and a pod ends when `pod_stages` says so and not before.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bayplan.controllers.node_template import ADDRESS
from bayplan.controllers.pod_stages import PodHabits, life_of, outcome
from bayplan.controllers.seen import SeenPod
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.meta import whole_time

_READY = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_RESIZING = ("PodResizePending", "PodResizeInProgress")


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


def next_step(pod: SeenPod, *, now: datetime, memory: Memory, habits: PodHabits) -> Step:
    """What is to be done now, if anything."""
    life = life_of(pod, habits)
    if pod.terminating:
        return _stopping(pod, now, memory, life)
    if pod.finished:
        return None
    if pod.status.phase != "Running":
        wait_s = _left_s(memory.seen, life.starts_after_s, now)
        return Wait(wait_s) if wait_s > 0 else Report(_running(pod, now, ready=life.ready_after_s <= 0))
    if resized(pod):
        return Report(_resized_status(pod, now))
    return _becoming_ready(pod, now, memory, life) or _finishing(pod, now, memory, life)


def resized(pod: Pod) -> bool:
    """Whether the pod asks for something else than its containers have; never on servers that know no resize."""
    told = {each.name: each.resources for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    pairs = [(told.get(each.name), each.resources) for each in _resizable(pod)]
    pairs.append((pod.status.resources, pod.spec.resources or ResourceRequirements()))
    return any(has is not None and (has.requests, has.limits) != (asks.requests, asks.limits) for has, asks in pairs)


def _resizable(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.containers, *(each for each in pod.spec.init_containers if each.is_sidecar))


# The ends of a pod.


def _stopping(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Step:
    deadline = pod.metadata.deletion_timestamp
    left_s = _left_s(memory.stopping or now, life.stops_after_s, now)
    if deadline is not None:
        left_s = min(left_s, (deadline - now).total_seconds())
    if left_s > 0:
        return Wait(left_s)
    # Whoever keeps the pod with a finalizer wants to know how it ended; for others that would be a wasted request.
    tells = bool(pod.metadata.finalizers) and not pod.finished
    return Remove(_ended(pod, now, "Failed", exit_code=143, reason="Error") if tells else None)


def _becoming_ready(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Step:
    """A pod that is not ready, or that somebody called so, is ready when its time has come."""
    told = pod.condition("Ready")
    if told is None or told.status == "True":
        return None
    left_s = _left_s(_since(pod, memory), life.ready_after_s, now)
    return Wait(left_s) if left_s > 0 else Report(_running(pod, now))


def _finishing(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Step:
    turn = _restarts(pod)
    code = outcome(pod, life, turn)
    runs_for_s = life.runs_for_s if life.runs_for_s is not None or not code else 0.0
    if runs_for_s is None:
        return None
    restarts = bool(code) and pod.spec.restart_policy in ("Always", "OnFailure")
    left_s = _left_s(_since(pod, memory), runs_for_s + (_pause_s(turn) if restarts else 0.0), now)
    if left_s > 0:
        return Wait(left_s)
    if restarts:
        return Report(_running(pod, now, turn=turn + 1, ready=life.ready_after_s <= 0))
    if code:
        return Report(_ended(pod, now, "Failed", exit_code=code, reason="Error"))
    return Report(_ended(pod, now, "Succeeded", exit_code=0, reason="Completed"))


def _pause_s(turn: int) -> float:
    """How long a kubelet waits before it starts a container again: not at first, then ever longer."""
    return min(10.0 * 2.0 ** (turn - 1), 300.0) if turn else 0.0


def _restarts(pod: SeenPod) -> int:
    return max((each.restart_count for each in pod.status.container_statuses), default=0)


def _since(pod: SeenPod, memory: Memory) -> datetime:
    return memory.started or pod.status.start_time or memory.seen


def _left_s(since: datetime, lasting_s: float, now: datetime) -> float:
    return (since + timedelta(seconds=lasting_s) - now).total_seconds()


# What is told.


def pod_address(pod: SeenPod) -> str:
    """Where a pod says that it is: nobody is there. Always the same one, in 10.0.0.0/8 as other clusters' pods."""
    if pod.spec.host_network:
        return ADDRESS
    if pod.status.pod_ip:
        return pod.status.pod_ip
    number = zlib.crc32(pod.uid.encode())
    return f"10.{number >> 16 & 0xFF}.{number >> 8 & 0xFF}.{number % 254 + 1}"


def _running(pod: SeenPod, now: datetime, *, turn: int | None = None, ready: bool = True) -> dict[str, Any]:
    """`turn`: how often the containers were restarted, where that has changed."""
    started = now if turn else pod.status.start_time or now
    state = {"running": {"startedAt": whole_time(started)}}
    address = pod_address(pod)
    told = {each.type for each in pod.status.conditions}
    scheduled = () if "PodScheduled" in told else ("PodScheduled",)
    return {
        "phase": "Running",
        "startTime": whole_time(pod.status.start_time or now),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_ready_condition(pod, kind, now, ready=ready) for kind in (*scheduled, *_READY)],
        **_containers(pod, state, now, ready=ready, turn=_restarts(pod) if turn is None else turn),
        **_observed(pod),
        **_pod_level(pod),
    }


def _ended(pod: SeenPod, now: datetime, phase: str, *, exit_code: int, reason: str) -> dict[str, Any]:
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
        **_containers(pod, state, now, turn=_restarts(pod)),
        **_observed(pod),
    }


def _resized_status(pod: SeenPod, now: datetime) -> dict[str, Any]:
    """The containers with what they ask for now. Nothing is pending and nothing in progress: it is done."""
    running = _running(pod, now)
    told = {each.type for each in pod.status.conditions}
    gone = [{"type": kind, "$patch": "delete"} for kind in _RESIZING if kind in told]
    kept = ("initContainerStatuses", "containerStatuses", "observedGeneration", "allocatedResources", "resources")
    status = {key: running[key] for key in kept if key in running}
    return {**status, "conditions": gone} if gone else status


def _ready_condition(pod: SeenPod, kind: str, now: datetime, *, ready: bool) -> dict[str, Any]:
    if ready or kind not in ("ContainersReady", "Ready"):
        return _condition(pod, kind, "True", now)
    return _condition(pod, kind, "False", now, "ContainersNotReady")


def _containers(
    pod: SeenPod, state: dict[str, Any], now: datetime, *, ready: bool = True, turn: int = 0
) -> dict[str, Any]:
    """All containers in one state, but for those that initialise: they have done so."""
    done = _terminated(pod.status.start_time or now, pod.status.start_time or now, exit_code=0, reason="Completed")
    told = {"containerStatuses": [_container(pod, each, state, ready=ready, turn=turn) for each in pod.spec.containers]}
    if pod.spec.init_containers:
        told["initContainerStatuses"] = [
            _container(pod, each, state if each.is_sidecar else done, done=not each.is_sidecar)
            for each in pod.spec.init_containers
        ]
    return told


def _container(
    pod: Pod, container: Container, state: dict[str, Any], *, done: bool = False, ready: bool = True, turn: int = 0
) -> dict[str, Any]:
    running = "running" in state
    asks = container.resources
    told: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "containerID": f"fake://{pod.uid}/{container.name}",
        "ready": (running and ready) or done,
        "started": running,
        "restartCount": turn,
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
