"""Allocation of jobs with a network topology or sub-groups: tries every hypernode of a gradient and keeps the best.

A trial places the tasks, saves its operations and undoes them. Gradients come from plugins, closest hypernodes first.
Without any gradient there is one trial, on all nodes. If the scores are known in advance (`rank_hypernodes`), most
trials are skipped. Skipped trials leave no fit errors, so only gangs that are placed completely use the shortcut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bayplan.batch.model.hypernodes import TOP_HYPERNODE, HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.pending_tasks import PendingTasks
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.registration import SearchPurpose
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import SavedOperation, Statement, save_operations

if TYPE_CHECKING:
    from bayplan.batch.actions.allocate import TaskPlacer

_MAX_FAILED_TRIALS = 8
"""This many of the best hypernodes are tried before the allocator falls back to trying all of them."""


class HypernodeTrial(NamedTuple):
    """Result of placing a job in one hypernode."""

    score: float
    operations: list[SavedOperation]
    remaining: PendingTasks
    ready: bool


class TopologyAllocator:
    """Allocates jobs with a topology constraint or sub-groups."""

    def __init__(self, session: Session, placer: TaskPlacer) -> None:
        self._session = session
        self._placer = placer
        self._decisions: dict[str, dict[str, dict[str, str]]] = {}  # job -> hypernode of the job -> of sub-jobs

    def allocate_job(self, job: Job, pending: PendingTasks) -> bool:
        """Place as many tasks of the job as possible now. True if the job has more tasks to place."""
        found = self._allocate_for_job(job, pending, self._session.hyper_nodes.top)
        if found is None:
            return False
        statement, hyper_node = found
        if not self._session.job_ready(job):
            return False
        if not statement.commit():
            return False
        self._session.mark_job_dirty(job)
        self._write_decision(job, hyper_node)
        return bool(pending)

    def _write_decision(self, job: Job, hyper_node: str) -> None:
        tree = self._session.hyper_nodes
        job.allocated_hyper_node = tree.lowest_common(job.allocated_hyper_node, hyper_node)
        for uid, place in self._decisions.get(job.uid, {}).get(hyper_node, {}).items():
            sub_job = job.sub_jobs.get(uid)
            if sub_job is not None:
                sub_job.allocated_hyper_node = tree.lowest_common(sub_job.allocated_hyper_node, place)
                sub_job.nominated_hyper_node = ""

    # Jobs

    def _allocate_for_job(self, job: Job, pending: PendingTasks, root: HyperNode) -> tuple[Statement, str] | None:
        session = self._session
        before = {uid: sub.allocated_hyper_node for uid, sub in job.sub_jobs.items() if uid in pending.tasks}
        for gradient in session.hyper_node_gradient_for_job(job, root, SearchPurpose.ALLOCATE):
            found = self._try_ranked_hypernodes(job, pending, gradient, before) or self._try_all_hypernodes(
                job, pending, gradient, before
            )
            if found is None:
                continue
            best, trial = found
            statement = session.statement()
            if not statement.recover_operations(trial.operations):
                return None
            pending.replace_with(trial.remaining)
            return statement, best
        return None

    def _try_all_hypernodes(
        self, job: Job, pending: PendingTasks, gradient: Sequence[HyperNode], before: dict[str, str]
    ) -> tuple[str, HypernodeTrial] | None:
        """Return the best of the hypernodes that can take the job, with its trial; None if there is none."""
        found: dict[str, HypernodeTrial] = {}
        for hyper_node in gradient:
            trial = self._try_job(job, pending, hyper_node, before)
            if trial is not None:
                found[hyper_node.name] = trial
        if not found:
            return None
        best = max(found, key=lambda name: found[name].score)
        return best, found[best]

    def _try_ranked_hypernodes(
        self, job: Job, pending: PendingTasks, gradient: Sequence[HyperNode], before: dict[str, str]
    ) -> tuple[str, HypernodeTrial] | None:
        """Do the same, trying the best hypernode first. Return None, with nothing changed, if all must be tried."""
        ranked = self._rank_hyper_nodes(job, pending, gradient)
        if ranked is None:
            return None
        marks = [(task, task.last_transaction) for task in job.pending.values()]
        last = self._try_job(job, pending, gradient[-1], before)  # its fit errors are those that upstream reports
        failures = job.fit_failures
        for place in ranked[:_MAX_FAILED_TRIALS]:
            trial = last if place is gradient[-1] else self._try_job(job, pending, place, before)
            if trial is None:
                continue
            if trial.ready and len(trial.operations) == sum(map(len, pending.tasks.values())):
                job.fit_failures = failures
                return place.name, trial
            break
        for task, mark in marks:
            task.last_transaction = mark
        return None

    def _rank_hyper_nodes(
        self, job: Job, pending: PendingTasks, gradient: Sequence[HyperNode]
    ) -> list[HyperNode] | None:
        """The hypernodes, best first; None if the order saves no trials or is unknown."""
        if len(gradient) <= 2 or len(pending.tasks) != 1 or len(pending.sub_jobs) != 1:
            return None
        sub_job = job.sub_jobs[next(iter(pending.tasks))]
        return None if sub_job.nominated_hyper_node else rank_hypernodes(self._session, sub_job, gradient)

    def _try_job(
        self, job: Job, pending: PendingTasks, hyper_node: HyperNode, before: dict[str, str]
    ) -> HypernodeTrial | None:
        session = self._session
        job.reset_fit_errors()
        left = pending.clone()
        statements: list[Statement] = []
        score = 0.0
        while left.sub_jobs:
            sub_job = left.sub_jobs.pop()
            with session.last_choices.scope(hyper_node.name):
                found = self._allocate_for_sub_job(job, sub_job, left, hyper_node)
            if found is None or not found[0].operations:
                continue
            statements.append(found[0])
            score += found[1]
            if left.tasks[sub_job.uid]:
                left.sub_jobs.push(sub_job)
            if session.job_ready(job):
                break
        for uid, place in before.items():
            job.sub_jobs[uid].allocated_hyper_node = place
        steps = save_operations(*statements)
        if not steps:
            return None
        ready = session.job_ready(job)
        pipelined = ready or session.job_pipelined(job)
        for statement in statements:
            statement.discard()
        return HypernodeTrial(score, steps, left, ready) if pipelined else None

    # Sub-jobs

    def _allocate_for_sub_job(
        self, job: Job, sub_job: SubJob, pending: PendingTasks, root: HyperNode
    ) -> tuple[Statement, float] | None:
        session = self._session
        if not pending.tasks.get(sub_job.uid):
            return None
        if sub_job.nominated_hyper_node:
            statement = self.from_nomination(job, sub_job, pending.tasks[sub_job.uid], root.name)
            if statement is not None:
                return statement, 0.0
        for gradient in session.hyper_node_gradient_for_sub_job(sub_job, root, SearchPurpose.ALLOCATE):
            found: dict[str, tuple[list[SavedOperation], PriorityQueue[Task]]] = {}
            for hyper_node in gradient:
                job.reset_fit_errors(sub_job)
                tasks = pending.tasks[sub_job.uid].clone()
                with session.last_choices.scope(hyper_node.name):
                    statement = self._placer.place(job, sub_job, tasks, hyper_node.name)
                if statement is not None and statement.operations:
                    found[hyper_node.name] = (save_operations(statement), tasks)
                    statement.discard()
            if not found:
                continue
            best, score = self._best(sub_job, list(found))
            if not best:
                return None
            final = session.statement()
            if not final.recover_operations(found[best][0]):
                return None
            place = session.hyper_nodes.lowest_common(sub_job.allocated_hyper_node, best)
            sub_job.allocated_hyper_node = place
            pending.tasks[sub_job.uid] = found[best][1]
            self._record_decision(job, root.name, sub_job, place)
            return final, score
        return None

    def _best(self, sub_job: SubJob, names: list[str]) -> tuple[str, float]:
        candidates = {name: self._session.hyper_nodes.nodes_of(name) for name in names}
        scores = self._session.hyper_node_scores(sub_job, candidates)
        comparable = [name for name in names if scores[name] > float("-inf")]
        if not comparable:
            return "", 0.0
        highest = max(scores[name] for name in comparable)
        tied = [name for name in comparable if scores[name] == highest]
        return self._break_tie(sub_job, tied), highest

    def _break_tie(self, sub_job: SubJob, tied: list[str]) -> str:
        """Return one of several best hypernodes: the last choice for the sub-job, else a random one."""
        choices, subject = self._session.last_choices, f"sub-job {sub_job.uid}"
        last = choices.previous(subject)
        if last is not None and last in tied:
            best = last
        else:
            best = tied[0] if len(tied) == 1 else self._session.chance.choice(tied)
        choices.record(subject, best)
        return best

    def _record_decision(self, job: Job, job_place: str, sub_job: SubJob, place: str) -> None:
        self._decisions.setdefault(job.uid, {}).setdefault(job_place, {})[sub_job.uid] = place

    # Nominations

    def from_nomination(
        self, job: Job, sub_job: SubJob, tasks: PriorityQueue[Task], job_place: str
    ) -> Statement | None:
        """Place every task on its nominated node. If one task fails, clear the nomination and return None."""
        plan = self._nominated_plan(job, sub_job, tasks)
        statement = self._session.statement()
        for task, node_name in plan or ():
            node = self._session.nodes.get(node_name)
            assert node is not None
            if sub_job.network_topology is not None:
                task.job_allocated_hyper_node = sub_job.nominated_hyper_node
            if not self._placer.allocate_or_pipeline(statement, task, node):
                statement.discard()
                plan = None
                break
        if plan is None:
            sub_job.nominated_hyper_node = ""
            return None
        while tasks:
            tasks.pop()
        tree = self._session.hyper_nodes
        sub_job.allocated_hyper_node = tree.lowest_common(sub_job.allocated_hyper_node, sub_job.nominated_hyper_node)
        self._record_decision(job, job_place, sub_job, sub_job.allocated_hyper_node)
        return statement

    def _nominated_plan(self, job: Job, sub_job: SubJob, tasks: PriorityQueue[Task]) -> list[tuple[Task, str]] | None:
        session = self._session
        names = set(session.hyper_nodes.nodes_of(sub_job.nominated_hyper_node).names)
        queue = session.queues[job.queue]
        queue_copy = tasks.clone()
        plan: list[tuple[Task, str]] = []
        while queue_copy:
            task = queue_copy.pop()
            name = task.pod.status.nominated_node_name
            row = session.snapshot.nodes.index.get(name)
            if not session.allocatable(queue, task) or name not in names or row is None:
                return None
            if session.pre_predicate(task) is not None:
                return None
            evaluation = session.evaluate_class(task)
            if not evaluation.fits_future[row] or evaluation.statuses(task, row):
                return None
            plan.append((task, name))
        return plan


def rank_hypernodes(session: Session, sub_job: SubJob, gradient: Sequence[HyperNode]) -> list[HyperNode] | None:
    """Return the hypernodes that can win, best first; None if only trials can decide.

    Trying the best hypernode first finds the winner with two trials instead of hundreds. The scores that compare the
    hypernodes do not depend on the trials. Cost: one gradient call and one score call for each hypernode."""
    scores: dict[str, float] = {}
    for place in gradient:
        below = session.hyper_node_gradient_for_sub_job(sub_job, place, SearchPurpose.ALLOCATE)
        if not below:
            continue
        if len(below) > 1 or len(below[0]) != 1:
            return None  # which of them the sub-job gets depends on where it fits
        name = below[0][0].name
        score = session.hyper_node_scores(sub_job, {name: session.hyper_nodes.nodes_of(name)})[name]
        if not math.isfinite(score):
            return None
        scores[place.name] = score
    return sorted((place for place in gradient if place.name in scores), key=lambda place: -scores[place.name])


__all__ = ["TOP_HYPERNODE", "TopologyAllocator"]
