"""Sub-queues of the scheduling queue: active, backoff and unschedulable pods. A pod is in one of them at a time.

The scheduling queue decides where a pod goes. This module adds, removes and counts pods.
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
    """All waiting pods by name and by sub-queue. With a `windowed` backoff, pods of one second are in queue order."""

    def __init__(self, order: SortKey, backoff: PodBackoff, hints: HintTable, recorder: QueueRecorder) -> None:
        self._order = order
        self._backoff_rule = backoff
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
        self.unschedulable = UnschedulablePods(hints)

    def __len__(self) -> int:
        return len(self._queued)

    def get(self, key: str) -> QueuedPodInfo | None:
        return self._queued.get(key)

    def counts(self) -> dict[str, int]:
        """Return the number of pods by sub-queue, as in the metric `pending_pods`."""
        return {
            "active": len(self.active),
            "backoff": len(self.backoff) + len(self.error_backoff),
            "unschedulable": len(self.unschedulable) - self.unschedulable.gated,
            "gated": self.unschedulable.gated,
        }

    def pods_in(self, pool: SubQueue) -> list[QueuedPodInfo]:
        """Return the pods of a sub-queue in order, for output and tests."""
        return list(self.unschedulable if pool is SubQueue.UNSCHEDULABLE else self._heaps[pool])

    def add(self, queued: QueuedPodInfo, pool: SubQueue, event: str) -> None:
        """Move a pod into a sub-queue. An older pod with the same name is removed."""
        present = self._queued.get(queued.key)
        if present is not None:
            self._replace(present, queued)
        if present is None or pool is not SubQueue.UNSCHEDULABLE:  # not counted for a pod that stays unschedulable
            self._recorder.incoming(pool.label, event)
        self._queued[queued.key] = queued
        queued.pool = pool
        if pool is SubQueue.UNSCHEDULABLE:
            self.unschedulable.add(queued)
        else:
            self._heaps[pool].push(queued)

    def remove(self, queued: QueuedPodInfo) -> None:
        del self._queued[queued.key]
        self._remove_from_pool(queued)
        queued.pool = None

    def update(self, queued: QueuedPodInfo, info: PodInfo) -> None:
        """Store a new version of a pod. The pod stays in its sub-queue and is sorted again."""
        pool = queued.pool
        assert pool is not None
        self._remove_from_pool(queued)
        queued.update(info)
        if pool is SubQueue.UNSCHEDULABLE:
            self.unschedulable.add(queued)
        else:
            self._heaps[pool].push(queued)

    def count_rejectors(self, queued: QueuedPodInfo, by: int) -> None:
        for plugin in queued.rejectors:
            self._recorder.add_rejected(plugin, queued.pod.scheduler_name, by)

    def _replace(self, present: QueuedPodInfo, queued: QueuedPodInfo) -> None:
        self.remove(present)
        if present is not queued:
            self.count_rejectors(present, -1)

    def _remove_from_pool(self, queued: QueuedPodInfo) -> None:
        if queued.pool is SubQueue.UNSCHEDULABLE:
            self.unschedulable.remove(queued)
        elif queued.pool is not None:
            self._heaps[queued.pool].remove(queued)

    def _backoff_key(self, queued: QueuedPodInfo) -> object:
        until = self._backoff_rule.expires_at(queued)
        return (until, self._order(queued)) if self._backoff_rule.windowed else until
