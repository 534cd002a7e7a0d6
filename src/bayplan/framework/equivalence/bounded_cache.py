"""Cache with a bounded number of values and keys. The least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from bayplan.framework.equivalence.plugin_evaluation import PluginEvaluation

T = TypeVar("T")

_MAX_KEYS = 4096


class CacheSlot(Generic[T]):
    """Slot for a value that everything with one key shares."""

    __slots__ = ("last_used", "seen_before", "value")

    def __init__(self) -> None:
        self.seen_before = False  # set at the first use: only a value that is used again is stored
        self.last_used = 0  # number of the last attempt that used it
        self.value: T | None = None


EvaluationSlots = tuple[CacheSlot[PluginEvaluation] | None, ...]
"""The slot of each plugin's evaluation for a pod. None: the plugin is evaluated for this pod alone."""


class BoundedCache(Generic[T]):
    """Slots by key. A limited number of them hold a value."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: OrderedDict[Hashable, CacheSlot[T]] = OrderedDict()
        self._filled: set[CacheSlot[T]] = set()

    def __len__(self) -> int:
        return len(self._filled)

    def slot(self, key: Hashable) -> CacheSlot[T]:
        """Return the slot of a key, the same for equal keys."""
        slot = self._slots.get(key)
        if slot is not None:
            self._slots.move_to_end(key)
        else:
            slot = self._slots[key] = CacheSlot()
            if len(self._slots) > _MAX_KEYS:
                self._slots.popitem(last=False)
        return slot

    def store(self, slot: CacheSlot[T], value: T) -> None:
        """Store a value if its key was used before."""
        if not slot.seen_before:
            slot.seen_before = True
            return
        if len(self._filled) >= self._limit:
            self.drop(min(self._filled, key=lambda each: each.last_used))
        slot.value = value
        self._filled.add(slot)

    def clear(self) -> None:
        """Drop all values. Pods may still reference their slots."""
        for slot in self._filled:
            slot.value = None
        self._filled.clear()
        self._slots.clear()

    def drop(self, slot: CacheSlot[T]) -> None:
        slot.value = None
        self._filled.discard(slot)
