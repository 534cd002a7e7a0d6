"""State machine of Volcano jobs: what an action does in each phase, and the phase that follows. Pure.

The job controller calls `transition_for` with phase and action, performs the transition, and gets the next phase from
it."""

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
"""(job, its pods, number of restarts) -> next phase, or "" for no change."""

FINISHED = frozenset({COMPLETED, FAILED, TERMINATED})
TARGETED = frozenset({RESTART_TASK, RESTART_POD, RESTART_PARTITION})


@dataclass(frozen=True, slots=True)
class JobTransition:
    """Effect of an action in a phase."""

    kill: bool
    """Delete pods. Otherwise create missing pods."""
    keep_finished_pods: bool = False
    """Keep finished pods."""
    targeted: bool = False
    """Delete only the action's target pods."""
    target_phase: str = ""
    """Next phase, whatever the pods' state is."""
    retry: bool = False
    """Increment the retry count."""
    next_phase: NextPhase | None = None
    """Computes the next phase when `target_phase` is empty."""

    def phase(self, job: JobView, counts: PodPhaseCounts, retries: int) -> str:
        """Next phase after the transition, or the current one."""
        if self.target_phase:
            return self.target_phase
        return (self.next_phase(job, counts, retries) if self.next_phase is not None else "") or job.phase


def _next_from_pending(job: JobView, counts: PodPhaseCounts, _: int) -> str:
    return RUNNING if job.min_available <= counts.running + counts.succeeded + counts.failed else ""


def _next_from_running(job: JobView, counts: PodPhaseCounts, _: int) -> str:
    if job.replicas == 0:
        return ""  # scaled down to zero: it may be scaled up again
    if job.min_success is not None and counts.succeeded >= job.min_success:
        return COMPLETED
    if counts.succeeded + counts.failed == job.replicas:
        return _final_phase(job, counts)
    return PENDING if counts.pending > job.replicas - job.min_available else ""


def _final_phase(job: JobView, counts: PodPhaseCounts) -> str:
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
_FROM_ACTIVE: dict[str, JobTransition] = {
    RESTART_JOB: _RESTART,
    **dict.fromkeys(TARGETED, _RESTART_SOME),
    ABORT_JOB: JobTransition(kill=True, keep_finished_pods=True, target_phase=ABORTING),
    TERMINATE_JOB: JobTransition(kill=True, keep_finished_pods=True, target_phase=TERMINATING),
    COMPLETE_JOB: JobTransition(kill=True, keep_finished_pods=True, target_phase=COMPLETING),
}
_RESUME = JobTransition(kill=True, keep_finished_pods=True, target_phase=RESTARTING, retry=True)

_TABLE: dict[str, tuple[dict[str, JobTransition], JobTransition]] = {
    PENDING: (_FROM_ACTIVE, JobTransition(kill=False, next_phase=_next_from_pending)),
    RUNNING: (_FROM_ACTIVE, JobTransition(kill=False, next_phase=_next_from_running)),
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
"""By phase: transitions of its own actions, and of all other actions."""


def transition_for(phase: str, action: str) -> JobTransition:
    """Transition of an action in a phase. An unknown phase counts as Pending."""
    transitions, default = _TABLE.get(phase, _TABLE[PENDING])
    return transitions.get(action, default)
