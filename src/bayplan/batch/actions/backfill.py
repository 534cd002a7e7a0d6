"""Tasks that ask for nothing go wherever they may: they take no room that anybody counts."""

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
    """Places best-effort tasks, queue by queue, job by job."""

    name = "backfill"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def initialize(self) -> None:
        """Nothing to prepare."""

    def uninitialize(self) -> None:
        """Nothing to give back."""

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
            mine = jobs[queues.pop().uid]
            while mine:
                waiting = tasks[mine.pop().uid]
                while waiting:
                    picked.append(waiting.pop())
        return picked

    def _place(self, session: Session, task: Task) -> None:
        refused = session.pre_predicate(task)
        if refused is not None:
            session.record_failure(task, FitErrors.on_all_rows(refused, session.nodes.rows))
            return
        prospect = session.evaluate_class(task)
        candidates = prospect.rows_to_allocate(task)
        if not candidates.any():
            errors = prospect.explain(task, np.flatnonzero(~candidates), with_room=False)
            session.record_failure(task, errors)
            return
        choices = (session.choose(task, part) for part in session.candidate_groups(candidates))
        node = next((each for each in choices if each is not None), None)
        if node is None:  # no score could be compared
            return
        refused = session.allocate(task, node)
        if refused is not None:
            session.record_failure(task, FitErrors.on_all_rows(refused, [node.row]))


def _best_effort_tasks(session: Session, job: Job) -> list[Task]:
    """Waiting tasks without a request, and those that were promised room they do not need."""
    found = [task for task in job.pending.values() if task.best_effort and not task.gated]
    for task in list(job.with_status(TaskStatus.PIPELINED)):
        if task.best_effort:
            session.statement().unpipeline(task)
            found.append(task)
    return found
