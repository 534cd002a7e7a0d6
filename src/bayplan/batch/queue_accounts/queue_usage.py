"""What do the jobs of each queue hold, ask for and keep reserved, in sum?

Asked when a session opens by the plugins that divide the cluster among queues (proportion, capacity). Sums outlive the
session: of the next one only jobs that changed are read again. Cost: a comparison a job, and some additions for each
that changed. `is_within_limit` is the other thing those plugins share: their test of every single task against a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.queue_accounts.job_reservations import inqueue_resources
from bayplan.objects.volcano.types import PodGroup

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session

_MEMORY = "queue sums"


@dataclass(slots=True)
class QueueUsage:
    """What one job, or all jobs of a queue, have to do with the cluster."""

    allocated: Amounts = field(default_factory=Amounts)
    request: Amounts = field(default_factory=Amounts)  # allocated and pending
    inqueue: Amounts = field(default_factory=Amounts)  # still lacking to the minimums of jobs that are in
    elastic: Amounts = field(default_factory=Amounts)  # held beyond the minimums
    jobs: int = 0

    def add(self, other: QueueUsage) -> QueueUsage:
        self.allocated.add(other.allocated)
        self.request.add(other.request)
        self.inqueue.add(other.inqueue)
        self.elastic.add(other.elastic)
        self.jobs += other.jobs
        return self

    def sub(self, other: QueueUsage) -> QueueUsage:
        """Take away what was added once."""
        self.allocated.sub_unchecked(other.allocated)
        self.request.sub_unchecked(other.request)
        self.inqueue.sub_unchecked(other.inqueue)
        self.elastic.sub_unchecked(other.elastic)
        self.jobs -= other.jobs
        return self


@dataclass(slots=True)
class _JobUsage:
    """What a job contributed, and what it looked like then."""

    job: Job
    revision: int
    group: PodGroup
    queue: str
    holders: int
    is_stable: bool  # nothing waits: what it holds and its group say everything
    sums: QueueUsage

    def is_current(self, job: Job) -> bool:
        """Whether the sums still hold; a running job whose pods have other versions, or were replaced, is the same."""
        if self.job is not job:
            return False
        if self.revision != job.revision:
            if not (self.is_stable and self.group is job.pod_group and self.queue == job.queue and _is_stable(job)):
                return False
            if self.holders != job.allocated_task_num or not _same_objects(self.sums.allocated, job.allocated):
                return False
            self.revision = job.revision
        return True


class QueueUsageCache:
    """The sums of all queues that have jobs, and what each job contributed."""

    def __init__(self) -> None:
        self.by_queue: dict[str, QueueUsage] = {}
        self._entries: dict[str, _JobUsage] = {}

    def refresh(self, jobs: Mapping[str, Job]) -> Mapping[str, QueueUsage]:
        """The sums over these jobs. They stay the memory's own: clone what you change."""
        entries = self._entries
        for uid in entries.keys() - jobs.keys():
            self._remove_job(entries.pop(uid))
        for uid, job in jobs.items():
            entry = entries.get(uid)
            if entry is None:
                entries[uid] = self._add_job(job)
            elif entry.revision == job.revision and entry.job is job:
                continue
            elif not entry.is_current(job):
                self._remove_job(entry)
                entries[uid] = self._add_job(job)
        return self.by_queue

    def _add_job(self, job: Job) -> _JobUsage:
        sums = job_usage(job)
        self.by_queue.setdefault(job.queue, QueueUsage()).add(sums)
        return _JobUsage(job, job.revision, job.pod_group, job.queue, job.allocated_task_num, _is_stable(job), sums)

    def _remove_job(self, entry: _JobUsage) -> None:
        if not self.by_queue[entry.queue].sub(entry.sums).jobs:
            del self.by_queue[entry.queue]


def job_usage(job: Job) -> QueueUsage:
    request = job.allocated.clone()
    for task in job.pending.values():
        request.add(task.resreq)
    return QueueUsage(job.allocated.clone(), request, inqueue_resources(job), job.elastic_resources(), 1)


def _is_stable(job: Job) -> bool:
    return not job.pending and not job.gated_task_num


def _same_objects(left: Amounts, right: Amounts) -> bool:
    return left.milli_cpu == right.milli_cpu and left.memory == right.memory and left.scalars == right.scalars


def usage_by_queue(handle: BatchHandle, session: Session) -> Mapping[str, QueueUsage]:
    """The sums of every queue that has a job in this session."""
    return handle.keep(_MEMORY, QueueUsageCache).refresh(session.jobs)
