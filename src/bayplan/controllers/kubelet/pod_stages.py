"""Stages of a fake pod's life: how long each lasts, and how it ends, for all pods or by annotations of one pod.

A pod starts, becomes ready, runs and stops. Each stage has a field of `PodBehavior`, a flag of `bayplan kubelet` and an
annotation; `STAGES` lists them. The random source depends on the pod's uid: the same pod fails in every replay.
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
    """Behavior of pods without annotations."""

    starts_after_s: float = 0.0
    ready_after_s: float = 0.0
    """Seconds from the start to readiness."""
    runs_for_s: float | None = None
    """Seconds until the pod ends; `FOREVER`: never; None: never, unless the pod fails or belongs to a Job."""
    job_runs_for_s: float = 2.0
    """Seconds until pods of a `batch/v1` Job end, unless something else is set."""
    stops_after_s: float = 0.0
    """Seconds from the deletion to the end, within the grace period."""
    exit_code: int = 0
    """Exit code of the containers; anything but 0 is a failure."""
    failure_rate: float | None = None
    """Share of pods that fail, with the exit code or 1; None: the exit code decides."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """End of containers: seconds after their start, and exit code."""

    after_s: float
    exit_code: int


@dataclass(frozen=True, slots=True)
class StageField:
    annotation: str
    field: str
    read: Callable[[str], Any]
    """Parser of the annotation; None for invalid text."""
    advice: str

    @property
    def flag(self) -> str:
        """Flag that sets the stage for all pods."""
        return f"--{self.annotation.removeprefix(_PREFIX)}"


def parse_seconds(text: str) -> float | None:
    """Parse a duration such as `1m30s` to seconds; None for invalid or negative values."""
    try:
        seconds = parse_duration(text).nanoseconds / SECOND
    except DurationError:
        return None
    return seconds if seconds >= 0 else None


def duration_or_forever(text: str) -> float | None:
    return FOREVER if text == "forever" else parse_seconds(text)


def parse_exit_code(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= 255 else None


def parse_share(text: str) -> float | None:
    """Parse a share such as `0.2` or `20%`."""
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
    """Apply the pod's annotations to the default behavior; invalid annotations are ignored."""
    annotations = pod.metadata.annotations
    if not any(key.startswith(_PREFIX) for key in annotations):
        return habits
    overrides = {
        stage.field: value
        for stage in STAGES
        if (text := annotations.get(stage.annotation)) is not None and (value := stage.read(text)) is not None
    }
    return replace(habits, **overrides) if overrides else habits


def annotation_problems(pod: Pod) -> list[str]:
    """Invalid annotations of a pod, for its author to correct. They are ignored."""
    problems = []
    for key, text in pod.metadata.annotations.items():
        if not key.startswith(_PREFIX):
            continue
        stage = _BY_ANNOTATION.get(key)
        if stage is None:
            # Other annotations with this prefix are ignored, unless they look like a misspelling.
            if near := get_close_matches(key.removeprefix(_PREFIX), _SHORT, n=1, cutoff=_TYPO_CUTOFF):
                problems.append(f"{key}: there is no such annotation; did you mean {_PREFIX}{near[0]}?")
        elif stage.read(text) is None:
            problems.append(f"{key}: {text!r} {stage.advice}")
    return problems


def container_exit(pod: Pod, behavior: PodBehavior, run: int) -> ContainerExit | None:
    """End of a pod's containers in this run; None if they do not end. Each restart is a new run."""
    code, after_s = _outcome(pod, behavior, run), behavior.runs_for_s
    if after_s is None:
        after_s = 0.0 if code else behavior.job_runs_for_s if _is_job_pod(pod) else FOREVER
    return ContainerExit(after_s, code) if after_s != FOREVER else None


def _is_job_pod(pod: Pod) -> bool:
    """Whether a `batch/v1` Job controls the pod. Pods of other jobs have no default end."""
    owner = pod.metadata.controller
    return owner is not None and (owner.api_version, owner.kind) == ("batch/v1", "Job")


def _outcome(pod: Pod, behavior: PodBehavior, run: int) -> int:
    if behavior.failure_rate is None:
        return behavior.exit_code
    random_value = random.Random(f"{pod.uid} {run}").random()
    return (behavior.exit_code or 1) if random_value < behavior.failure_rate else 0
