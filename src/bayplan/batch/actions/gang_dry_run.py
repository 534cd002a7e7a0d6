"""Would a gang fit into this part of the cluster if these tasks were gone? Tried out in the session, and undone.

Asked by `gangpreempt` and `gangreclaim`. Each sub-job is placed in turn on what will be idle, within the hypernode that
its topology allows; the first that finds no place ends the trial. The steps that worked can be taken again.
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
    """The tasks that wait for room by sub-job, in the order in which they are served; gated ones wait for more."""
    sheet = collect_pending_tasks(session, job)
    found: PendingBySubJob = []
    while sheet.sub_jobs:
        sub_job = sheet.sub_jobs.pop()
        queue = sheet.tasks[sub_job.uid]
        tasks = [queue.pop() for _ in range(len(queue))]
        free = [task for task in tasks if not task.gated]
        if free:
            found.append((sub_job, free))
    return found


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Steps that give a gang its room, and where each sub-job goes by them."""

    operations: list[SavedOperation]
    hypernodes: dict[str, str]


class GangDryRun:
    """Tries things out for one job."""

    def __init__(self, session: Session, queue: Queue, job: Job, *, reason: str, remembers_errors: bool) -> None:
        self._session = session
        self._queue = queue
        self._job = job
        self._waiting = waiting_tasks(session, job)
        self._reason = reason
        self._remembers_errors = remembers_errors

    def tasks(self) -> list[Task]:
        """Those that need room: of a job that runs already the first sub-job's, else all that wait."""
        counted = self._waiting[:1] if self._session.job_ready(self._job) else self._waiting
        return [task for _, members in counted for task in members]

    def try_domain(self, domain: HyperNode, victims: Sequence[Task]) -> GangPlan | None:
        """How the gang gets its room in a domain once the victims are gone; None where it does not."""
        was_ready = self._session.job_ready(self._job)
        done: list[Statement] = []
        try:
            done.append(self._evict_victims(victims))
            places: dict[str, str] = {}
            for sub_job, tasks in self._waiting:
                trial = self._place_sub_job(sub_job, tasks, domain, evicting=bool(victims))
                if trial is None:
                    return None
                done.append(trial[0])
                places[sub_job.uid] = trial[1]
                enough = self._session.job_pipelined(self._job)
                if was_ready or enough:
                    return GangPlan(save_operations(*done), places) if enough else None
            return None
        finally:
            for statement in reversed(done):
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
        """All tasks of a sub-job promised room in a hypernode; None, and nothing changed, where one finds none."""
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
        hopeful = session.rows_worth_evicting(task)
        rows = inside & hopeful if hopeful.any() else inside  # without any hope upstream forgets that there is none
        if not rows.any() or session.pre_predicate(task) is not None:
            return None
        prospect = session.evaluate_class(task)
        asked = rows & prospect.fits_future
        if task.role in failed:
            asked &= ~failed[task.role]
        feasible = prospect.rows_to_preempt(task, asked)
        if task.role and self._remembers_errors:
            failed[task.role] = failed.get(task.role, np.zeros_like(rows)) | (rows & ~feasible)
        idle = feasible & prospect.fits_idle
        for candidates in (idle, feasible & ~idle):
            node = session.choose(task, candidates)
            if node is not None:
                return node
        return None


def _rows(session: Session, place: str) -> BoolVector:
    mask = np.zeros(len(session.nodes), dtype=np.bool_)
    mask[session.hyper_nodes.nodes_of(place).rows] = True
    return mask
