"""Usage of queues: the sums of what their jobs hold, request and reserve.

Called when a session opens by the plugins that divide the cluster among queues (proportion, capacity). The sums outlive
the session; the next one only reads changed jobs again. Cost: one comparison per job, and some additions per changed
job.
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
    """The amounts of one job, or of all jobs of a queue."""

    allocated: Amounts = field(default_factory=Amounts)
    request: Amounts = field(default_factory=Amounts)  # allocated and pending
    inqueue: Amounts = field(default_factory=Amounts)  # missing to the minimums of admitted jobs
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
        """Subtract amounts that were added before."""
        self.allocated.sub_unchecked(other.allocated)
        self.request.sub_unchecked(other.request)
        self.inqueue.sub_unchecked(other.inqueue)
        self.elastic.sub_unchecked(other.elastic)
        self.jobs -= other.jobs
        return self


@dataclass(slots=True)
class _JobUsage:
    """The contribution of a job, and the job's state at that time."""

    job: Job
    revision: int
    group: PodGroup
    queue: str
    holders: int
    is_stable: bool  # no task is pending: the allocated amounts and the group determine the sums
    sums: QueueUsage

    def is_current(self, job: Job) -> bool:
        """Whether the sums are still valid. New versions of the pods of a running job do not invalidate them."""
        if self.job is not job:
            return False
        if self.revision != job.revision:
            if not (self.is_stable and self.group is job.pod_group and self.queue == job.queue and _is_stable(job)):
                return False
            if self.holders != job.allocated_task_num or not _is_identical(self.sums.allocated, job.allocated):
                return False
            self.revision = job.revision
        return True


class QueueUsageCache:
    """The sums of all queues with jobs, and the contribution of each job."""

    def __init__(self) -> None:
        self.by_queue: dict[str, QueueUsage] = {}
        self._entries: dict[str, _JobUsage] = {}

    def refresh(self, jobs: Mapping[str, Job]) -> Mapping[str, QueueUsage]:
        """Update and return the sums over these jobs. The cache owns them: clone before changing."""
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


def _is_identical(left: Amounts, right: Amounts) -> bool:
    return left.milli_cpu == right.milli_cpu and left.memory == right.memory and left.scalars == right.scalars


def usage_by_queue(handle: BatchHandle, session: Session) -> Mapping[str, QueueUsage]:
    """The sums of every queue with a job in this session."""
    return handle.keep(_MEMORY, QueueUsageCache).refresh(session.jobs)
