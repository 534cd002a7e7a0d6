"""A job is in this phase and that is to be done: which pods go, and what does the job become?

Volcano's state machine as one table and a function for each way to settle. Pure: the job controller asks `step_for`
what an action means in a phase, does it, and asks the step what phase the job is in then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayplan.controllers.volcano.job_view import Counts, JobView
from bayplan.objects.volcano.constants import (
    ABORT_JOB,
    ABORTED,
    ABORTING,
    COMPLETE_JOB,
    COMPLETED,
    COMPLETING,
    FAILED,
    PENDING,
    RESTART_JOB,
    RESTART_PARTITION,
    RESTART_POD,
    RESTART_TASK,
    RESTARTING,
    RESUME_JOB,
    RUNNING,
    SYNC_JOB,
    TERMINATE_JOB,
    TERMINATED,
    TERMINATING,
)

Settle = Callable[[JobView, Counts, int], str]
"""(job, its pods, how often it was restarted) -> the phase that it is in now, or "" for no other."""

FINISHED = frozenset({COMPLETED, FAILED, TERMINATED})
TARGETED = frozenset({RESTART_TASK, RESTART_POD, RESTART_PARTITION})


@dataclass(frozen=True, slots=True)
class Step:
    """What an action means in a phase."""

    kill: bool
    """Pods go; otherwise those that are missing are made."""
    soft: bool = False
    """Pods that have ended stay."""
    targeted: bool = False
    """Only some pods go."""
    becomes: str = ""
    """The phase afterwards, whatever the pods are like."""
    retry: bool = False
    """One more restart is counted."""
    settle: Settle | None = None
    """What says the phase afterwards otherwise."""

    def phase(self, job: JobView, counts: Counts, retries: int) -> str:
        """The phase after it was done; the one before where nothing changes it."""
        if self.becomes:
            return self.becomes
        return (self.settle(job, counts, retries) if self.settle is not None else "") or job.phase


def _settle_pending(job: JobView, counts: Counts, _: int) -> str:
    return RUNNING if job.min_available <= counts.running + counts.succeeded + counts.failed else ""


def _settle_running(job: JobView, counts: Counts, _: int) -> str:
    if job.replicas == 0:
        return ""  # scaled down to nothing: it may grow again
    if job.min_success is not None and counts.succeeded >= job.min_success:
        return COMPLETED
    if counts.succeeded + counts.failed == job.replicas:
        return _outcome(job, counts)
    return PENDING if counts.pending > job.replicas - job.min_available else ""


def _outcome(job: JobView, counts: Counts) -> str:
    """Every pod has ended: has the job done what it was for?"""
    if job.min_available >= job.tasks_min_available:
        for task in job.tasks:
            done = counts.tasks.get(task["name"])
            if done is not None and done.get("Succeeded", 0) < int(task["minAvailable"]):
                return FAILED
    if job.min_success is not None and counts.succeeded < job.min_success:
        return FAILED
    return COMPLETED if counts.succeeded >= job.min_available else FAILED


def _settle_restarting(job: JobView, counts: Counts, retries: int) -> str:
    if retries >= job.max_retry:
        return FAILED
    return PENDING if job.replicas - counts.terminating >= job.min_available else ""


def _settle_when_gone(phase: str) -> Settle:
    return lambda _job, counts, _retries: "" if counts.alive else phase


_RESTART = Step(kill=True, becomes=RESTARTING, retry=True)
_RESTART_SOME = Step(kill=True, targeted=True, becomes=RESTARTING, retry=True)
_STARTING: dict[str, Step] = {
    RESTART_JOB: _RESTART,
    **dict.fromkeys(TARGETED, _RESTART_SOME),
    ABORT_JOB: Step(kill=True, soft=True, becomes=ABORTING),
    TERMINATE_JOB: Step(kill=True, soft=True, becomes=TERMINATING),
    COMPLETE_JOB: Step(kill=True, soft=True, becomes=COMPLETING),
}
_RESUME = Step(kill=True, soft=True, becomes=RESTARTING, retry=True)

_TABLE: dict[str, tuple[dict[str, Step], Step]] = {
    PENDING: (_STARTING, Step(kill=False, settle=_settle_pending)),
    RUNNING: (_STARTING, Step(kill=False, settle=_settle_running)),
    RESTARTING: (
        {
            SYNC_JOB: Step(kill=False, settle=_settle_restarting),
            **dict.fromkeys(TARGETED, Step(kill=True, targeted=True, settle=_settle_restarting)),
        },
        Step(kill=True, settle=_settle_restarting),
    ),
    ABORTING: ({RESUME_JOB: _RESUME}, Step(kill=True, soft=True, settle=_settle_when_gone(ABORTED))),
    ABORTED: ({RESUME_JOB: _RESUME}, Step(kill=True, soft=True)),
    TERMINATING: ({}, Step(kill=True, soft=True, settle=_settle_when_gone(TERMINATED))),
    COMPLETING: ({}, Step(kill=True, soft=True, settle=_settle_when_gone(COMPLETED))),
    **dict.fromkeys(FINISHED, ({}, Step(kill=True, soft=True))),
}
"""By phase: what actions of their own do, and what every other does."""


def step_for(phase: str, action: str) -> Step:
    """What an action means in a phase; a phase that nobody knows is Pending."""
    own, otherwise = _TABLE.get(phase, _TABLE[PENDING])
    return own.get(action, otherwise)
