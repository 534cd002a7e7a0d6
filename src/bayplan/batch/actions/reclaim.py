"""The `reclaim` action: starving jobs evict tasks of other queues that may be reclaimed from.

It goes queue by queue and job by job. The evictions for a job are committed only if the job becomes pipelined. Nodes
are not scored: the first node on which evictions suffice is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from bayplan.batch.actions.row_orders import first_rows, rows_in_order
from bayplan.batch.actions.victim_search import EvictableTasks, ExhaustedRows, SearchAccepts, VictimSearch, fits_without
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session import extension_points
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import Statement

REASON = "reclaim"
PREEMPT_NEVER = "Never"


class Reclaim:
    """Reclaims for jobs of queues that are not overused, from other queues that are reclaimable."""

    name = "reclaim"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    def execute(self, session: Session) -> Iterator[None]:
        return _ReclaimRun(session).run()


class _ReclaimRun:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._queues: PriorityQueue[Queue] = PriorityQueue(session.queue_order)
        self._jobs: dict[str, PriorityQueue[Job]] = {}  # starving jobs, by queue
        self._tasks: dict[str, PriorityQueue[Task]] = {}
        self._all: EvictableTasks | None = None  # running tasks of all reclaimable queues
        self._own: dict[str, EvictableTasks] = {}  # running tasks of one reclaimable queue, by queue
        self._exhausted: dict[str, ExhaustedRows] = {}  # by queue: rows where other queues hold too little

    def run(self) -> Iterator[None]:
        seen: set[str] = set()
        for job in self._session.jobs.values():
            self._add_job(job, seen)
            yield
        while self._queues:
            queue = self._queues.pop()
            if not self._session.overused(queue):
                yield from self._reclaim_for_job(queue)

    def _add_job(self, job: Job, seen: set[str]) -> None:
        session = self._session
        queue = session.queues.get(job.queue)
        if job.is_pending() or session.job_invalid(job) is not None or queue is None:
            return
        if queue.uid not in seen:
            seen.add(queue.uid)
            self._queues.push(queue)
        if session.job_starving(job):
            self._jobs.setdefault(queue.uid, PriorityQueue(session.job_order)).push(job)
            waiting = [task for task in job.pending.values() if not task.gated]
            self._tasks[job.uid] = PriorityQueue(session.task_order, waiting)

    def _reclaim_for_job(self, queue: Queue) -> Iterator[None]:
        jobs = self._jobs.get(queue.uid)
        while jobs:
            job = jobs.pop()
            statement = self._session.statement()
            tasks, search = self._tasks[job.uid], self._victims_of_other_queues(queue, job)
            while self._session.job_starving(job) and tasks:
                self._reclaim_for_task(statement, queue, tasks.pop(), search)
                yield
            if self._session.job_pipelined(job):
                statement.commit()
                yield
            else:
                statement.discard()
            if jobs:
                self._queues.push(queue)  # without effect, because all jobs of it are served above; as upstream

    def _reclaim_for_task(self, statement: Statement, queue: Queue, task: Task, search: VictimSearch) -> bool:
        """Evict victims on one node for the task. False if no node is possible."""
        session = self._session
        if task.pod.spec.preemption_policy == PREEMPT_NEVER or not session.preemptive(queue, [task]):
            return False
        if session.pre_predicate(task) is not None:
            return False
        for row in self._rows(task, search):
            node, found = session.nodes.at_row(row), search.tasks_on_row(row)
            if not found or not fits_without(task, node, found):
                search.mark_exhausted(row)
                continue
            victims = session.reclaimable(task, found)
            if not fits_without(task, node, victims):
                search.set_aside(row, found)
            elif (evicted := self._evict_until_fits(statement, task, node, victims)) is not None:
                search.note_evicted(evicted)
                return True
        return False

    def _rows(self, task: Task, search: VictimSearch) -> Iterator[int]:
        """Candidate rows. Expensive tests run on a few rows first, and on the rest only if these rows fail."""
        evaluation = self._session.evaluate_class(task)
        for among in self._session.candidate_groups(self._session.rows_worth_evicting(task) & search.rows(task)):
            first = first_rows(among)
            yield from rows_in_order(evaluation.rows_to_preempt(task, first))
            if first is not among:
                yield from rows_in_order(evaluation.rows_to_preempt(task, among & ~first & search.narrow(task)))

    def _evict_until_fits(self, statement: Statement, task: Task, node: Node, victims: list[Task]) -> list[Task] | None:
        """Evict as few victims as needed, the least important first, and pipeline the task.

        Return the evicted tasks, or None if they do not suffice.
        """
        trial = self._session.statement()
        waiting = self._session.victims_queue(victims, task)
        evicted: list[Task] = []
        while waiting and not node.fits_future(task):
            evicted.append(waiting.pop())
            trial.evict(evicted[-1], REASON)
        if node.fits_future(task) and trial.pipeline(task, node.name, eviction_occurred=bool(evicted)):
            statement.merge(trial)
            return evicted
        trial.discard()
        return None

    def _victims_of_other_queues(self, queue: Queue, job: Job) -> VictimSearch:
        """The search over running tasks of other queues that are reclaimable."""
        session = self._session
        if self._all is None:
            self._all = self._running_tasks(name for name, each in session.queues.items() if each.reclaimable)
        if queue.uid not in self._own and queue.reclaimable:
            self._own[queue.uid] = self._running_tasks([queue.name])
        if queue.uid not in self._exhausted:
            self._exhausted[queue.uid] = ExhaustedRows(session)
        return VictimSearch(
            session,
            job,
            extension_points.RECLAIMABLE,
            self._all,
            excluded=self._own.get(queue.uid),
            accepts=SearchAccepts.IDLE_WITH_VICTIMS,
            exhausted=self._exhausted[queue.uid],
        )

    def _running_tasks(self, queues: Iterable[str]) -> EvictableTasks:
        names = set(queues)
        jobs = [job for job in self._session.jobs.values() if job.queue in names]
        return EvictableTasks(self._session, jobs, [TaskStatus.RUNNING])
