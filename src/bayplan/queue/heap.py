"""Heap of pods with a sort key, used for the active queue and both backoff queues.

Push and pop cost a few comparisons. A pod removed from the middle leaves a stale entry; stale entries are removed when
they are the majority. The order is a key computed when a pod enters, or a plugin's `less`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any

from bayplan.framework.api.extension_points import QUEUE_SORT
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.objects.core import Pod
from bayplan.queue.queued_pod import QueuedPodInfo

SortKey = Callable[[QueuedPodInfo], Any]
"""Computes a value that sorts in the queue's order."""

_sequence_numbers = count(1)
_MIN_STALE_ENTRIES = 64


class PodHeap:
    """Pods by a sort key. Of equal pods the one that entered first comes first."""

    def __init__(self, key: SortKey) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, QueuedPodInfo]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueuedPodInfo]:
        """All pods in order. Slow, because it sorts; for output and tests."""
        return (queued for _, sequence, queued in sorted(self._heap) if queued.heap_sequence == sequence)

    def push(self, queued: QueuedPodInfo) -> None:
        queued.heap_sequence = next(_sequence_numbers)
        heapq.heappush(self._heap, (self._key(queued), queued.heap_sequence, queued))
        self._count += 1

    def peek(self) -> QueuedPodInfo | None:
        heap = self._heap
        while heap:
            _, sequence, queued = heap[0]
            if queued.heap_sequence == sequence:
                return queued
            heapq.heappop(heap)
        return None

    def pop(self) -> QueuedPodInfo | None:
        queued = self.peek()
        if queued is not None:
            heapq.heappop(self._heap)
            queued.heap_sequence = 0
            self._count -= 1
        return queued

    def remove(self, queued: QueuedPodInfo) -> None:
        """Remove a pod that is in this heap."""
        queued.heap_sequence = 0
        self._count -= 1
        if len(self._heap) > 2 * self._count + _MIN_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].heap_sequence == entry[1]]
            heapq.heapify(self._heap)


@dataclass(frozen=True, slots=True)
class _ComparedPod:
    """The values that a plugin compares. They are immutable, because stale entries are still compared."""

    pod: Pod
    timestamp: datetime


class _LessOrdered:
    """A pod compared by a plugin's `less`."""

    __slots__ = ("_entered", "_less")

    def __init__(self, queued: QueuedPodInfo, less: Callable[[_ComparedPod, _ComparedPod], bool]) -> None:
        self._entered = _ComparedPod(queued.pod, queued.timestamp)
        self._less = less

    def __lt__(self, other: _LessOrdered) -> bool:
        return self._less(self._entered, other._entered)


def queue_order(sorter: Any, caller: PluginCaller) -> SortKey:
    """Return the sort key of a QueueSort plugin.

    A plugin with `sort_key(queued)` beside `less` is called once for each pod, any other at every comparison. If `less`
    raises, the failure is counted and logged, and the two pods are ordered by time.
    """
    if has_matching_sort_key(sorter):
        key: SortKey = sorter.sort_key
        return key

    def less(first: _ComparedPod, second: _ComparedPod) -> bool:
        try:
            return bool(caller.call(sorter, QUEUE_SORT, sorter.less, first, second))
        except PluginFault:
            return first.timestamp < second.timestamp

    return lambda queued: _LessOrdered(queued, less)


def has_matching_sort_key(sorter: Any) -> bool:
    """Whether the plugin's sort key belongs to its `less`: a subclass may override only `less`."""
    if "less" in getattr(sorter, "__dict__", {}):
        return False
    defining_class = next((base for base in type(sorter).__mro__ if "less" in vars(base)), None)
    return (
        defining_class is not None
        and "sort_key" in vars(defining_class)
        and callable(getattr(sorter, "sort_key", None))
    )
