"""Amounts reserved in a queue for pods that it admitted and that have no node yet.

Used by `capacity` for pods with Volcano's scheduling gate, which is removed when the queue has room. Without the
reservation, one free slot would release every gated pod. Cost: one addition per pod that is admitted, placed or loses
its node.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import Task


class AdmittedPods:
    """Sum of the requests of admitted tasks, by queue."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Add pending tasks whose gate an earlier session has removed."""
        self._queue_by_task: dict[str, str] = {}
        self._sums: dict[str, Amounts] = {}
        for job in jobs:
            for task in job.pending.values():
                if not task.gated:
                    self.add(job.queue, task)

    def add(self, queue: str, task: Task) -> None:
        """Reserve the task's request in the queue, if the task is subject to queue admission."""
        if not task.awaits_queue_admission or task.uid in self._queue_by_task:
            return
        self._queue_by_task[task.uid] = queue
        self._sums.setdefault(queue, Amounts()).add(task.resreq)

    def remove(self, task: Task) -> None:
        """Release the reservation of a task that has a node, because its usage now counts instead."""
        queue = self._queue_by_task.pop(task.uid, None)
        if queue is not None:
            self._sums[queue].sub_unchecked(task.resreq)

    def added_to(self, held: Amounts, queue: str, task: Task) -> Amounts:
        """The held amounts plus the reservations of the queue, without that of the task itself."""
        reserved = self._sums.get(queue)
        if reserved is None:
            return held
        total = held.clone().add(reserved)
        return total.sub_unchecked(task.resreq) if self._queue_by_task.get(task.uid) == queue else total
