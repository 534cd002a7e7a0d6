"""The `allocate` action: assigns nodes to tasks, queue by queue and job by job, one gang at a time.

A gang that becomes ready is committed. A gang that is only pipelined, on resources that are being released, keeps its
reservations until the session closes. The steps of any other gang are discarded. Jobs with a network topology or with
sub-groups are tried hypernode by hypernode (`topology_allocate`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import ClassVar

import numpy as np

from bayplan.batch.actions.topology_allocate import TopologyAllocator
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.evaluation.node_search import NodeSearch
from bayplan.batch.evaluation.task_class_evaluation import TaskClassEvaluation
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.hypernodes import TOP_HYPERNODE
from bayplan.batch.model.jobs import INQUEUE_PHASE, Job
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.pending_tasks import PendingTasks, collect_pending_tasks
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import Statement
from bayplan.framework.runtime.cooperative import run_to_end
from bayplan.snapshot import BoolVector

PREDICATE_ERROR_CACHE = "predicateErrorCacheEnable"


class Allocate:
    """Places tasks whose resource request is not empty."""

    name = "allocate"
    takes: ClassVar[tuple[Argument, ...]] = (Argument(PREDICATE_ERROR_CACHE, bool, True),)

    def __init__(self) -> None:
        self._caches_errors = True  # from the configuration; a key that is removed keeps its last value

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    def execute(self, session: Session) -> Iterator[None]:
        arguments = session.action_arguments(self.name)
        self._caches_errors = arguments.get_bool(PREDICATE_ERROR_CACHE, self._caches_errors)
        return _AllocateRun(session, caches_errors=self._caches_errors).run()


class _AllocateRun:
    def __init__(self, session: Session, *, caches_errors: bool) -> None:
        self._session = session
        self._placer = TaskPlacer(session, caches_errors=caches_errors)
        self._topology = TopologyAllocator(session, self._placer)
        self._queues: PriorityQueue[Queue] = PriorityQueue(session.queue_order)
        self._jobs: dict[str, PriorityQueue[Job]] = {}
        self._pending_tasks: dict[str, PendingTasks] = {}

    def run(self) -> Iterator[None]:
        for job in self._session.jobs.values():
            self._add_job(job)
            yield
        while self._queues:
            queue = self._queues.pop()
            jobs = self._jobs.get(queue.uid)
            if self._session.overused(queue) or not jobs:
                continue  # the queue is dropped for the rest of this session
            job = jobs.pop()
            if (yield from self._allocate_job(job)):
                jobs.push(job)
            self._queues.push(queue)
            yield

    def _add_job(self, job: Job) -> None:
        session = self._session
        if job.is_pending():
            if "enqueue" in session.actions:
                return
            job.phase = INQUEUE_PHASE
        queue = session.queues.get(job.queue)
        if not job.pending or session.job_invalid(job) is not None or queue is None:
            return
        if not session.hyper_nodes.ready and job.contains_network_topology():
            return
        pending = collect_pending_tasks(session, job)
        if not pending:
            return
        if queue.uid not in self._jobs:
            self._jobs[queue.uid] = PriorityQueue(session.job_order)
            self._queues.push(queue)
        self._jobs[queue.uid].push(job)
        self._pending_tasks[job.uid] = pending

    def _allocate_job(self, job: Job) -> Generator[None, None, bool]:
        """Place as many tasks of the job as possible now. True if the job has more tasks to place."""
        pending = self._pending_tasks[job.uid]
        if job.contains_hard_topology() or job.has_sub_job_policy:
            return self._topology.allocate_job(job, pending)
        sub_job = job.default_sub_job
        if sub_job is None or job.uid not in pending.tasks:
            return False
        tasks = pending.tasks[job.uid]
        statement = None
        if sub_job.nominated_hyper_node:
            statement = self._topology.from_nomination(job, sub_job, tasks, TOP_HYPERNODE)
        if statement is None:
            statement = yield from self._placer.place_steps(job, sub_job, tasks, TOP_HYPERNODE)
        if statement is None or not self._session.job_ready(job):
            return False
        if not statement.commit():
            return False  # another scheduler took the resources first; the job waits for the next session
        sub_job.nominated_hyper_node = ""
        return bool(tasks)


class TaskPlacer:
    """Finds nodes for the tasks of a sub-job, one task after another."""

    def __init__(self, session: Session, *, caches_errors: bool) -> None:
        self._session = session
        self._caches_errors = caches_errors
        self._masks: dict[str, BoolVector] = {}

    def place(self, job: Job, sub_job: SubJob, tasks: PriorityQueue[Task], hyper_node: str) -> Statement | None:
        """Return a statement that makes the sub-job ready or pipelined; None if neither is possible."""
        return run_to_end(self.place_steps(job, sub_job, tasks, hyper_node))

    def place_steps(
        self, job: Job, sub_job: SubJob, tasks: PriorityQueue[Task], hyper_node: str
    ) -> Generator[None, None, Statement | None]:
        """Do the same as `place`, and yield after each task, so that a gang of thousands does not block the event loop.

        The commit of the statement is checked as a whole.
        """
        session = self._session
        among = self.rows_of(hyper_node)
        if not len(session.nodes) or (among is not None and not among.any()):
            return None
        statement = session.statement()
        search = NodeSearch(session, caches_failures=self._caches_errors)
        hyper = sub_job.allocated_hyper_node
        while tasks:
            task = tasks.pop()
            yield
            if not self._is_schedulable(job, sub_job, task):
                continue
            node = self._find_node(task, sub_job, search, hyper_node, hyper)
            if node is None:
                if task.uid in job.nodes_fit_errors and not job.needs_continue_allocating(sub_job):
                    break
                continue
            if not self.allocate_or_pipeline(statement, task, node):
                continue
            if sub_job.network_topology is not None:
                hyper = self._lowest_common_hypernode(node.name, hyper)
            if session.sub_job_ready(job, sub_job):
                break
        if session.sub_job_ready(job, sub_job) or session.sub_job_pipelined(job, sub_job):
            return statement
        statement.discard()
        return None

    def rows_of(self, hyper_node: str) -> BoolVector | None:
        """The rows of a hypernode; None means all rows."""
        if hyper_node == TOP_HYPERNODE:
            return None
        mask = self._masks.get(hyper_node)
        if mask is None:
            mask = self._masks[hyper_node] = np.zeros(len(self._session.nodes), dtype=np.bool_)
            mask[self._session.hyper_nodes.nodes_of(hyper_node).rows] = True
        return mask

    def _is_schedulable(self, job: Job, sub_job: SubJob, task: Task) -> bool:
        queue = self._session.queues[job.queue]
        if not self._session.allocatable(queue, task):
            return False
        if task.gated:
            self._session.admit_task(task)
            return False
        if job.task_has_fit_errors(sub_job, task):
            text = f"Task {task.name} with role spec {task.role} has already predicated failed, skip"
            self._session.record_failure(task, FitErrors(head=text))
            return False
        return True

    def _find_node(
        self, task: Task, sub_job: SubJob, search: NodeSearch, hyper_node: str, allocated: str
    ) -> Node | None:
        """Find the node for one task. If there is none, record the reason in the job."""
        session = self._session
        among = self.rows_of(hyper_node)
        refused = session.pre_predicate(task)
        if refused is not None:
            rows = session.nodes.rows if among is None else np.flatnonzero(among)
            session.record_failure(task, FitErrors.on_all_rows(refused, rows))
            return None
        evaluation = session.evaluate_class(task)
        feasible = self._nominated_node(task, evaluation, among, search)
        if feasible is None:
            feasible = search.feasible(task, evaluation, among)
            search.note_failures(task, evaluation, feasible, among)
        if not feasible.any():
            errors = search.explain(task, evaluation, among)
            errors.hyper_node = "" if hyper_node == TOP_HYPERNODE else hyper_node
            session.record_failure(task, errors)
            return None
        if sub_job.network_topology is not None:
            task.job_allocated_hyper_node = allocated
        return self.best_node(task, feasible, evaluation)

    def _nominated_node(
        self, task: Task, evaluation: TaskClassEvaluation, among: BoolVector | None, search: NodeSearch
    ) -> BoolVector | None:
        """Return the row of the node that an earlier session nominated for the task, if it is still feasible."""
        name = task.pod.status.nominated_node_name
        row = self._session.snapshot.nodes.index.get(name) if name else None
        if row is None or (among is not None and not among[row]):
            return None
        if not evaluation.fits_future[row]:
            return None
        only = np.zeros(len(self._session.nodes), dtype=np.bool_)
        only[row] = True
        found = search.feasible(task, evaluation, only)
        search.note_failures(task, evaluation, found, only)
        return found if found.any() else None

    def best_node(self, task: Task, feasible: BoolVector, evaluation: TaskClassEvaluation) -> Node | None:
        """Return the best node with enough idle resources; if there is none, the best node with enough future idle."""
        session = self._session
        idle = feasible & evaluation.fits_idle
        for rows in (idle, feasible & ~idle):
            for part in session.candidate_groups(rows):
                node = session.choose(task, part, evaluation)
                if node is not None:
                    return node
        return None

    def allocate_or_pipeline(self, statement: Statement, task: Task, node: Node) -> bool:
        """Allocate the task if it fits the idle resources, else pipeline it. False if an event handler refuses."""
        if node.fits_idle(task):
            return statement.allocate(task, node)
        if node.fits_future(task):
            return statement.pipeline(task, node.name)
        return True

    def _lowest_common_hypernode(self, node_name: str, allocated: str) -> str:
        tree = self._session.hyper_nodes
        leaf = tree.leaf_of(node_name)
        if not leaf:
            return allocated
        return tree.lowest_common(leaf, allocated) if allocated else leaf
