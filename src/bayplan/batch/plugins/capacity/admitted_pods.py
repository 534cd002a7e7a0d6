"""How much of a queue is kept for pods that it has admitted and that have no node yet?

Asked by `capacity` where pods are held by a gate until their queue has room: without it one free place would let go
everybody who waits for it. Cost: one addition a pod that is admitted, placed or taken back.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import Task


class AdmittedPods:
    """By queue: what the tasks ask for that were admitted to it."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Who asked for the gate, waits, and has it no more was admitted in an earlier session."""
        self._homes: dict[str, str] = {}
        self._sums: dict[str, Amounts] = {}
        for job in jobs:
            for task in job.pending.values():
                if not task.gated:
                    self.add(job.queue, task)

    def add(self, queue: str, task: Task) -> None:
        """The queue has room for a task; kept for those alone that are held until it has."""
        if not task.awaits_queue_admission or task.uid in self._homes:
            return
        self._homes[task.uid] = queue
        self._sums.setdefault(queue, Amounts()).add(task.resreq)

    def remove(self, task: Task) -> None:
        """A task has a node, which counts by itself."""
        queue = self._homes.pop(task.uid, None)
        if queue is not None:
            self._sums[queue].sub_unchecked(task.resreq)

    def added_to(self, held: Amounts, queue: str, task: Task) -> Amounts:
        """What counts as taken before the task is: what is held, and what is kept for others."""
        kept = self._sums.get(queue)
        if kept is None:
            return held
        taken = held.clone().add(kept)
        return taken.sub_unchecked(task.resreq) if self._homes.get(task.uid) == queue else taken
