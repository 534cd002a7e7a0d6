"""The `backfill` action: places best-effort tasks, which request no resources, on any feasible node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.session import Session


class Backfill:
    """Places best-effort tasks, queue by queue and job by job."""

    name = "backfill"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    def execute(self, session: Session) -> Iterator[None]:
        for task in self._pick_tasks(session):
            self._place(session, task)
            yield

    def _pick_tasks(self, session: Session) -> list[Task]:
        queues: PriorityQueue[Queue] = PriorityQueue(session.queue_order)
        jobs: dict[str, PriorityQueue[Job]] = {}
        tasks: dict[str, PriorityQueue[Task]] = {}
        for job in session.jobs.values():
            queue = session.queues.get(job.queue)
            if job.is_pending() or session.job_invalid(job) is not None or queue is None:
                continue
            found = _best_effort_tasks(session, job)
            if not found:
                continue
            tasks[job.uid] = PriorityQueue(session.task_order, found)
            if queue.uid not in jobs:
                queues.push(queue)
                jobs[queue.uid] = PriorityQueue(session.job_order)
            jobs[queue.uid].push(job)
        picked: list[Task] = []
        while queues:
            queue_jobs = jobs[queues.pop().uid]
            while queue_jobs:
                waiting = tasks[queue_jobs.pop().uid]
                while waiting:
                    picked.append(waiting.pop())
        return picked

    def _place(self, session: Session, task: Task) -> None:
        failure = session.pre_predicate(task)
        if failure is not None:
            session.record_failure(task, FitErrors.on_all_rows(failure, session.nodes.rows))
            return
        evaluation = session.evaluate_class(task)
        candidates = evaluation.rows_to_allocate(task)
        if not candidates.any():
            errors = evaluation.explain(task, np.flatnonzero(~candidates), with_room=False)
            session.record_failure(task, errors)
            return
        choices = (session.choose(task, part) for part in session.candidate_groups(candidates))
        node = next((each for each in choices if each is not None), None)
        if node is None:  # every score is NaN
            return
        failure = session.allocate(task, node)
        if failure is not None:
            session.record_failure(task, FitErrors.on_all_rows(failure, [node.row]))


def _best_effort_tasks(session: Session, job: Job) -> list[Task]:
    """Pending tasks without a resource request, and pipelined ones, which are un-pipelined first."""
    found = [task for task in job.pending.values() if task.best_effort and not task.gated]
    for task in list(job.with_status(TaskStatus.PIPELINED)):
        if task.best_effort:
            session.statement().unpipeline(task)
            found.append(task)
    return found
