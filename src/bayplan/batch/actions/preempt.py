"""The `preempt` action: starving jobs evict tasks of their own queue, first of other jobs, then of the same job.

Evictions between jobs are committed only if they make the job pipelined; within a job each task is committed alone.
The victims on a node are those on which the plugins agree (`Session.preemptable`). The action evicts as few of them as
needed, the least important first. With `enableTopologyAwarePreemption` nodes are compared by their victims instead
(`preempt_dry_run`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from bayplan.batch.actions.allocate import PREDICATE_ERROR_CACHE
from bayplan.batch.actions.preempt_dry_run import PreemptionDryRun
from bayplan.batch.actions.row_orders import rows_by_score
from bayplan.batch.actions.victim_search import EvictableTasks, ExhaustedRows, SearchAccepts, VictimSearch, fits_without
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.task_class_evaluation import TaskClassEvaluation
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
PREEMPT_NEVER = "Never"
TOPOLOGY_AWARE = "enableTopologyAwarePreemption"
MIN_PERCENTAGE = "minCandidateNodesPercentage"
MIN_ABSOLUTE = "minCandidateNodesAbsolute"
MAX_ABSOLUTE = "maxCandidateNodesAbsolute"


@dataclass(frozen=True, slots=True)
class PreemptSettings:
    caches_errors: bool = True
    topology_aware: bool = False
    min_percentage: int = 10
    min_absolute: int = 1
    max_absolute: int = 100

    def with_arguments(self, arguments: Arguments) -> PreemptSettings:
        """Return settings with the arguments of this configuration; a key that is removed keeps its last value."""
        return replace(
            self,
            caches_errors=arguments.get_bool(PREDICATE_ERROR_CACHE, self.caches_errors),
            topology_aware=arguments.get_bool(TOPOLOGY_AWARE, self.topology_aware),
            min_percentage=arguments.get_int(MIN_PERCENTAGE, self.min_percentage),
            min_absolute=arguments.get_int(MIN_ABSOLUTE, self.min_absolute),
            max_absolute=arguments.get_int(MAX_ABSOLUTE, self.max_absolute),
        )

    def candidate_count(self, nodes: int) -> int:
        """How many nodes must be found feasible by a dry run before the best of them is chosen."""
        least = max(nodes * self.min_percentage // 100, self.min_absolute)
        return min(least, self.max_absolute, nodes)


class Preempt:
    """Preemption within queues."""

    name = "preempt"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument(PREDICATE_ERROR_CACHE, bool, True),
        Argument(TOPOLOGY_AWARE, bool, False),
        Argument(MIN_PERCENTAGE, int, 10),
        Argument(MIN_ABSOLUTE, int, 1),
        Argument(MAX_ABSOLUTE, int, 100),
    )

    def __init__(self) -> None:
        self._settings = PreemptSettings()

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    def execute(self, session: Session) -> Iterator[None]:
        self._settings = self._settings.with_arguments(session.action_arguments(self.name))
        return _PreemptRun(session, self._settings).run()


class _PreemptRun:
    def __init__(self, session: Session, settings: PreemptSettings) -> None:
        self._session = session
        self._settings = settings
        self._preemptors: dict[str, PriorityQueue[Job]] = {}  # by queue
        self._starving: dict[str, list[Job]] = {}  # by queue, at the start of the action
        self._tasks: dict[str, PriorityQueue[Task]] = {}
        self._by_queue: dict[str, EvictableTasks] = {}
        self._exhausted: dict[str, ExhaustedRows] = {}  # by queue, for jobs that may use all tasks of the queue
        self._failed: dict[tuple[str, str], BoolVector] = {}  # rows that were infeasible for a role of a job

    def run(self) -> Iterator[None]:
        session = self._session
        for job in session.jobs.values():
            self._add_job(job)
            yield
        queues = PriorityQueue(session.queue_order, (session.queues[name] for name in self._preemptors))
        while queues:
            queue = queues.pop()
            yield from self._preempt_between_jobs(queue)
            for job in self._starving[queue.name]:
                yield from self._preempt_within_job(job, queue)

    def _add_job(self, job: Job) -> None:
        session = self._session
        if job.is_pending() or session.job_invalid(job) is not None or job.queue not in session.queues:
            return
        if not session.job_starving(job) or job.contains_network_topology():
            return
        self._preemptors.setdefault(job.queue, PriorityQueue(session.job_order)).push(job)
        self._starving.setdefault(job.queue, []).append(job)
        self._tasks[job.uid] = self._pending_tasks(job)

    def _pending_tasks(self, job: Job) -> PriorityQueue[Task]:
        return PriorityQueue(self._session.task_order, [task for task in job.pending.values() if not task.gated])

    # Preemptors and victims

    def _preempt_between_jobs(self, queue: Queue) -> Iterator[None]:
        session, jobs = self._session, self._preemptors[queue.name]
        while jobs:
            job = jobs.pop()
            tasks, search = self._tasks[job.uid], self._victims_of_other_jobs(job)
            statement = session.statement()
            assigned = False
            while session.job_starving(job) and tasks:
                assigned = self._preempt_for_task(statement, tasks.pop(), queue, search)
                yield
            if not session.job_pipelined(job):
                statement.discard()
                continue
            statement.commit()
            yield
            if assigned:
                jobs.push(job)

    def _preempt_within_job(self, job: Job, queue: Queue) -> Iterator[None]:
        tasks = self._pending_tasks(job)
        if not tasks:
            return
        session = self._session
        own_tasks = EvictableTasks(session, [job], PREEMPTABLE)
        while tasks:
            statement = session.statement()
            search = self._victim_search(job, own_tasks)
            if not self._preempt_for_task(statement, tasks.pop(), queue, search):
                statement.discard()
                return
            statement.commit()
            yield

    def _victims_of_other_jobs(self, job: Job) -> VictimSearch:
        """The search over tasks of other jobs in the queue of this job."""
        session = self._session
        queue_tasks = self._by_queue.get(job.queue)
        if queue_tasks is None:
            jobs = [each for each in session.jobs.values() if each.queue == job.queue]
            queue_tasks = self._by_queue[job.queue] = EvictableTasks(session, jobs, PREEMPTABLE)
            self._exhausted[job.queue] = ExhaustedRows(session)
        if not job.count(*PREEMPTABLE):
            return self._victim_search(job, queue_tasks, exhausted=self._exhausted[job.queue])
        return self._victim_search(job, queue_tasks, excluded=EvictableTasks(session, [job], PREEMPTABLE))

    def _victim_search(
        self,
        job: Job,
        candidates: EvictableTasks,
        *,
        excluded: EvictableTasks | None = None,
        exhausted: ExhaustedRows | None = None,
    ) -> VictimSearch:
        accepts = SearchAccepts.VICTIMS_ONLY if self._settings.topology_aware else SearchAccepts.IDLE
        return VictimSearch(
            self._session,
            job,
            extension_points.PREEMPTABLE,
            candidates,
            excluded=excluded,
            accepts=accepts,
            exhausted=exhausted,
        )

    # Preemption for one task

    def _preempt_for_task(self, statement: Statement, task: Task, queue: Queue, search: VictimSearch) -> bool:
        """Evict victims on one node for the task. False if the task may not preempt or no node is possible."""
        session = self._session
        if not may_preempt(session, task) or session.pre_predicate(task) is not None:
            return False
        evaluation = session.evaluate_class(task)
        candidates = self._candidates(task, evaluation)
        if not candidates.any():
            return False
        if not self._settings.topology_aware:
            totals = evaluation.scores(task, candidates)
            return totals is not None and self._preempt_by_score(statement, task, queue, search, candidates, totals)
        dry_run = PreemptionDryRun(session, task, queue, lambda row: _eligible_victims(search.tasks_on_row(row), task))
        wanted = self._settings.candidate_count(int(np.count_nonzero(candidates)))
        found = dry_run.best(candidates, search.narrow(task), wanted)
        return found is not None and self._evict_and_pipeline(statement, task, found.node, found.victims)

    def _candidates(self, task: Task, evaluation: TaskClassEvaluation) -> BoolVector:
        """Rows on which an eviction may help. A row that fails one task of a role fails that role of the job."""
        session = self._session
        among = session.rows_worth_evicting(task)
        key = (task.job, task.role)
        failed = self._failed.get(key) if self._settings.caches_errors and task.role else None
        if failed is not None:
            among &= ~failed
        found = evaluation.rows_to_preempt(task, among)
        infeasible = among & ~found
        if infeasible.any():
            self._failed[key] = infeasible if failed is None else failed | infeasible
        return found

    def _preempt_by_score(
        self,
        statement: Statement,
        task: Task,
        queue: Queue,
        search: VictimSearch,
        candidates: BoolVector,
        totals: FloatVector,
    ) -> bool:
        session = self._session
        parts = session.candidate_groups(candidates & search.rows(task))
        for row in chain.from_iterable(rows_by_score(each, totals, lambda: search.narrow(task)) for each in parts):
            node, found = session.nodes.at_row(row), search.tasks_on_row(row)
            if not fits_without(task, node, found):
                search.mark_exhausted(row)
                continue
            victims = session.preemptable(task, _eligible_victims(found, task))
            if not fits_without(task, node, victims):
                search.set_aside(row, found)
            elif (evicted := self._evict_until_fits(statement, task, queue, node, victims)) is not None:
                search.note_evicted(evicted)
                return True
        return False

    def _evict_until_fits(
        self, statement: Statement, task: Task, queue: Queue, node: Node, victims: list[Task]
    ) -> list[Task] | None:
        """Evict until the queue and the node can take the task. Return the victims, or None if they do not suffice."""
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

    def _evict_and_pipeline(self, statement: Statement, task: Task, node: Node, victims: list[Task]) -> bool:
        trial = self._session.statement()
        for victim in victims:
            trial.evict(victim, REASON)
        if trial.pipeline(task, node.name, eviction_occurred=True):
            statement.merge(trial)
            return True
        trial.discard()
        return False


def _eligible_victims(found: list[Task], preemptor: Task) -> list[Task]:
    """A best-effort preemptor may only evict best-effort tasks."""
    return [task for task in found if task.best_effort] if preemptor.best_effort else found


def may_preempt(session: Session, task: Task) -> bool:
    """False if the task's preemption policy is Never, or if its nominated node is still being freed for it."""
    if task.pod.spec.preemption_policy == PREEMPT_NEVER:
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
    own_priority = task.pod.spec.priority or 0
    return not any(
        (each.pod.spec.priority or 0) < own_priority and _is_preemption_victim(each.pod) for each in node.tasks.values()
    )


def _is_preemption_victim(pod: Pod) -> bool:
    """Whether the pod is being deleted because a scheduler preempted it."""
    if not pod.terminating:
        return False
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget":
            return condition.status == "True" and condition.reason == "PreemptionByScheduler"
    return False
