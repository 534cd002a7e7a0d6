"""The `priority` plugin: orders by priority and allows preemption of lower priorities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.registration import EvictionContext, EvictionKind
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints


class PriorityPlugin:
    """Orders tasks, sub-jobs and jobs by priority; only lower priorities are victims."""

    name = "priority"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        session.add_task_order_fn(self.name, _higher_first)
        session.add_job_order_fn(self.name, _higher_first)
        session.add_sub_job_order_fn(self.name, _higher_first)
        session.add_preemptable_fn(self.name, self._preemptable, VictimHints(VictimDependence.JOBS, self._is_no_lower))
        session.add_unified_evictable_fn(self.name, self._evictable)
        session.add_job_starving_fn(self.name, _has_waiting_tasks)

    def _preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks of jobs with a lower priority; within the preemptor's job, tasks with a lower priority."""
        jobs = self._session.jobs
        own_job = jobs.get(preemptor.job)
        if own_job is None:
            return []
        victims = []
        for task in candidates:
            job = jobs.get(task.job)
            if job is None:
                continue
            is_lower = task.priority < preemptor.priority if job is own_job else job.priority < own_job.priority
            if is_lower:
                victims.append(task)
        return victims

    def _is_no_lower(self, evictor: Job, task: Task) -> bool:
        job = self._session.jobs.get(task.job)
        return job is None or (job is not evictor and job.priority >= evictor.priority)

    def _evictable(self, context: EvictionContext, candidates: Sequence[Task]) -> list[Task]:
        """Victims of gang eviction. Priority is ignored between queues, where fairness decides."""
        if context.kind is EvictionKind.GANG_RECLAIM:
            return list(candidates)
        jobs = self._session.jobs
        return [task for task in candidates if jobs[task.job].priority < context.job.priority]


def _higher_first(left: Task | Job | SubJob, right: Task | Job | SubJob) -> int:
    return right.priority - left.priority


def _has_waiting_tasks(job: Job) -> bool:
    return job.ready_task_num + job.waiting_task_num < len(job.tasks)
