"""Small numbers for values that repeat: label sets, taint lists, affinity terms, resource names.

Columns hold the numbers; whoever evaluates something does so once a distinct value and spreads the answer with one
`take`. Values are counted and given back, because some of them never end (`controller-uid` labels). A number that
was given back is reused only when no snapshot can still hold it: the owner says so by calling `reuse_released_ids`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Interner(Generic[K]):
    """Values to ids and back, with a use count for each id."""

    __slots__ = ("_count", "_free", "_id", "_log", "_log_start", "released", "values")

    def __init__(self) -> None:
        self._id: dict[K, int] = {}
        self._count: list[int] = []
        self._free: list[int] = []
        self.released: list[int] = []  # given back, and perhaps still shown by a snapshot
        self.values: list[K | None] = []
        self._log: list[int] = []  # ids in the order they were given a value: readers keep a cursor into it
        self._log_start = 0

    def __len__(self) -> int:
        """One more than the largest id ever given out: the length a lookup table needs."""
        return len(self.values)

    @property
    def in_use(self) -> int:
        return len(self._id)

    def acquire(self, value: K) -> int:
        """The id of `value`, one use more."""
        number = self._id.get(value)
        if number is None:
            number = self._assign(value)
        self._count[number] += 1
        return number

    def release(self, number: int) -> None:
        """One use less; the last one gives the id back."""
        self._count[number] -= 1
        if self._count[number] == 0:
            value = self.values[number]
            assert value is not None
            del self._id[value]
            self.released.append(number)

    def get(self, value: K) -> int:
        """The id of `value`, or -1 where nobody uses it."""
        return self._id.get(value, -1)

    def value(self, number: int) -> K:
        """What an id in use stands for."""
        value = self.values[number]
        if value is None:
            raise LookupError(f"id {number} is not in use")
        return value

    def items(self) -> Iterator[tuple[int, K]]:
        """Every id that stands for something, with its value: released ones too, a snapshot may still show them."""
        for number, value in enumerate(self.values):
            if value is not None:
                yield number, value

    def since(self, cursor: int) -> tuple[int, list[int]]:
        """The ids that got a value after `cursor` (0 for a new reader), and the cursor to ask with next time."""
        end = self._log_start + len(self._log)
        if cursor < self._log_start:
            return end, [number for number, _ in self.items()]
        return end, self._log[cursor - self._log_start :]

    def reuse_released_ids(self) -> None:
        """No snapshot holds a released id any more: they may be given out again."""
        for number in self.released:
            self.values[number] = None
        self._free.extend(self.released)
        self.released.clear()

    def _assign(self, value: K) -> int:
        if self._free:
            number = self._free.pop()
            self.values[number] = value
        else:
            number = len(self.values)
            self.values.append(value)
            self._count.append(0)
        self._id[value] = number
        self._log.append(number)
        if len(self._log) > 4 * len(self.values) + 1024:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half
        return number
