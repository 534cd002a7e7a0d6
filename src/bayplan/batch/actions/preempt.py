"""Starving jobs evict tasks of their own queue that matter less: of other jobs first, then of the same job.

A job keeps what it got from others only if that is enough to start it; within a job every task stands for itself. The
victims on a node are what plugins agree on (`Session.preemptable`); as few of them as needed go, the least important
first. With `enableTopologyAwarePreemption` nodes are compared by their victims instead (`preempt_trials`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from bayplan.batch.actions.allocate import ERROR_CACHE
from bayplan.batch.actions.preempt_dry_run import Trials
from bayplan.batch.actions.row_orders import best_first
from bayplan.batch.actions.victim_search import (
    Accepts,
    Evictable,
    InVain,
    Prey,
    has_room_without,
)
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.task_class_evaluation import Prospect
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import FloatVector, Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session import extension_points
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import Statement
from bayplan.framework.api.status import Code
from bayplan.objects.core import Pod
from bayplan.snapshot import BoolVector

REASON = "preempt"
PREEMPTABLE = (TaskStatus.BOUND, TaskStatus.RUNNING)
NEVER = "Never"
TOPOLOGY_AWARE = "enableTopologyAwarePreemption"
MIN_PERCENTAGE = "minCandidateNodesPercentage"
MIN_ABSOLUTE = "minCandidateNodesAbsolute"
MAX_ABSOLUTE = "maxCandidateNodesAbsolute"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the file says about the action."""

    remembers_errors: bool = True
    topology_aware: bool = False
    min_percentage: int = 10
    min_absolute: int = 1
    max_absolute: int = 100

    def updated(self, arguments: Arguments) -> Settings:
        """With what this file says; a key that is gone keeps its value."""
        return replace(
            self,
            remembers_errors=arguments.get_bool(ERROR_CACHE, self.remembers_errors),
            topology_aware=arguments.get_bool(TOPOLOGY_AWARE, self.topology_aware),
            min_percentage=arguments.get_int(MIN_PERCENTAGE, self.min_percentage),
            min_absolute=arguments.get_int(MIN_ABSOLUTE, self.min_absolute),
            max_absolute=arguments.get_int(MAX_ABSOLUTE, self.max_absolute),
        )

    def candidates_wanted(self, nodes: int) -> int:
        """How many nodes are tried out before the best of them is taken."""
        least = max(nodes * self.min_percentage // 100, self.min_absolute)
        return min(least, self.max_absolute, nodes)


class Preempt:
    """Evicts within queues."""

    name = "preempt"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument(ERROR_CACHE, bool, True),
        Argument(TOPOLOGY_AWARE, bool, False),
        Argument(MIN_PERCENTAGE, int, 10),
        Argument(MIN_ABSOLUTE, int, 1),
        Argument(MAX_ABSOLUTE, int, 100),
    )

    def __init__(self) -> None:
        self._settings = Settings()

    def initialize(self) -> None:
        """Nothing to prepare."""

    def uninitialize(self) -> None:
        """Nothing to give back."""

    def execute(self, session: Session) -> Iterator[None]:
        self._settings = self._settings.updated(session.action_arguments(self.name))
        return _Run(session, self._settings).run()


class _Run:
    """One execution of the action."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._preemptors: dict[str, PriorityQueue[Job]] = {}  # by queue
        self._starving: dict[str, list[Job]] = {}  # by queue, as they were when the action began
        self._tasks: dict[str, PriorityQueue[Task]] = {}
        self._by_queue: dict[str, Evictable] = {}
        self._in_vain: dict[str, InVain] = {}  # by queue, for jobs that may look at all of it
        self._failed: dict[tuple[str, str], BoolVector] = {}  # rows that failed a role of a job before

    def run(self) -> Iterator[None]:
        session = self._session
        for job in session.jobs.values():
            self._enter(job)
            yield
        queues = PriorityQueue(session.queue_order, (session.queues[name] for name in self._preemptors))
        while queues:
            queue = queues.pop()
            yield from self._between_jobs(queue)
            for job in self._starving[queue.name]:
                yield from self._within(job, queue)

    def _enter(self, job: Job) -> None:
        session = self._session
        if job.is_pending() or session.job_invalid(job) is not None or job.queue not in session.queues:
            return
        if not session.job_starving(job) or job.contains_network_topology():
            return
        self._preemptors.setdefault(job.queue, PriorityQueue(session.job_order)).push(job)
        self._starving.setdefault(job.queue, []).append(job)
        self._tasks[job.uid] = self._waiting(job)

    def _waiting(self, job: Job) -> PriorityQueue[Task]:
        return PriorityQueue(self._session.task_order, [task for task in job.pending.values() if not task.gated])

    # who preempts whom ------------------------------------------------------------------------------------------

    def _between_jobs(self, queue: Queue) -> Iterator[None]:
        session, jobs = self._session, self._preemptors[queue.name]
        while jobs:
            job = jobs.pop()
            tasks, prey = self._tasks[job.uid], self._others(job)
            statement = session.statement()
            assigned = False
            while session.job_starving(job) and tasks:
                assigned = self._preempt(statement, tasks.pop(), queue, prey)
                yield
            if not session.job_pipelined(job):
                statement.discard()
                continue
            statement.commit()
            yield
            if assigned:
                jobs.push(job)

    def _within(self, job: Job, queue: Queue) -> Iterator[None]:
        tasks = self._waiting(job)
        if not tasks:
            return
        session = self._session
        own = Evictable(session, [job], PREEMPTABLE)
        while tasks:
            statement = session.statement()
            prey = self._prey(job, own)
            if not self._preempt(statement, tasks.pop(), queue, prey):
                statement.discard()
                return
            statement.commit()
            yield

    def _others(self, job: Job) -> Prey:
        """Tasks of other jobs in the queue of this one."""
        session = self._session
        whole = self._by_queue.get(job.queue)
        if whole is None:
            jobs = [each for each in session.jobs.values() if each.queue == job.queue]
            whole = self._by_queue[job.queue] = Evictable(session, jobs, PREEMPTABLE)
            self._in_vain[job.queue] = InVain(session)
        if not job.count(*PREEMPTABLE):
            return self._prey(job, whole, in_vain=self._in_vain[job.queue])
        return self._prey(job, whole, less=Evictable(session, [job], PREEMPTABLE))

    def _prey(self, job: Job, of: Evictable, *, less: Evictable | None = None, in_vain: InVain | None = None) -> Prey:
        accepts = Accepts.VICTIMS_ONLY if self._settings.topology_aware else Accepts.ROOM
        return Prey(self._session, job, extension_points.PREEMPTABLE, of, less=less, accepts=accepts, in_vain=in_vain)

    # one task ---------------------------------------------------------------------------------------------------

    def _preempt(self, statement: Statement, task: Task, queue: Queue, prey: Prey) -> bool:
        """Clear a node for the task. False: it may not preempt, or no node can be cleared."""
        session = self._session
        if not may_preempt(session, task) or session.pre_predicate(task) is not None:
            return False
        prospect = session.prospect(task)
        candidates = self._candidates(task, prospect)
        if not candidates.any():
            return False
        if not self._settings.topology_aware:
            totals = prospect.scores(task, candidates)
            return totals is not None and self._preempt_by_score(statement, task, queue, prey, candidates, totals)
        trials = Trials(session, task, queue, lambda row: _fair_prey(prey.on(row), task))
        wanted = self._settings.candidates_wanted(int(np.count_nonzero(candidates)))
        found = trials.best(candidates, prey.narrow(task), wanted)
        return found is not None and self._take(statement, task, found.node, found.victims)

    def _candidates(self, task: Task, prospect: Prospect) -> BoolVector:
        """Rows on which evicting may help. What failed one task of a role fails the others of the job, too."""
        session = self._session
        among = session.hopeful(task)
        key = (task.job, task.role)
        failed = self._failed.get(key) if self._settings.remembers_errors and task.role else None
        if failed is not None:
            among &= ~failed
        found = prospect.allowed_preempting(task, among)
        lost = among & ~found
        if lost.any():
            self._failed[key] = lost if failed is None else failed | lost
        return found

    def _preempt_by_score(
        self,
        statement: Statement,
        task: Task,
        queue: Queue,
        prey: Prey,
        candidates: BoolVector,
        totals: FloatVector,
    ) -> bool:
        session = self._session
        parts = session.in_turn(candidates & prey.rows(task))
        for row in chain.from_iterable(best_first(each, totals, lambda: prey.narrow(task)) for each in parts):
            node, found = session.nodes.at(row), prey.on(row)
            if not has_room_without(task, node, found):
                prey.rule_out(row)
                continue
            victims = session.preemptable(task, _fair_prey(found, task))
            if not has_room_without(task, node, victims):
                prey.set_aside(row, found)
            elif (evicted := self._clear(statement, task, queue, node, victims)) is not None:
                prey.note_gone(evicted)
                return True
        return False

    def _clear(
        self, statement: Statement, task: Task, queue: Queue, node: Node, victims: list[Task]
    ) -> list[Task] | None:
        """Evict until both the queue and the node can take the task: whom. None where they never can."""
        session, trial = self._session, self._session.statement()
        waiting = session.victims_queue(victims, task)
        evicted: list[Task] = []
        freed = Amounts()
        while not (fits := session.allocatable(queue, task) and node.fits_future(task)) and waiting:
            evicted.append(waiting.pop())
            trial.evict(evicted[-1], REASON)
            freed.add(evicted[-1].resreq)
        if fits and trial.pipeline(task, node.name, eviction_occurred=not freed.is_empty()):
            statement.merge(trial)
            return evicted
        trial.discard()
        return None

    def _take(self, statement: Statement, task: Task, node: Node, victims: list[Task]) -> bool:
        """Evict all of these, and promise their room to the task."""
        trial = self._session.statement()
        for victim in victims:
            trial.evict(victim, REASON)
        if trial.pipeline(task, node.name, eviction_occurred=True):
            statement.merge(trial)
            return True
        trial.discard()
        return False


def _fair_prey(found: list[Task], preemptor: Task) -> list[Task]:
    """Who asks for nothing takes nothing from those who do."""
    return [task for task in found if task.best_effort] if preemptor.best_effort else found


def may_preempt(session: Session, task: Task) -> bool:
    """Not if it says so itself, and not while a node that was cleared for it before is still becoming free."""
    if task.pod.spec.preemption_policy == NEVER:
        return False
    name = task.pod.status.nominated_node_name
    if not name:
        return True
    node = session.node(name)
    statuses = () if node is None else session.predicate(task, node)
    if node is None or not statuses:
        return False
    if any(status.code is Code.UNRESOLVABLE for status in statuses):
        return True
    mine = task.pod.spec.priority or 0
    return not any(
        (each.pod.spec.priority or 0) < mine and _is_going_for_another(each.pod) for each in node.tasks.values()
    )


def _is_going_for_another(pod: Pod) -> bool:
    """Whether the pod is being deleted because somebody preempted it."""
    if not pod.terminating:
        return False
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget":
            return condition.status == "True" and condition.reason == "PreemptionByScheduler"
    return False
