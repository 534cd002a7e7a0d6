"""The `drf` plugin: dominant resource fairness. Orders by the smallest dominant share first.

It applies to jobs and, with `enableHierarchy`, to queues in a weighted tree. Cost: what a job holds is read on first
use; afterwards each event is one addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import IS_HOLDING
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.drf.hierarchy import ShareTree
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints
from bayplan.objects.resources import CPU, MEMORY

SHARE_DELTA = 0.000001
"""The plugin treats shares that differ by at most this as equal for preemption."""
_JOBS_PER_STEP = 64


class JobShare:
    """Allocated amounts of a job, pipelined tasks included, and its dominant share."""

    __slots__ = ("allocated", "share")

    def __init__(self, allocated: Amounts, share: float) -> None:
        self.allocated = allocated
        self.share = share


class DrfPlugin:
    """Orders the job with the smallest dominant share first."""

    name = "drf"
    takes: ClassVar[tuple[Argument, ...]] = ()
    also_at: ClassVar[tuple[str, ...]] = ("queue_order", "reclaimable")  # with enableHierarchy

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        total = session.total_resource
        self._names = [(name, total.get(name)) for name in total.names()]
        self._job_shares: dict[str, JobShare] = {}
        self._tree: ShareTree | None = None
        session.add_preemptable_fn(
            self.name, self._preemptable, VictimHints(VictimDependence.SHRINKING, self._has_less)
        )
        session.add_job_order_fn(self.name, self._order)
        session.add_event_handler(self.name, allocate=self._allocate, deallocate=self._deallocate)
        if session.hierarchy_enabled(self.name):
            self._tree = self._build_tree(total)
            session.add_queue_order_fn(self.name, self._queue_order)
            session.add_reclaimable_fn(self.name, self._reclaimable)

    def on_session_close(self, session: Session) -> Iterator[None]:
        """Write the share of each job into the session, `_JOBS_PER_STEP` jobs at a time."""
        for number, job in enumerate(session.jobs.values()):
            if not number % _JOBS_PER_STEP:
                yield
            session.job_shares[job.uid] = self._job_share(job).share

    def _build_tree(self, total: Amounts) -> ShareTree:
        tree = ShareTree(total, self.share_of)
        for job in self._session.jobs.values():
            queue = self._session.queues[job.queue]
            fault = tree.add_job(job.uid, queue.hierarchy, queue.hierarchy_weights, job.total_request)
            if fault and (message := f"{self.name}: queue {queue.name}: {fault}") not in self._session.faults:
                self._session.faults.append(message)
            job_share = self._job_share(job)
            tree.set_job(job.uid, job_share.allocated.clone(), job_share.share)
        return tree

    # Shares of jobs

    def share_of(self, allocated: Amounts) -> float:
        """The dominant share: the largest fraction of any resource of the cluster."""
        largest = 0.0
        scalars = allocated.scalars or {}
        for name, whole in self._names:
            if name == CPU:
                part = allocated.milli_cpu / whole
            elif name == MEMORY:
                part = allocated.memory / whole
            else:
                part = scalars.get(name, 0.0) / whole
            if part > largest:
                largest = part
        return largest

    def _job_share(self, job: Job) -> JobShare:
        """The share of the job; before its first event in this session, that of the snapshot."""
        job_share = self._job_shares.get(job.uid)
        if job_share is None:
            job_share = self._job_shares[job.uid] = JobShare(job.allocated.clone(), self.share_of(job.allocated))
        return job_share

    def _order(self, left: Job, right: Job) -> int:
        left_share, right_share = self._job_share(left).share, self._job_share(right).share
        return (left_share > right_share) - (left_share < right_share)

    def _has_less(self, evictor: Job, task: Task) -> bool:
        """Whether the task's job has a clearly smaller share. The difference only grows while its tasks are evicted."""
        job = self._session.jobs.get(task.job)
        return job is None or self._job_share(job).share + 2 * SHARE_DELTA < self._job_share(evictor).share

    def _preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks of jobs whose share without the task is at least that of the preemptor's job."""
        jobs = self._session.jobs
        job = jobs.get(preemptor.job)
        if job is None:
            return []
        own_share = self.share_of(self._job_share(job).allocated.clone().add(preemptor.resreq))
        remaining_by_job: dict[str, Amounts] = {}
        victims = []
        for task in candidates:
            victim = jobs.get(task.job)
            if victim is None:
                continue
            if task.job not in remaining_by_job:
                remaining_by_job[task.job] = self._job_share(victim).allocated.clone()
            victim_share = self.share_of(remaining_by_job[task.job].sub(task.resreq))
            if own_share < victim_share or abs(own_share - victim_share) <= SHARE_DELTA:
                victims.append(task)
        return victims

    # Events

    def _allocate(self, task: Task) -> None:
        job = self._session.jobs.get(task.job)
        if job is None:
            return
        if job.uid in self._job_shares:
            self._update_share(job, self._job_shares[job.uid].allocated.add(task.resreq))
        elif IS_HOLDING[task.status]:  # the job counts the task already
            self._job_share(job)
        else:
            self._update_share(job, self._job_share(job).allocated.add(task.resreq))

    def _deallocate(self, task: Task) -> None:
        job = self._session.jobs.get(task.job)
        if job is None:
            return
        if job.uid in self._job_shares:
            self._update_share(job, self._job_shares[job.uid].allocated.sub_unchecked(task.resreq))
        else:  # the job held the task until now and no longer counts it
            self._job_share(job)

    def _update_share(self, job: Job, allocated: Amounts) -> None:
        job_share = self._job_shares[job.uid]
        job_share.share = self.share_of(allocated)
        if self._tree is not None:
            self._tree.set_job(job.uid, allocated.clone(), job_share.share)

    # Shares of queues

    def _queue_order(self, left: Queue, right: Queue) -> int:
        assert self._tree is not None
        gap = self._tree.compare(left.hierarchy, right.hierarchy)
        return (gap > 0) - (gap < 0)

    def _reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks whose queue still comes after the reclaimer's queue without the task, if the reclaimer is placed."""
        session, tree = self._session, self._tree
        job = session.jobs.get(reclaimer.job)
        if job is None or tree is None:
            return []
        own_path = session.queues[job.queue].hierarchy
        is_victim: dict[tuple[object, ...], bool] = {}
        self._set_allocated(tree, job, self._job_share(job).allocated.clone().add(reclaimer.resreq))
        victims = []
        for task in candidates:
            victim = session.jobs.get(task.job)
            if victim is None:
                continue
            key = (task.job, task.demand_key)
            if key not in is_victim:
                self._set_allocated(tree, victim, self._job_share(victim).allocated.clone().sub(task.resreq))
                is_victim[key] = tree.compare(own_path, session.queues[victim.queue].hierarchy) < 0
                self._set_allocated(tree, victim, self._job_share(victim).allocated.clone())
            if is_victim[key]:
                victims.append(task)
        self._set_allocated(tree, job, self._job_share(job).allocated.clone())
        return victims

    def _set_allocated(self, tree: ShareTree, job: Job, allocated: Amounts) -> None:
        tree.set_job(job.uid, allocated, self.share_of(allocated))
