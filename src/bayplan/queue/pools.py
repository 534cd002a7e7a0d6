"""Where each pod of the queue is: ready, backing off, or parked. One pod of a name is in one pool at a time.

Who may go where is the queue's business; here pods are put in, taken out and counted.
"""

from __future__ import annotations

from bayplan.queue.backoff import PodBackoff
from bayplan.queue.heap import PodHeap, SortKey
from bayplan.queue.hints import HintTable
from bayplan.queue.queued_pod import QueuedPodInfo, SubQueue
from bayplan.queue.recorder import QueueRecorder
from bayplan.queue.unschedulable_pods import UnschedulablePods
from bayplan.snapshot import PodInfo


class QueuePools:
    """All pods that wait, by name and by pool. With a `windowed` backoff, pods of one second come in queue order."""

    def __init__(self, order: SortKey, backoff: PodBackoff, hints: HintTable, recorder: QueueRecorder) -> None:
        self._order = order
        self._rule = backoff
        self._recorder = recorder
        self._queued: dict[str, QueuedPodInfo] = {}  # by namespace/name
        self.active = PodHeap(order)
        self.backoff = PodHeap(self._backoff_key)
        self.error_backoff = PodHeap(backoff.expires_at)
        self._heaps = {
            SubQueue.ACTIVE: self.active,
            SubQueue.BACKOFF: self.backoff,
            SubQueue.ERROR_BACKOFF: self.error_backoff,
        }
        self.parked = UnschedulablePods(hints)

    def __len__(self) -> int:
        return len(self._queued)

    def get(self, key: str) -> QueuedPodInfo | None:
        return self._queued.get(key)

    def counts(self) -> dict[str, int]:
        """Pods by pool, as `pending_pods` tells them."""
        return {
            "active": len(self.active),
            "backoff": len(self.backoff) + len(self.error_backoff),
            "unschedulable": len(self.parked) - self.parked.gated,
            "gated": self.parked.gated,
        }

    def pods_in(self, pool: SubQueue) -> list[QueuedPodInfo]:
        """The pods of a pool in its order: for people and tests."""
        return list(self.parked if pool is SubQueue.UNSCHEDULABLE else self._heaps[pool])

    def add(self, queued: QueuedPodInfo, pool: SubQueue, event: str) -> None:
        """Put a pod into a pool, out of whichever it is in; an older one of its name goes."""
        present = self._queued.get(queued.key)
        if present is not None:
            self._replace(present, queued)
        if present is None or pool is not SubQueue.UNSCHEDULABLE:  # a parked pod that stays so is no news
            self._recorder.incoming(pool.label, event)
        self._queued[queued.key] = queued
        queued.pool = pool
        if pool is SubQueue.UNSCHEDULABLE:
            self.parked.add(queued)
        else:
            self._heaps[pool].push(queued)

    def remove(self, queued: QueuedPodInfo) -> None:
        del self._queued[queued.key]
        self._remove_from_pool(queued)
        queued.pool = None

    def update(self, queued: QueuedPodInfo, info: PodInfo) -> None:
        """Another version of the pod is known; it stays where it is, in the place that the version has there."""
        pool = queued.pool
        assert pool is not None
        self._remove_from_pool(queued)
        queued.update(info)
        if pool is SubQueue.UNSCHEDULABLE:
            self.parked.add(queued)
        else:
            self._heaps[pool].push(queued)

    def count_rejectors(self, queued: QueuedPodInfo, by: int) -> None:
        for plugin in queued.rejectors:
            self._recorder.rejected(plugin, queued.pod.scheduler_name, by)

    def _replace(self, present: QueuedPodInfo, queued: QueuedPodInfo) -> None:
        self.remove(present)
        if present is not queued:
            self.count_rejectors(present, -1)

    def _remove_from_pool(self, queued: QueuedPodInfo) -> None:
        if queued.pool is SubQueue.UNSCHEDULABLE:
            self.parked.remove(queued)
        elif queued.pool is not None:
            self._heaps[queued.pool].remove(queued)

    def _backoff_key(self, queued: QueuedPodInfo) -> object:
        until = self._rule.expires_at(queued)
        return (until, self._order(queued)) if self._rule.windowed else until
