"""A heap whose order can change while it is used: queues and jobs by what they currently hold.

The order is a less function that reads live state, so the heap can be out of order when it is popped. Volcano accepts
that. To get the same order, pushes and pops swap exactly as Go's container/heap does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class PriorityQueue(Generic[T]):
    """Items; the next one is the first by `less`."""

    __slots__ = ("_items", "_less")

    def __init__(self, less: Callable[[T, T], bool], items: Iterable[T] = ()) -> None:
        self._less = less
        self._items: list[T] = []
        for item in items:
            self.push(item)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def push(self, item: T) -> None:
        items, less = self._items, self._less
        items.append(item)
        child = len(items) - 1
        while child > 0:
            parent = (child - 1) // 2
            if not less(items[child], items[parent]):
                break
            items[child], items[parent] = items[parent], items[child]
            child = parent

    def pop(self) -> T:
        items, less = self._items, self._less
        last = len(items) - 1
        items[0], items[last] = items[last], items[0]
        parent = 0
        while (child := 2 * parent + 1) < last:
            if child + 1 < last and less(items[child + 1], items[child]):
                child += 1
            if not less(items[child], items[parent]):
                break
            items[child], items[parent] = items[parent], items[child]
            parent = child
        return items.pop()

    def clone(self) -> PriorityQueue[T]:
        copied = PriorityQueue(self._less)
        copied._items = self._items.copy()
        return copied
