"""Pods in an order, the first one at hand: the active queue and both backoff queues.

Taking the first and adding one cost a few comparisons; a pod that leaves from the middle only gives its place up, and
empty places are swept out when they are the majority. The order is a value computed when a pod enters, or a plugin's
`less`.
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
"""A value that sorts as the queue's order does."""

_sequence_numbers = count(1)
_MIN_STALE_ENTRIES = 64


class PodHeap:
    """Pods by a sort key; of equals the one that entered first."""

    def __init__(self, key: SortKey) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, QueuedPodInfo]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueuedPodInfo]:
        """All pods in order: for people and tests, it sorts."""
        return (queued for _, ticket, queued in sorted(self._heap) if queued.heap_sequence == ticket)

    def push(self, queued: QueuedPodInfo) -> None:
        queued.heap_sequence = next(_sequence_numbers)
        heapq.heappush(self._heap, (self._key(queued), queued.heap_sequence, queued))
        self._count += 1

    def peek(self) -> QueuedPodInfo | None:
        heap = self._heap
        while heap:
            _, ticket, queued = heap[0]
            if queued.heap_sequence == ticket:
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
        """Take out a pod that is in here."""
        queued.heap_sequence = 0
        self._count -= 1
        if len(self._heap) > 2 * self._count + _MIN_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].heap_sequence == entry[1]]
            heapq.heapify(self._heap)


@dataclass(frozen=True, slots=True)
class _ComparedPod:
    """What a plugin compares. It stays as it was: a place that was given up still has neighbours."""

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


def queue_order(sorter: Any, boundary: PluginCaller) -> SortKey:
    """The order of a QueueSort plugin.

    One that states `sort_key(queued)` beside its `less` is asked once a pod, the others at every comparison. One that
    raises is counted and logged, and those two pods come as they were queued: the queue goes on.
    """
    if has_matching_sort_key(sorter):
        key: SortKey = sorter.sort_key
        return key

    def less(first: _ComparedPod, second: _ComparedPod) -> bool:
        try:
            return bool(boundary.call(sorter, QUEUE_SORT, sorter.less, first, second))
        except PluginFault:
            return first.timestamp < second.timestamp

    return lambda queued: _LessOrdered(queued, less)


def has_matching_sort_key(sorter: Any) -> bool:
    """Whether the key belongs to the very `less` that the plugin has: a subclass may have changed only the latter."""
    if "less" in getattr(sorter, "__dict__", {}):
        return False
    home = next((each for each in type(sorter).__mro__ if "less" in vars(each)), None)
    return home is not None and "sort_key" in vars(home) and callable(getattr(sorter, "sort_key", None))
