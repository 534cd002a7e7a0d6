"""A job is in this phase and that is to be done: which pods go, and what does the job become?

Volcano's state machine as one table and a function for each way to settle. Pure: the job controller asks
`transition_for` what an action means in a phase, does it, and asks the step what phase the job is in then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayplan.controllers.volcano.job_view import JobView, PodPhaseCounts
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

NextPhase = Callable[[JobView, PodPhaseCounts, int], str]
"""(job, its pods, how often it was restarted) -> the phase that it is in now, or "" for no other."""

FINISHED = frozenset({COMPLETED, FAILED, TERMINATED})
TARGETED = frozenset({RESTART_TASK, RESTART_POD, RESTART_PARTITION})


@dataclass(frozen=True, slots=True)
class JobTransition:
    """What an action means in a phase."""

    kill: bool
    """Pods go; otherwise those that are missing are made."""
    keep_finished_pods: bool = False
    """Pods that have ended stay."""
    targeted: bool = False
    """Only some pods go."""
    target_phase: str = ""
    """The phase afterwards, whatever the pods are like."""
    retry: bool = False
    """One more restart is counted."""
    next_phase: NextPhase | None = None
    """What says the phase afterwards otherwise."""

    def phase(self, job: JobView, counts: PodPhaseCounts, retries: int) -> str:
        """The phase after it was done; the one before where nothing changes it."""
        if self.target_phase:
            return self.target_phase
        return (self.next_phase(job, counts, retries) if self.next_phase is not None else "") or job.phase


def _next_from_pending(job: JobView, counts: PodPhaseCounts, _: int) -> str:
    return RUNNING if job.min_available <= counts.running + counts.succeeded + counts.failed else ""


def _next_from_running(job: JobView, counts: PodPhaseCounts, _: int) -> str:
    if job.replicas == 0:
        return ""  # scaled down to nothing: it may grow again
    if job.min_success is not None and counts.succeeded >= job.min_success:
        return COMPLETED
    if counts.succeeded + counts.failed == job.replicas:
        return _final_phase(job, counts)
    return PENDING if counts.pending > job.replicas - job.min_available else ""


def _final_phase(job: JobView, counts: PodPhaseCounts) -> str:
    """Every pod has ended: has the job done what it was for?"""
    if job.min_available >= job.tasks_min_available:
        for task in job.tasks:
            done = counts.tasks.get(task["name"])
            if done is not None and done.get("Succeeded", 0) < int(task["minAvailable"]):
                return FAILED
    if job.min_success is not None and counts.succeeded < job.min_success:
        return FAILED
    return COMPLETED if counts.succeeded >= job.min_available else FAILED


def _next_from_restarting(job: JobView, counts: PodPhaseCounts, retries: int) -> str:
    if retries >= job.max_retry:
        return FAILED
    return PENDING if job.replicas - counts.terminating >= job.min_available else ""


def _next_when_pods_gone(phase: str) -> NextPhase:
    return lambda _job, counts, _retries: "" if counts.alive else phase


_RESTART = JobTransition(kill=True, target_phase=RESTARTING, retry=True)
_RESTART_SOME = JobTransition(kill=True, targeted=True, target_phase=RESTARTING, retry=True)
_STARTING: dict[str, JobTransition] = {
    RESTART_JOB: _RESTART,
    **dict.fromkeys(TARGETED, _RESTART_SOME),
    ABORT_JOB: JobTransition(kill=True, keep_finished_pods=True, target_phase=ABORTING),
    TERMINATE_JOB: JobTransition(kill=True, keep_finished_pods=True, target_phase=TERMINATING),
    COMPLETE_JOB: JobTransition(kill=True, keep_finished_pods=True, target_phase=COMPLETING),
}
_RESUME = JobTransition(kill=True, keep_finished_pods=True, target_phase=RESTARTING, retry=True)

_TABLE: dict[str, tuple[dict[str, JobTransition], JobTransition]] = {
    PENDING: (_STARTING, JobTransition(kill=False, next_phase=_next_from_pending)),
    RUNNING: (_STARTING, JobTransition(kill=False, next_phase=_next_from_running)),
    RESTARTING: (
        {
            SYNC_JOB: JobTransition(kill=False, next_phase=_next_from_restarting),
            **dict.fromkeys(TARGETED, JobTransition(kill=True, targeted=True, next_phase=_next_from_restarting)),
        },
        JobTransition(kill=True, next_phase=_next_from_restarting),
    ),
    ABORTING: (
        {RESUME_JOB: _RESUME},
        JobTransition(kill=True, keep_finished_pods=True, next_phase=_next_when_pods_gone(ABORTED)),
    ),
    ABORTED: ({RESUME_JOB: _RESUME}, JobTransition(kill=True, keep_finished_pods=True)),
    TERMINATING: ({}, JobTransition(kill=True, keep_finished_pods=True, next_phase=_next_when_pods_gone(TERMINATED))),
    COMPLETING: ({}, JobTransition(kill=True, keep_finished_pods=True, next_phase=_next_when_pods_gone(COMPLETED))),
    **dict.fromkeys(FINISHED, ({}, JobTransition(kill=True, keep_finished_pods=True))),
}
"""By phase: what actions of their own do, and what every other does."""


def transition_for(phase: str, action: str) -> JobTransition:
    """What an action means in a phase; a phase that nobody knows is Pending."""
    own, otherwise = _TABLE.get(phase, _TABLE[PENDING])
    return own.get(action, otherwise)
