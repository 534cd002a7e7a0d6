"""Who has the smallest part of whatever they have most of? They come first.

Dominant resource fairness among jobs, and, with `enableHierarchy`, among queues in a tree of weights. What a job holds
is read when it is first asked about and then follows the events: an addition each.
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
"""Shares that differ by no more are equal to a preemptor."""
_JOBS_PER_STEP = 64


class JobShare:
    """What a job holds, rooms that it was promised included."""

    __slots__ = ("allocated", "share")

    def __init__(self, allocated: Amounts, share: float) -> None:
        self.allocated = allocated
        self.share = share


class DrfPlugin:
    """Serves the job with the smallest dominant share first."""

    name = "drf"
    takes: ClassVar[tuple[Argument, ...]] = ()
    also_at: ClassVar[tuple[str, ...]] = ("queue_order", "reclaimable")  # with enableHierarchy

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        total = session.total_resource
        self._names = [(name, total.get(name)) for name in total.names()]
        self._holdings: dict[str, JobShare] = {}
        self._tree: ShareTree | None = None
        session.add_preemptable_fn(
            self.name, self._preemptable, VictimHints(VictimDependence.SHRINKING, self._has_less)
        )
        session.add_job_order_fn(self.name, self._order)
        session.add_event_handler(self.name, allocate=self._allocate, deallocate=self._deallocate)
        if session.hierarchy_enabled(self.name):
            self._tree = self._grown(total)
            session.add_queue_order_fn(self.name, self._queue_order)
            session.add_reclaimable_fn(self.name, self._reclaimable)

    def on_session_close(self, session: Session) -> Iterator[None]:
        """What each job holds, for whoever shows it; some jobs a turn."""
        for number, job in enumerate(session.jobs.values()):
            if not number % _JOBS_PER_STEP:
                yield
            session.job_shares[job.uid] = self._job_share(job).share

    def _grown(self, total: Amounts) -> ShareTree:
        tree = ShareTree(total, self.share_of)
        for job in self._session.jobs.values():
            queue = self._session.queues[job.queue]
            fault = tree.add_job(job.uid, queue.hierarchy, queue.hierarchy_weights, job.total_request)
            if fault and (sentence := f"{self.name}: queue {queue.name}: {fault}") not in self._session.faults:
                self._session.faults.append(sentence)
            holding = self._job_share(job)
            tree.set_job(job.uid, holding.allocated.clone(), holding.share)
        return tree

    # shares of jobs ---------------------------------------------------------------------------------------------

    def share_of(self, allocated: Amounts) -> float:
        """The largest fraction of anything in the cluster."""
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
        """What the job holds; before its first event in this session that is what it came with."""
        holding = self._holdings.get(job.uid)
        if holding is None:
            holding = self._holdings[job.uid] = JobShare(job.allocated.clone(), self.share_of(job.allocated))
        return holding

    def _order(self, left: Job, right: Job) -> int:
        mine, theirs = self._job_share(left).share, self._job_share(right).share
        return (mine > theirs) - (mine < theirs)

    def _has_less(self, evictor: Job, task: Task) -> bool:
        """Whether the task's job has clearly less already; the difference only grows while the other takes from it."""
        job = self._session.jobs.get(task.job)
        return job is None or self._job_share(job).share + 2 * SHARE_DELTA < self._job_share(evictor).share

    def _preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks of jobs that would still have no less than the preemptor's job."""
        jobs = self._session.jobs
        job = jobs.get(preemptor.job)
        if job is None:
            return []
        mine = self.share_of(self._job_share(job).allocated.clone().add(preemptor.resreq))
        left: dict[str, Amounts] = {}
        victims = []
        for task in candidates:
            victim = jobs.get(task.job)
            if victim is None:
                continue
            if task.job not in left:
                left[task.job] = self._job_share(victim).allocated.clone()
            theirs = self.share_of(left[task.job].sub(task.resreq))
            if mine < theirs or abs(mine - theirs) <= SHARE_DELTA:
                victims.append(task)
        return victims

    # what happens -----------------------------------------------------------------------------------------------

    def _allocate(self, task: Task) -> None:
        job = self._session.jobs.get(task.job)
        if job is None:
            return
        if job.uid in self._holdings:
            self._change(job, self._holdings[job.uid].allocated.add(task.resreq))
        elif IS_HOLDING[task.status]:  # the job has counted it already
            self._job_share(job)
        else:
            self._change(job, self._job_share(job).allocated.add(task.resreq))

    def _deallocate(self, task: Task) -> None:
        job = self._session.jobs.get(task.job)
        if job is None:
            return
        if job.uid in self._holdings:
            self._change(job, self._holdings[job.uid].allocated.sub_unchecked(task.resreq))
        else:  # it held the task until this moment, and does not count it any more
            self._job_share(job)

    def _change(self, job: Job, allocated: Amounts) -> None:
        holding = self._holdings[job.uid]
        holding.share = self.share_of(allocated)
        if self._tree is not None:
            self._tree.set_job(job.uid, allocated.clone(), holding.share)

    # shares of queues -------------------------------------------------------------------------------------------

    def _queue_order(self, left: Queue, right: Queue) -> int:
        assert self._tree is not None
        gap = self._tree.compare(left.hierarchy, right.hierarchy)
        return (gap > 0) - (gap < 0)

    def _reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks without which their queue would still come after the reclaimer's, were it served."""
        session, tree = self._session, self._tree
        job = session.jobs.get(reclaimer.job)
        if job is None or tree is None:
            return []
        mine = session.queues[job.queue].hierarchy
        known: dict[tuple[object, ...], bool] = {}
        self._try(tree, job, self._job_share(job).allocated.clone().add(reclaimer.resreq))
        victims = []
        for task in candidates:
            victim = session.jobs.get(task.job)
            if victim is None:
                continue
            key = (task.job, task.demand_key)
            if key not in known:
                self._try(tree, victim, self._job_share(victim).allocated.clone().sub(task.resreq))
                known[key] = tree.compare(mine, session.queues[victim.queue].hierarchy) < 0
                self._try(tree, victim, self._job_share(victim).allocated.clone())
            if known[key]:
                victims.append(task)
        self._try(tree, job, self._job_share(job).allocated.clone())
        return victims

    def _try(self, tree: ShareTree, job: Job, allocated: Amounts) -> None:
        tree.set_job(job.uid, allocated, self.share_of(allocated))
