"""What changed since a reader last looked: numbers appended by the writer, read from a cursor.

Keeps a bounded tail. A reader that was away for longer is told so and copies everything.
"""

from __future__ import annotations

from array import array


class ChangeJournal:
    """Numbers (rows or slots) in the order they changed."""

    __slots__ = ("_entries", "_limit", "_start", "end")

    def __init__(self, limit: int = 65_536) -> None:
        self._entries = array("q")  # no objects: kept among others that go soon, they would hold on to their memory
        self._start = 0
        self._limit = limit
        self.end = 0  # the cursor of a reader that has seen everything

    def append(self, number: int) -> None:
        self._entries.append(number)
        self.end += 1
        if len(self._entries) > self._limit:
            half = len(self._entries) // 2
            del self._entries[:half]
            self._start += half

    def single_since(self, cursor: int) -> int:
        """The number noted after `cursor`, where that is exactly one; else -1."""
        return self._entries[-1] if self.end - cursor == 1 and cursor >= 0 else -1

    def since(self, cursor: int) -> set[int] | None:
        """The numbers noted after `cursor`; None where they are no longer known and all may have changed."""
        if cursor < self._start:
            return None
        return set(self._entries[cursor - self._start :]) if cursor < self.end else set()
