"""Dry run of a gang in one domain (hypernode) without some victims. It runs in the session and undoes every step.

Called by `gangpreempt` and `gangreclaim`. Sub-jobs are placed one after another on the future idle resources, within
the hypernode that their topology allows. The first sub-job without a place ends the dry run. A caller can replay the
operations of a successful one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.pending_tasks import collect_pending_tasks
from bayplan.batch.session.registration import SearchPurpose
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import SavedOperation, Statement, save_operations
from bayplan.snapshot import BoolVector

PendingBySubJob = list[tuple[SubJob, list[Task]]]


def waiting_tasks(session: Session, job: Job) -> PendingBySubJob:
    """The pending tasks by sub-job, in scheduling order, without gated tasks."""
    pending = collect_pending_tasks(session, job)
    found: PendingBySubJob = []
    while pending.sub_jobs:
        sub_job = pending.sub_jobs.pop()
        queue = pending.tasks[sub_job.uid]
        tasks = [queue.pop() for _ in range(len(queue))]
        free = [task for task in tasks if not task.gated]
        if free:
            found.append((sub_job, free))
    return found


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The operations that place a gang, and the hypernode of each sub-job by its uid."""

    operations: list[SavedOperation]
    hypernodes: dict[str, str]


class GangDryRun:
    def __init__(self, session: Session, queue: Queue, job: Job, *, reason: str, caches_errors: bool) -> None:
        self._session = session
        self._queue = queue
        self._job = job
        self._pending = waiting_tasks(session, job)
        self._reason = reason
        self._caches_errors = caches_errors

    def tasks(self) -> list[Task]:
        """The tasks that need resources: those of the first sub-job if the job is ready, else all pending tasks."""
        selected = self._pending[:1] if self._session.job_ready(self._job) else self._pending
        return [task for _, members in selected for task in members]

    def try_domain(self, domain: HyperNode, victims: Sequence[Task]) -> GangPlan | None:
        """Return the plan that pipelines the gang in a domain after the evictions; None if it does not fit."""
        was_ready = self._session.job_ready(self._job)
        statements: list[Statement] = []
        try:
            statements.append(self._evict_victims(victims))
            places: dict[str, str] = {}
            for sub_job, tasks in self._pending:
                trial = self._place_sub_job(sub_job, tasks, domain, evicting=bool(victims))
                if trial is None:
                    return None
                statements.append(trial[0])
                places[sub_job.uid] = trial[1]
                enough = self._session.job_pipelined(self._job)
                if was_ready or enough:
                    return GangPlan(save_operations(*statements), places) if enough else None
            return None
        finally:
            for statement in reversed(statements):
                statement.discard()

    def _evict_victims(self, victims: Sequence[Task]) -> Statement:
        statement = self._session.statement()
        for victim in victims:
            statement.evict(victim, self._reason)
        return statement

    def _place_sub_job(
        self, sub_job: SubJob, tasks: Sequence[Task], domain: HyperNode, *, evicting: bool
    ) -> tuple[Statement, str] | None:
        for place in self._hypernodes_for(sub_job, domain):
            with self._session.last_choices.scope(place.name):
                trial = self._try_hypernode(sub_job, tasks, place.name, evicting=evicting)
            if trial is not None:
                return trial, place.name
        return None

    def _hypernodes_for(self, sub_job: SubJob, domain: HyperNode) -> Iterator[HyperNode]:
        if not self._job.contains_hard_topology():
            yield domain
            return
        for gradient in self._session.hyper_node_gradient_for_sub_job(sub_job, domain, SearchPurpose.EVICT):
            yield from gradient

    def _try_hypernode(self, sub_job: SubJob, tasks: Sequence[Task], place: str, *, evicting: bool) -> Statement | None:
        """Pipeline all tasks of a sub-job in a hypernode. Undo it and return None if a task finds no node."""
        session = self._session
        inside = _rows(session, place)
        if not inside.any():
            return None
        statement = session.statement()
        failed: dict[str, BoolVector] = {}
        for task in tasks:
            node = self._node_for(task, inside, failed)
            if node is None or not statement.pipeline(task, node.name, eviction_occurred=evicting):
                statement.discard()
                return None
        if session.sub_job_ready(self._job, sub_job) or session.sub_job_pipelined(self._job, sub_job):
            return statement
        statement.discard()
        return None

    def _node_for(self, task: Task, inside: BoolVector, failed: dict[str, BoolVector]) -> Node | None:
        session = self._session
        if not session.allocatable(self._queue, task):
            return None
        worth_evicting = session.rows_worth_evicting(task)
        rows = inside & worth_evicting if worth_evicting.any() else inside  # none: all, as upstream
        if not rows.any() or session.pre_predicate(task) is not None:
            return None
        evaluation = session.evaluate_class(task)
        candidate_rows = rows & evaluation.fits_future
        if task.role in failed:
            candidate_rows &= ~failed[task.role]
        feasible = evaluation.rows_to_preempt(task, candidate_rows)
        if task.role and self._caches_errors:
            failed[task.role] = failed.get(task.role, np.zeros_like(rows)) | (rows & ~feasible)
        idle = feasible & evaluation.fits_idle
        for candidates in (idle, feasible & ~idle):
            node = session.choose(task, candidates)
            if node is not None:
                return node
        return None


def _rows(session: Session, place: str) -> BoolVector:
    mask = np.zeros(len(session.nodes), dtype=np.bool_)
    mask[session.hyper_nodes.nodes_of(place).rows] = True
    return mask
