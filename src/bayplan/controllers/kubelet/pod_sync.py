"""What does a kubelet do next with this pod? A pure function of the pod, the moment and the habits of the cluster.

Asked whenever the pod changes or its time has come. A kubelet that always can: containers start at once, a resize is
done when it is seen, and a pod ends when `pod_stages` says so and not before. Containers that end and are started
again wait ever longer in between, as everywhere: a version that is broken is seen to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from bayplan.controllers.core.api_types import ContainerStateTerminated, PodFields
from bayplan.controllers.kubelet.pod_stages import PodBehavior, container_exit, pod_behavior
from bayplan.controllers.kubelet.pod_status import (
    current_run,
    ended_status,
    in_crash_loop_backoff,
    last_termination,
    pod_text,
    resized_status,
    restarts,
    running_run,
    running_status,
    started_at,
    terminated_run,
    terminated_state,
    waiting_run,
)
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION, GROUP_LABEL, whole_gpus

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 10.0, 300.0
BACKOFF_RESET_S = 2 * MAX_BACKOFF_S
"""Containers that ran so long are started again at once, and the pauses begin anew."""
MIN_READY_RUN_S = 10.0
"""Containers that end and start again sooner than this were never ready: the first probes would have told. Without it
a version that crashes after a second would be ready for that second, and all of the old version gone."""


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """An event about the pod, always a warning."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Patch the pod's status."""

    status: dict[str, Any]
    runtime_changes: Mapping[str, Any] = field(default_factory=dict)
    """What changes in the kubelet's `PodRuntimeState`."""
    events: tuple[WarningEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchAnnotations:
    """Patch the pod's annotations, as a program in it does."""

    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemovePod:
    """The pod has stopped: delete it with no grace left, after telling its end where somebody waits for that."""

    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Look again after that many seconds."""

    seconds: float


Step = PatchStatus | PatchAnnotations | RemovePod | WaitStep | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRuntimeState:
    """What the kubelet knows of a pod to the microsecond, where the API keeps whole seconds or nothing."""

    seen: datetime
    started: datetime | None = None
    ended: datetime | None = None
    """When its containers ended last."""
    restart_count: int | None = None
    """How often they were started again since they last ran for long; None: as often as the pod says."""
    stopping: datetime | None = None
    reported_problems: frozenset[str] = frozenset()
    """What its author was told to correct."""


def next_step(pod: PodFields, *, now: datetime, memory: PodRuntimeState, habits: PodBehavior) -> Step:
    """What is to be done now, if anything."""
    life = pod_behavior(pod, habits)
    if pod.terminating:
        return _stop(pod, now, memory, life)
    if pod.finished:
        return None
    if pod.status.phase != "Running":
        wait_s = _left_s(memory.seen, life.starts_after_s, now)
        return WaitStep(wait_s) if wait_s > 0 else _start(pod, now, life)
    if needs_resize(pod):
        return PatchStatus(resized_status(pod, now))
    if holds_device(pod) and DEVICE_INDEX_ANNOTATION not in pod.metadata.annotations:
        return PatchAnnotations({DEVICE_INDEX_ANNOTATION: f"GPU-{pod.uid}"})
    end = last_termination(pod)
    if end is not None and (in_crash_loop_backoff(pod) or restarts_after(pod, end.exit_code)):
        return _restart(pod, now, memory, life, end)
    return _run(pod, now, memory, life)


def needs_resize(pod: Pod) -> bool:
    """Whether the pod asks for something else than its containers have; never on servers that know no resize."""
    told = {each.name: each.resources for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    pairs = [(told.get(each.name), each.resources) for each in _resizable(pod)]
    pairs.append((pod.status.resources, pod.spec.resources or ResourceRequirements()))
    return any(has is not None and (has.requests, has.limits) != (asks.requests, asks.limits) for has, asks in pairs)


def holds_device(pod: Pod) -> bool:
    """Whether it reserves a GPU for pods that share it: those have the group's label, too, and ask for no whole GPU.
    The program in it says which GPU it got; we have none, and the pod's own uid is a fine name for one."""
    return GROUP_LABEL in pod.labels and bool(whole_gpus(pod))


def _resizable(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.containers, *(each for each in pod.spec.init_containers if each.is_sidecar))


def restarts_after(pod: PodFields, exit_code: int) -> bool:
    """Whether a kubelet starts containers again that ended so."""
    return pod.spec.restart_policy == "Always" or (pod.spec.restart_policy == "OnFailure" and exit_code != 0)


# The life of containers.


def _start(
    pod: PodFields, now: datetime, life: PodBehavior, *, tries: int = 0, last: ContainerStateTerminated | None = None
) -> PatchStatus:
    """`last`: how the containers ended before, if they start again."""
    count = restarts(pod) + 1 if last is not None else 0
    turn = running_run(
        now, count=count, last=last, ready=life.ready_after_s <= 0 and _runs_long_enough(pod, life, count)
    )
    end = container_exit(pod, life, count)
    if end is None or end.after_s > 0 or not restarts_after(pod, end.exit_code):
        return PatchStatus(running_status(pod, now, turn), {"started": now, "tries": tries})
    # Told in one: nobody is to see that they ran, and to go by it.
    turn = terminated_run(terminated_state(now, now, end.exit_code), count=count, last=turn.last)
    return PatchStatus(running_status(pod, now, turn), {"started": now, "ended": now, "tries": tries})


def _runs_long_enough(pod: PodFields, life: PodBehavior, count: int) -> bool:
    """Whether the containers run long enough to be ready at all, in their turn of this number."""
    end = container_exit(pod, life, count)
    return end is None or end.after_s >= MIN_READY_RUN_S or not restarts_after(pod, end.exit_code)


def _run(pod: PodFields, now: datetime, memory: PodRuntimeState, life: PodBehavior) -> Step:
    """Containers run; whatever comes first."""
    end, ready = _finish(pod, now, memory, life), _become_ready(pod, now, memory, life)
    if isinstance(end, WaitStep) and isinstance(ready, WaitStep):
        return min(end, ready, key=lambda each: each.seconds)
    return end if isinstance(end, PatchStatus) else ready or end


def _become_ready(
    pod: PodFields, now: datetime, memory: PodRuntimeState, life: PodBehavior
) -> PatchStatus | WaitStep | None:
    """A pod that is not ready, or that somebody called so, is ready when its time has come."""
    told = pod.condition("Ready")
    if told is None or told.status == "True" or not _runs_long_enough(pod, life, restarts(pod)):
        return None
    left_s = _left_s(_since(pod, memory), life.ready_after_s, now)
    return (
        WaitStep(left_s) if left_s > 0 else PatchStatus(running_status(pod, now, replace(current_run(pod), ready=True)))
    )


def _finish(pod: PodFields, now: datetime, memory: PodRuntimeState, life: PodBehavior) -> PatchStatus | WaitStep | None:
    end = container_exit(pod, life, restarts(pod))
    if end is None:
        return None
    left_s = _left_s(_since(pod, memory), end.after_s, now)
    if left_s > 0:
        return WaitStep(left_s)
    if not restarts_after(pod, end.exit_code):
        return PatchStatus(ended_status(pod, now, "Failed" if end.exit_code else "Succeeded", end.exit_code))
    ended = terminated_state(started_at(pod) or now, now, end.exit_code)
    turn = terminated_run(ended, count=restarts(pod), last=current_run(pod).last)
    calm = {"tries": 0} if end.after_s >= BACKOFF_RESET_S else {}
    return PatchStatus(running_status(pod, now, turn), {"ended": now, **calm})


def _restart(
    pod: PodFields, now: datetime, memory: PodRuntimeState, life: PodBehavior, end: ContainerStateTerminated
) -> Step:
    tries = memory.restart_count if memory.restart_count is not None else restarts(pod)
    pause_s = _backoff_s(tries)
    left_s = _left_s(memory.ended or end.finished_at or memory.seen, pause_s, now)
    if left_s <= 0:
        return _start(pod, now, life, tries=tries + 1, last=end)
    if in_crash_loop_backoff(pod):
        return WaitStep(left_s)
    told = "Back-off restarting failed container {} in pod {}"
    notes = tuple(WarningEvent("BackOff", told.format(each.name, pod_text(pod))) for each in pod.spec.containers)
    return PatchStatus(running_status(pod, now, waiting_run(pod, end, pause_s)), events=notes)


def _backoff_s(tries: int) -> float:
    """How long a kubelet waits before it starts a container again: not at first, then ever longer."""
    return min(INITIAL_BACKOFF_S * 2.0 ** min(tries - 1, 10), MAX_BACKOFF_S) if tries else 0.0


def _stop(pod: PodFields, now: datetime, memory: PodRuntimeState, life: PodBehavior) -> Step:
    deadline = pod.metadata.deletion_timestamp
    left_s = _left_s(memory.stopping or now, life.stops_after_s, now)
    if deadline is not None:
        left_s = min(left_s, (deadline - now).total_seconds())
    if left_s > 0:
        return WaitStep(left_s)
    # Whoever keeps the pod with a finalizer wants to know how it ended; for others that would be a wasted request.
    tells = bool(pod.metadata.finalizers) and not pod.finished
    return RemovePod(ended_status(pod, now, "Failed", 143) if tells else None)


def _since(pod: PodFields, memory: PodRuntimeState) -> datetime:
    return memory.started or started_at(pod) or memory.seen


def _left_s(since: datetime, lasting_s: float, now: datetime) -> float:
    return (since + timedelta(seconds=lasting_s) - now).total_seconds()
