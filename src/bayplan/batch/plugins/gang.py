"""The `gang` plugin: gang scheduling. A job starts when its minimum of tasks can start, and is not evicted below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.statuses import IS_HOLDING
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.close_session import fit_error
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.extension_points import InvalidJob
from bayplan.batch.session.registration import EvictionContext
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints
from bayplan.objects.volcano.types import PodGroupCondition

NOT_ENOUGH_RESOURCES = "NotEnoughResources"
NOT_ENOUGH_TASKS = "NotEnoughTasks"
NOT_ENOUGH_PODS_OF_TASK = "NotEnoughPodsOfTask"
READY_TO_BE_SCHEDULED = "tasks in gang are ready to be scheduled"


class GangPlugin:
    """Applies the `minAvailable` rules of pod groups, sub-groups and roles."""

    name = "gang"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        session.add_job_valid_fn(self.name, _invalid)
        at_minimum = VictimHints(VictimDependence.JOBS, self._is_at_minimum)
        session.add_preemptable_fn(self.name, self._surplus_tasks, at_minimum)
        session.add_reclaimable_fn(self.name, self._surplus_tasks, at_minimum)
        session.add_unified_evictable_fn(self.name, _all_candidates)
        session.add_job_order_fn(self.name, _unready_first)
        session.add_sub_job_order_fn(self.name, _unready_first)
        session.add_job_ready_fn(self.name, _ready)
        session.add_sub_job_ready_fn(self.name, SubJob.is_ready)
        session.add_job_pipelined_fn(self.name, _vote_pipelined)
        session.add_sub_job_pipelined_fn(self.name, _vote_sub_job_pipelined)
        session.add_job_starving_fn(self.name, Job.is_starving)

    def on_session_close(self, session: Session) -> Iterator[None]:
        """Write the gang condition (Scheduled or Unschedulable) of every pod group."""
        now = session.clock.now()
        for job in session.jobs.values():
            if not job.tasks:
                continue
            if job.is_ready():
                found = ("Scheduled", READY_TO_BE_SCHEDULED, "")
            else:
                missing = job.min_available - _schedulable(job)
                text = f"{missing}/{len(job.tasks)} tasks in gang unschedulable: {fit_error(job)}"
                found = ("Unschedulable", NOT_ENOUGH_RESOURCES, text)
            kind, reason, message = found
            condition = PodGroupCondition(
                type=kind,
                status="True",
                transition_id=session.uid,
                last_transition_time=now,
                reason=reason,
                message=message,
            )
            session.update_condition(job, condition)
            yield

    def _is_at_minimum(self, evictor: Job, task: Task) -> bool:  # noqa: ARG002
        job = self._session.jobs.get(task.job)
        return job is None or job.ready_task_num <= job.min_available

    def _surplus_tasks(self, evictor: Task, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        """The candidates that their jobs have above their minimum, in the given order."""
        ready_by_job: dict[str, int] = {}
        victims = []
        for task in candidates:
            job = self._session.jobs.get(task.job)
            if job is None:
                continue
            ready = ready_by_job.setdefault(job.uid, job.ready_task_num)
            if ready > job.min_available:
                ready_by_job[job.uid] = ready - 1
                victims.append(task)
        return victims


def _invalid(job: Job) -> InvalidJob | None:
    if not job.check_task_valid():
        return InvalidJob(NOT_ENOUGH_PODS_OF_TASK, "Not enough valid pods of each task for gang-scheduling")
    if not job.check_sub_job_valid():
        return InvalidJob(NOT_ENOUGH_PODS_OF_TASK, "Not enough valid subGroups of each task for gang-scheduling")
    valid = job.valid_task_num
    if valid < job.min_available:
        text = f"Not enough valid tasks for gang-scheduling, valid: {valid}, min: {job.min_available}"
        return InvalidJob(NOT_ENOUGH_TASKS, text)
    return None


def _all_candidates(context: EvictionContext, candidates: Sequence[Task]) -> Sequence[Task]:  # noqa: ARG001
    """All candidates: bundles of `gangpreempt` and `gangreclaim` already respect gangs."""
    return candidates


def _unready_first(left: Job | SubJob, right: Job | SubJob) -> int:
    return left.is_ready() - right.is_ready()


def _ready(job: Job) -> bool:
    return job.check_task_ready() and job.check_sub_job_ready() and job.is_ready()


def _vote_pipelined(job: Job) -> Vote:
    pipelined = job.check_task_pipelined() and job.check_sub_job_pipelined() and job.is_pipelined()
    return Vote.PERMIT if pipelined else Vote.REJECT


def _vote_sub_job_pipelined(sub_job: SubJob) -> Vote:
    return Vote.PERMIT if sub_job.is_pipelined() else Vote.REJECT


def _schedulable(job: Job) -> int:
    """Number of tasks that have a node, or had one in the last transaction."""
    return job.ready_task_num + sum(IS_HOLDING[task.transaction_context().status] for task in job.pending.values())
