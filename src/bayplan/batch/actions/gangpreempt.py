"""The `gangpreempt` action: evicts bundles of lower-priority jobs in the same queue for a starving gang."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.batch.actions.gang_bundles import Bundle
from bayplan.batch.actions.gang_eviction import GangEviction
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.registration import EvictionKind
from bayplan.batch.session.session import Session


class GangPreempt(GangEviction):
    """Preemption within a queue, by job priority. The job that is last in job order loses its tasks first."""

    name = "gangpreempt"
    kind = EvictionKind.GANG_PREEMPT
    victim_statuses = (TaskStatus.BOUND, TaskStatus.RUNNING)

    def can_serve_queue(self, session: Session, queue: Queue) -> bool:  # noqa: ARG002
        return True

    def can_evict_for(self, session: Session, queue: Queue, tasks: Sequence[Task]) -> bool:  # noqa: ARG002
        return True

    def is_victim(self, session: Session, job: Job, other: Job) -> bool:  # noqa: ARG002
        return other.queue == job.queue and other.priority < job.priority

    def compare_bundles(self, session: Session, job: Job, left: Bundle, right: Bundle) -> int:  # noqa: ARG002
        if left.job is right.job:
            return 0
        return 1 if session.job_order(left.job, right.job) else -1
