"""How does a fake pod live? Stages as data: how long each lasts, and how it ends; for all pods, or said by one itself.

A pod starts, is ready, runs, and stops; every stage has a field of `PodBehavior`, a flag of `bayplan kubelet` and an
annotation, and `STAGES` is the one list of them. Chance is a pod's own: the same pod fails in every replay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from bayplan.codec.go_duration import SECOND, DurationError, parse_duration
from bayplan.objects.core import Pod

_PREFIX = "bayplan.dev/"
STARTS_AFTER = "bayplan.dev/starts-after"
READY_AFTER = "bayplan.dev/ready-after"
RUNS_FOR = "bayplan.dev/runs-for"
STOPS_AFTER = "bayplan.dev/stops-after"
EXIT_CODE = "bayplan.dev/exit-code"
FAILURE_RATE = "bayplan.dev/failure-rate"

FOREVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PodBehavior:
    """What pods do that say nothing themselves."""

    starts_after_s: float = 0.0
    ready_after_s: float = 0.0
    """How long they run before they are ready."""
    runs_for_s: float | None = None
    """After how long they end, `FOREVER` for not by themselves; None: nor then, unless they fail or are a Job's."""
    job_runs_for_s: float = 2.0
    """The same of pods that a Job of `batch/v1` controls, where nothing else is said: work that has an end has one."""
    stops_after_s: float = 0.0
    """How long they take to stop when they are deleted, within their grace period."""
    exit_code: int = 0
    """How they end; anything but 0 is a failure."""
    failure_rate: float | None = None
    """Which share of them fails, with the exit code or with 1; None: as the exit code says."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """When containers end, so long after their start, and how."""

    after_s: float
    exit_code: int


@dataclass(frozen=True, slots=True)
class StageField:
    """One thing that a pod may say of its life."""

    annotation: str
    field: str
    read: Callable[[str], Any]
    """What a text means; None for nonsense."""
    advice: str

    @property
    def flag(self) -> str:
        """What says it of all pods."""
        return f"--{self.annotation.removeprefix(_PREFIX)}"


def parse_seconds(text: str) -> float | None:
    """A duration such as `1m30s` in seconds; None for nonsense, and for what is negative."""
    try:
        seconds = parse_duration(text).nanoseconds / SECOND
    except DurationError:
        return None
    return seconds if seconds >= 0 else None


def duration_or_forever(text: str) -> float | None:
    """A duration, or `forever`."""
    return FOREVER if text == "forever" else parse_seconds(text)


def parse_exit_code(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= 255 else None


def parse_share(text: str) -> float | None:
    """A share such as `0.2` or `20%`."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    if not number.isascii() or not number.replace(".", "", 1).isdigit():
        return None
    share = float(number) / (100.0 if percent else 1.0)
    return share if share <= 1.0 else None


_DURATION = "is no duration; write one such as 90s or 1h30m"
STAGES = (
    StageField(STARTS_AFTER, "starts_after_s", parse_seconds, _DURATION),
    StageField(READY_AFTER, "ready_after_s", parse_seconds, _DURATION),
    StageField(RUNS_FOR, "runs_for_s", duration_or_forever, f"{_DURATION}, or forever"),
    StageField(STOPS_AFTER, "stops_after_s", parse_seconds, _DURATION),
    StageField(EXIT_CODE, "exit_code", parse_exit_code, "is no exit code; write a number from 0 to 255"),
    StageField(FAILURE_RATE, "failure_rate", parse_share, "is no share; write one such as 0.2 or 20%"),
)


_BY_ANNOTATION = {stage.annotation: stage for stage in STAGES}
_SHORT = [stage.annotation.removeprefix(_PREFIX) for stage in STAGES]
_TYPO_CUTOFF = 0.75


def pod_behavior(pod: Pod, habits: PodBehavior) -> PodBehavior:
    """The habits with what the pod says itself; nonsense counts for nothing."""
    annotations = pod.metadata.annotations
    if not any(key.startswith(_PREFIX) for key in annotations):
        return habits
    said = {
        stage.field: value
        for stage in STAGES
        if (text := annotations.get(stage.annotation)) is not None and (value := stage.read(text)) is not None
    }
    return replace(habits, **said) if said else habits


def annotation_problems(pod: Pod) -> list[str]:
    """What the pod's author has to correct; until then the annotation counts for nothing."""
    problems = []
    for key, text in pod.metadata.annotations.items():
        if not key.startswith(_PREFIX):
            continue
        stage = _BY_ANNOTATION.get(key)
        if stage is None:
            # Others of this prefix are none of a kubelet's business, unless they were meant to be.
            if near := get_close_matches(key.removeprefix(_PREFIX), _SHORT, n=1, cutoff=_TYPO_CUTOFF):
                problems.append(f"{key}: there is no such annotation; did you mean {_PREFIX}{near[0]}?")
        elif stage.read(text) is None:
            problems.append(f"{key}: {text!r} {stage.advice}")
    return problems


def container_exit(pod: Pod, life: PodBehavior, turn: int) -> ContainerExit | None:
    """How a pod's containers end this turn, if they do; each restart is a turn of its own."""
    code, after_s = _outcome(pod, life, turn), life.runs_for_s
    if after_s is None:
        after_s = 0.0 if code else life.job_runs_for_s if _of_job(pod) else FOREVER
    return ContainerExit(after_s, code) if after_s != FOREVER else None


def _of_job(pod: Pod) -> bool:
    """Whether a Job of Kubernetes controls it; Jobs of others run until somebody says that they are done."""
    owner = pod.metadata.controller
    return owner is not None and (owner.api_version, owner.kind) == ("batch/v1", "Job")


def _outcome(pod: Pod, life: PodBehavior, turn: int) -> int:
    if life.failure_rate is None:
        return life.exit_code
    drawn = random.Random(f"{pod.uid} {turn}").random()
    return (life.exit_code or 1) if drawn < life.failure_rate else 0
