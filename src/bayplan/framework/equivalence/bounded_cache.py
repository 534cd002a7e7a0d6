"""Cache with a bounded number of entries, oldest first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from bayplan.framework.equivalence.plugin_evaluation import PluginEvaluation

T = TypeVar("T")

_MAX_KEYS = 4096


class Kept(Generic[T]):
    """A place for what is shared by everything with one key."""

    __slots__ = ("last_used", "seen_before", "value")

    def __init__(self) -> None:
        self.seen_before = False  # once: whatever comes again is kept
        self.last_used = 0  # when it was asked for last, in attempts
        self.value: T | None = None


Places = tuple[Kept[PluginEvaluation] | None, ...]
"""Of each plugin's answers about a pod; None where it is asked about this pod alone."""


class Shelf(Generic[T]):
    """Places by key, and how many of them may hold something."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: OrderedDict[Hashable, Kept[T]] = OrderedDict()
        self._held: set[Kept[T]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def slot(self, key: Hashable) -> Kept[T]:
        """The place of a key; equal keys have one."""
        kept = self._places.get(key)
        if kept is not None:
            self._places.move_to_end(key)
        else:
            kept = self._places[key] = Kept()
            if len(self._places) > _MAX_KEYS:
                self._places.popitem(last=False)
        return kept

    def store(self, kept: Kept[T], value: T) -> None:
        """Keep a value if its like was met before."""
        if not kept.seen_before:
            kept.seen_before = True
            return
        if len(self._held) >= self._limit:
            self.drop(min(self._held, key=lambda each: each.last_used))
        kept.value = value
        self._held.add(kept)

    def clear(self) -> None:
        """Let everything go: pods may still hold their places."""
        for kept in self._held:
            kept.value = None
        self._held.clear()
        self._places.clear()

    def drop(self, kept: Kept[T]) -> None:
        kept.value = None
        self._held.discard(kept)
