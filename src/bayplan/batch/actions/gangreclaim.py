"""The `gangreclaim` action: evicts bundles of other queues for a starving gang of a queue that is not overused."""

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


class GangReclaim(GangEviction):
    """Reclaim between queues; `victim_queue_order` decides which queue loses its bundles first."""

    name = "gangreclaim"
    kind = EvictionKind.GANG_RECLAIM
    victim_statuses = (TaskStatus.RUNNING,)

    def can_serve_queue(self, session: Session, queue: Queue) -> bool:
        return not session.overused(queue)

    def can_evict_for(self, session: Session, queue: Queue, tasks: Sequence[Task]) -> bool:
        return session.preemptive(queue, tasks)

    def is_victim(self, session: Session, job: Job, other: Job) -> bool:
        queue = session.queues.get(other.queue)
        return other.queue != job.queue and queue is not None and queue.reclaimable

    def compare_bundles(self, session: Session, job: Job, left: Bundle, right: Bundle) -> int:
        own, one, other = (session.queues[each.queue] for each in (job, left.job, right.job))
        if one is other:
            return 0
        first, second = session.victim_queue_order(one, other, own), session.victim_queue_order(other, one, own)
        return second - first
