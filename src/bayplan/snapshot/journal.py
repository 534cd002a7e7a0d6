"""Journal of changed rows or slots: the writer appends numbers, a reader reads from its cursor.

The journal is bounded. A reader that is too far behind gets None and must copy everything.
"""

from __future__ import annotations

from array import array


class ChangeJournal:
    """Row or slot numbers in the order of their changes."""

    __slots__ = ("_entries", "_limit", "_start", "end")

    def __init__(self, limit: int = 65_536) -> None:
        self._entries = array("q")  # no int objects: among short-lived objects they would keep memory pools in use
        self._start = 0
        self._limit = limit
        self.end = 0  # the cursor of an up-to-date reader

    def append(self, number: int) -> None:
        self._entries.append(number)
        self.end += 1
        if len(self._entries) > self._limit:
            half = len(self._entries) // 2
            del self._entries[:half]
            self._start += half

    def single_since(self, cursor: int) -> int:
        """Return the number appended after `cursor` if there is exactly one, otherwise -1."""
        return self._entries[-1] if self.end - cursor == 1 and cursor >= 0 else -1

    def since(self, cursor: int) -> set[int] | None:
        """Return the numbers appended after `cursor`; None if they are no longer stored and everything may have
        changed.
        """
        if cursor < self._start:
            return None
        return set(self._entries[cursor - self._start :]) if cursor < self.end else set()
