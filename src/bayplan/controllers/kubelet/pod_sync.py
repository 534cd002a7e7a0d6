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

from bayplan.controllers.core.api_types import SeenPod, Terminated
from bayplan.controllers.kubelet.pod_stages import PodHabits, end_of, life_of
from bayplan.controllers.kubelet.pod_status import (
    backs_off,
    began,
    end_at,
    ended_status,
    ended_turn,
    last_end,
    pod_in_words,
    resized_status,
    restarts,
    running_status,
    running_turn,
    seen_turn,
    waiting_turn,
)
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.kai.gpu_sharing import DEVICE, GROUP_LABEL, whole_gpus

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0
CALM_S = 2 * LONGEST_PAUSE_S
"""Containers that ran so long are started again at once, and the pauses begin anew."""
SETTLED_S = 10.0
"""Containers that end and start again sooner than this were never ready: the first probes would have told. Without it
a version that crashes after a second would be ready for that second, and all of the old version gone."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event about the pod, always a warning."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """Patch the pod's status."""

    status: dict[str, Any]
    remember: Mapping[str, Any] = field(default_factory=dict)
    """What changes in the kubelet's `Memory`."""
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Annotate:
    """Patch the pod's annotations, as a program in it does."""

    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Remove:
    """The pod has stopped: delete it with no grace left, after telling its end where somebody waits for that."""

    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after that many seconds."""

    seconds: float


Step = Report | Annotate | Remove | Wait | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the kubelet knows of a pod to the microsecond, where the API keeps whole seconds or nothing."""

    seen: datetime
    started: datetime | None = None
    ended: datetime | None = None
    """When its containers ended last."""
    tries: int | None = None
    """How often they were started again since they last ran for long; None: as often as the pod says."""
    stopping: datetime | None = None
    problems: frozenset[str] = frozenset()
    """What its author was told to correct."""


def next_step(pod: SeenPod, *, now: datetime, memory: Memory, habits: PodHabits) -> Step:
    """What is to be done now, if anything."""
    life = life_of(pod, habits)
    if pod.terminating:
        return _stopping(pod, now, memory, life)
    if pod.finished:
        return None
    if pod.status.phase != "Running":
        wait_s = _left_s(memory.seen, life.starts_after_s, now)
        return Wait(wait_s) if wait_s > 0 else _starting(pod, now, life)
    if resized(pod):
        return Report(resized_status(pod, now))
    if holds_device(pod) and DEVICE not in pod.metadata.annotations:
        return Annotate({DEVICE: f"GPU-{pod.uid}"})
    end = last_end(pod)
    if end is not None and (backs_off(pod) or starts_again(pod, end.exit_code)):
        return _starting_again(pod, now, memory, life, end)
    return _living(pod, now, memory, life)


def resized(pod: Pod) -> bool:
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


def starts_again(pod: SeenPod, exit_code: int) -> bool:
    """Whether a kubelet starts containers again that ended so."""
    return pod.spec.restart_policy == "Always" or (pod.spec.restart_policy == "OnFailure" and exit_code != 0)


# The life of containers.


def _starting(
    pod: SeenPod, now: datetime, life: PodHabits, *, tries: int = 0, last: Terminated | None = None
) -> Report:
    """`last`: how the containers ended before, if they start again."""
    count = restarts(pod) + 1 if last is not None else 0
    turn = running_turn(now, count=count, last=last, ready=life.ready_after_s <= 0 and _settles(pod, life, count))
    end = end_of(pod, life, count)
    if end is None or end.after_s > 0 or not starts_again(pod, end.exit_code):
        return Report(running_status(pod, now, turn), {"started": now, "tries": tries})
    # Told in one: nobody is to see that they ran, and to go by it.
    turn = ended_turn(end_at(now, now, end.exit_code), count=count, last=turn.last)
    return Report(running_status(pod, now, turn), {"started": now, "ended": now, "tries": tries})


def _settles(pod: SeenPod, life: PodHabits, count: int) -> bool:
    """Whether the containers run long enough to be ready at all, in their turn of this number."""
    end = end_of(pod, life, count)
    return end is None or end.after_s >= SETTLED_S or not starts_again(pod, end.exit_code)


def _living(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Step:
    """Containers run; whatever comes first."""
    end, ready = _finishing(pod, now, memory, life), _becoming_ready(pod, now, memory, life)
    if isinstance(end, Wait) and isinstance(ready, Wait):
        return min(end, ready, key=lambda each: each.seconds)
    return end if isinstance(end, Report) else ready or end


def _becoming_ready(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Report | Wait | None:
    """A pod that is not ready, or that somebody called so, is ready when its time has come."""
    told = pod.condition("Ready")
    if told is None or told.status == "True" or not _settles(pod, life, restarts(pod)):
        return None
    left_s = _left_s(_since(pod, memory), life.ready_after_s, now)
    return Wait(left_s) if left_s > 0 else Report(running_status(pod, now, replace(seen_turn(pod), ready=True)))


def _finishing(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Report | Wait | None:
    end = end_of(pod, life, restarts(pod))
    if end is None:
        return None
    left_s = _left_s(_since(pod, memory), end.after_s, now)
    if left_s > 0:
        return Wait(left_s)
    if not starts_again(pod, end.exit_code):
        return Report(ended_status(pod, now, "Failed" if end.exit_code else "Succeeded", end.exit_code))
    ended = end_at(began(pod) or now, now, end.exit_code)
    turn = ended_turn(ended, count=restarts(pod), last=seen_turn(pod).last)
    calm = {"tries": 0} if end.after_s >= CALM_S else {}
    return Report(running_status(pod, now, turn), {"ended": now, **calm})


def _starting_again(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits, end: Terminated) -> Step:
    tries = memory.tries if memory.tries is not None else restarts(pod)
    pause_s = _pause_s(tries)
    left_s = _left_s(memory.ended or end.finished_at or memory.seen, pause_s, now)
    if left_s <= 0:
        return _starting(pod, now, life, tries=tries + 1, last=end)
    if backs_off(pod):
        return Wait(left_s)
    told = "Back-off restarting failed container {} in pod {}"
    notes = tuple(Note("BackOff", told.format(each.name, pod_in_words(pod))) for each in pod.spec.containers)
    return Report(running_status(pod, now, waiting_turn(pod, end, pause_s)), notes=notes)


def _pause_s(tries: int) -> float:
    """How long a kubelet waits before it starts a container again: not at first, then ever longer."""
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10), LONGEST_PAUSE_S) if tries else 0.0


def _stopping(pod: SeenPod, now: datetime, memory: Memory, life: PodHabits) -> Step:
    deadline = pod.metadata.deletion_timestamp
    left_s = _left_s(memory.stopping or now, life.stops_after_s, now)
    if deadline is not None:
        left_s = min(left_s, (deadline - now).total_seconds())
    if left_s > 0:
        return Wait(left_s)
    # Whoever keeps the pod with a finalizer wants to know how it ended; for others that would be a wasted request.
    tells = bool(pod.metadata.finalizers) and not pod.finished
    return Remove(ended_status(pod, now, "Failed", 143) if tells else None)


def _since(pod: SeenPod, memory: Memory) -> datetime:
    return memory.started or began(pod) or memory.seen


def _left_s(since: datetime, lasting_s: float, now: datetime) -> float:
    return (since + timedelta(seconds=lasting_s) - now).total_seconds()
