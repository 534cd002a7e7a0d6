"""The `enqueue` action: moves pod groups from Pending to Inqueue.

Volcano's controllers create pods only for groups that are Inqueue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.model.jobs import INQUEUE_PHASE, Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.session import Session


class Enqueue:
    """Admits one pending group per turn of its queue, if the `job_enqueueable` votes of the plugins permit it."""

    name = "enqueue"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    def execute(self, session: Session) -> Iterator[None]:
        queues: PriorityQueue[Queue] = PriorityQueue(session.queue_order)
        waiting: dict[str, PriorityQueue[Job]] = {}
        seen: set[str] = set()
        now = session.clock.now()
        for job in session.jobs.values():
            job.schedule_start = job.schedule_start or now
            queue = session.queues.get(job.queue)
            if queue is None:
                continue
            if queue.uid not in seen:
                seen.add(queue.uid)
                queues.push(queue)
            if job.is_pending():
                waiting.setdefault(queue.uid, PriorityQueue(session.job_order)).push(job)
        while queues:
            queue = queues.pop()
            jobs = waiting.get(queue.uid)
            if not jobs:
                continue
            job = jobs.pop()
            if job.min_resources_given is None or session.job_enqueueable(job):
                session.job_enqueued(job)
                job.phase = INQUEUE_PHASE
            queues.push(queue)
            yield
