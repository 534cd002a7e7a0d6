"""Next step of a fake kubelet for a pod: a pure function of the pod, the time and the configured behavior.

Called when the pod changes and when a wait is over. Containers start at once, a resize is applied when it is seen, and
a pod ends when `pod_stages` says so. Containers that end are restarted with growing delays, as by a real kubelet, so
that a broken version becomes visible.
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
"""Containers that ran this long are restarted at once, and the delay starts over."""
MIN_READY_RUN_S = 10.0
"""Containers with a shorter run never become ready, because real probes would fail. Otherwise a version that crashes
after a second would be ready for that second, and a rollout would replace all old pods."""


@dataclass(frozen=True, slots=True)
class WarningEvent:
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class PatchStatus:
    status: dict[str, Any]
    runtime_changes: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of the kubelet's `PodRuntimeState`."""
    events: tuple[WarningEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchAnnotations:
    """Patch the pod's annotations, as a program in the pod does."""

    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete the stopped pod without grace period. `status`: final status to write first."""

    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Check again after this many seconds."""

    seconds: float


Step = PatchStatus | PatchAnnotations | RemovePod | WaitStep | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRuntimeState:
    """State of a pod in the kubelet, with microseconds, where the API has whole seconds or nothing."""

    seen: datetime
    started: datetime | None = None
    ended: datetime | None = None
    """Time of the containers' last end."""
    restart_count: int | None = None
    """Number of restarts since the last long run; None: the number in the pod's status."""
    stopping: datetime | None = None
    reported_problems: frozenset[str] = frozenset()
    """Annotation problems that were already reported."""


def next_step(pod: PodFields, *, now: datetime, state: PodRuntimeState, habits: PodBehavior) -> Step:
    behavior = pod_behavior(pod, habits)
    if pod.terminating:
        return _stop(pod, now, state, behavior)
    if pod.finished:
        return None
    if pod.status.phase != "Running":
        wait_s = _left_s(state.seen, behavior.starts_after_s, now)
        return WaitStep(wait_s) if wait_s > 0 else _start(pod, now, behavior)
    if needs_resize(pod):
        return PatchStatus(resized_status(pod, now))
    if holds_device(pod) and DEVICE_INDEX_ANNOTATION not in pod.metadata.annotations:
        return PatchAnnotations({DEVICE_INDEX_ANNOTATION: f"GPU-{pod.uid}"})
    end = last_termination(pod)
    if end is not None and (in_crash_loop_backoff(pod) or restarts_after(pod, end.exit_code)):
        return _restart(pod, now, state, behavior, end)
    return _run(pod, now, state, behavior)


def needs_resize(pod: Pod) -> bool:
    """Whether the containers' resources differ from the spec; False on servers without in-place resize."""
    reported = {
        each.name: each.resources for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    }
    pairs = [(reported.get(each.name), each.resources) for each in _resizable(pod)]
    pairs.append((pod.status.resources, pod.spec.resources or ResourceRequirements()))
    return any(
        current is not None and (current.requests, current.limits) != (wanted.requests, wanted.limits)
        for current, wanted in pairs
    )


def holds_device(pod: Pod) -> bool:
    """Whether the pod reserves a GPU for pods that share it: it has the group label and requests a whole GPU. In a real
    cluster the program in it reports the GPU's id; the fake kubelet uses the pod's uid."""
    return GROUP_LABEL in pod.labels and bool(whole_gpus(pod))


def _resizable(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.containers, *(each for each in pod.spec.init_containers if each.is_sidecar))


def restarts_after(pod: PodFields, exit_code: int) -> bool:
    """Whether the restart policy restarts containers with this exit code."""
    return pod.spec.restart_policy == "Always" or (pod.spec.restart_policy == "OnFailure" and exit_code != 0)


# Runs of containers.


def _start(
    pod: PodFields,
    now: datetime,
    behavior: PodBehavior,
    *,
    tries: int = 0,
    last: ContainerStateTerminated | None = None,
) -> PatchStatus:
    """Start the containers. `last`: their previous termination if this is a restart."""
    count = restarts(pod) + 1 if last is not None else 0
    run = running_run(
        now, count=count, last=last, ready=behavior.ready_after_s <= 0 and _runs_long_enough(pod, behavior, count)
    )
    end = container_exit(pod, behavior, count)
    if end is None or end.after_s > 0 or not restarts_after(pod, end.exit_code):
        return PatchStatus(running_status(pod, now, run), {"started": now, "restart_count": tries})
    # Reported in one patch: no client may see that the containers ran.
    run = terminated_run(terminated_state(now, now, end.exit_code), count=count, last=run.last)
    return PatchStatus(running_status(pod, now, run), {"started": now, "ended": now, "restart_count": tries})


def _runs_long_enough(pod: PodFields, behavior: PodBehavior, count: int) -> bool:
    """Whether the containers run long enough in this run to become ready."""
    end = container_exit(pod, behavior, count)
    return end is None or end.after_s >= MIN_READY_RUN_S or not restarts_after(pod, end.exit_code)


def _run(pod: PodFields, now: datetime, state: PodRuntimeState, behavior: PodBehavior) -> Step:
    """Step of running containers: their end or their readiness, whichever comes first."""
    end, ready = _finish(pod, now, state, behavior), _become_ready(pod, now, state, behavior)
    if isinstance(end, WaitStep) and isinstance(ready, WaitStep):
        return min(end, ready, key=lambda each: each.seconds)
    return end if isinstance(end, PatchStatus) else ready or end


def _become_ready(
    pod: PodFields, now: datetime, state: PodRuntimeState, behavior: PodBehavior
) -> PatchStatus | WaitStep | None:
    """Make the pod ready when its time has come, also if a controller had set it to not ready."""
    ready = pod.condition("Ready")
    if ready is None or ready.status == "True" or not _runs_long_enough(pod, behavior, restarts(pod)):
        return None
    left_s = _left_s(_since(pod, state), behavior.ready_after_s, now)
    return (
        WaitStep(left_s) if left_s > 0 else PatchStatus(running_status(pod, now, replace(current_run(pod), ready=True)))
    )


def _finish(
    pod: PodFields, now: datetime, state: PodRuntimeState, behavior: PodBehavior
) -> PatchStatus | WaitStep | None:
    end = container_exit(pod, behavior, restarts(pod))
    if end is None:
        return None
    left_s = _left_s(_since(pod, state), end.after_s, now)
    if left_s > 0:
        return WaitStep(left_s)
    if not restarts_after(pod, end.exit_code):
        return PatchStatus(ended_status(pod, now, "Failed" if end.exit_code else "Succeeded", end.exit_code))
    ended = terminated_state(started_at(pod) or now, now, end.exit_code)
    run = terminated_run(ended, count=restarts(pod), last=current_run(pod).last)
    reset = {"restart_count": 0} if end.after_s >= BACKOFF_RESET_S else {}
    return PatchStatus(running_status(pod, now, run), {"ended": now, **reset})


def _restart(
    pod: PodFields, now: datetime, state: PodRuntimeState, behavior: PodBehavior, end: ContainerStateTerminated
) -> Step:
    tries = state.restart_count if state.restart_count is not None else restarts(pod)
    pause_s = _backoff_s(tries)
    left_s = _left_s(state.ended or end.finished_at or state.seen, pause_s, now)
    if left_s <= 0:
        return _start(pod, now, behavior, tries=tries + 1, last=end)
    if in_crash_loop_backoff(pod):
        return WaitStep(left_s)
    text = "Back-off restarting failed container {} in pod {}"
    notes = tuple(WarningEvent("BackOff", text.format(each.name, pod_text(pod))) for each in pod.spec.containers)
    return PatchStatus(running_status(pod, now, waiting_run(pod, end, pause_s)), events=notes)


def _backoff_s(tries: int) -> float:
    """Delay before a restart: none for the first, then doubling."""
    return min(INITIAL_BACKOFF_S * 2.0 ** min(tries - 1, 10), MAX_BACKOFF_S) if tries else 0.0


def _stop(pod: PodFields, now: datetime, state: PodRuntimeState, behavior: PodBehavior) -> Step:
    deadline = pod.metadata.deletion_timestamp
    left_s = _left_s(state.stopping or now, behavior.stops_after_s, now)
    if deadline is not None:
        left_s = min(left_s, (deadline - now).total_seconds())
    if left_s > 0:
        return WaitStep(left_s)
    # A pod with finalizers needs a final status for its controllers; without finalizers the write would be wasted.
    write_status = bool(pod.metadata.finalizers) and not pod.finished
    return RemovePod(ended_status(pod, now, "Failed", 143) if write_status else None)


def _since(pod: PodFields, state: PodRuntimeState) -> datetime:
    return state.started or started_at(pod) or state.seen


def _left_s(since: datetime, duration_s: float, now: datetime) -> float:
    return (since + timedelta(seconds=duration_s) - now).total_seconds()
