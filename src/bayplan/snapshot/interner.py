"""Interner: small ids for repeated values such as label sets, taint lists, affinity terms and resource names.

Columns store ids. A reader evaluates each distinct value once and applies the result with one `take`. Values are
counted and released, because some keep changing (`controller-uid` labels). A released id is reused only when no
snapshot can contain it anymore: the owner then calls `reuse_released_ids`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Interner(Generic[K]):
    """Maps values to ids and back, with a use count for each id."""

    __slots__ = ("_free", "_id_by_value", "_log", "_log_start", "_use_count", "released", "values")

    def __init__(self) -> None:
        self._id_by_value: dict[K, int] = {}
        self._use_count: list[int] = []
        self._free: list[int] = []
        self.released: list[int] = []  # released, but possibly still in a snapshot
        self.values: list[K | None] = []
        self._log: list[int] = []  # ids in the order of assignment; readers keep a cursor
        self._log_start = 0

    def __len__(self) -> int:
        """The largest id ever assigned plus one: the length of a lookup table."""
        return len(self.values)

    @property
    def in_use(self) -> int:
        return len(self._id_by_value)

    def acquire(self, value: K) -> int:
        """Return the id of `value` and count one more use."""
        value_id = self._id_by_value.get(value)
        if value_id is None:
            value_id = self._assign(value)
        self._use_count[value_id] += 1
        return value_id

    def release(self, value_id: int) -> None:
        """Count one use less. The last release frees the id."""
        self._use_count[value_id] -= 1
        if self._use_count[value_id] == 0:
            value = self.values[value_id]
            assert value is not None
            del self._id_by_value[value]
            self.released.append(value_id)

    def get(self, value: K) -> int:
        """Return the id of `value`, or -1 if it is not in use."""
        return self._id_by_value.get(value, -1)

    def value(self, value_id: int) -> K:
        """Return the value of an id in use."""
        value = self.values[value_id]
        if value is None:
            raise LookupError(f"id {value_id} is not in use")
        return value

    def items(self) -> Iterator[tuple[int, K]]:
        """Yield every id that has a value, with the value.

        Includes released ids, which a snapshot may still contain.
        """
        for value_id, value in enumerate(self.values):
            if value is not None:
                yield value_id, value

    def since(self, cursor: int) -> tuple[int, list[int]]:
        """Return the new cursor and the ids assigned after `cursor` (0 for a new reader)."""
        end = self._log_start + len(self._log)
        if cursor < self._log_start:
            return end, [value_id for value_id, _ in self.items()]
        return end, self._log[cursor - self._log_start :]

    def reuse_released_ids(self) -> None:
        """Make released ids available again. No snapshot may contain them."""
        for value_id in self.released:
            self.values[value_id] = None
        self._free.extend(self.released)
        self.released.clear()

    def _assign(self, value: K) -> int:
        if self._free:
            value_id = self._free.pop()
            self.values[value_id] = value
        else:
            value_id = len(self.values)
            self.values.append(value)
            self._use_count.append(0)
        self._id_by_value[value] = value_id
        self._log.append(value_id)
        if len(self._log) > 4 * len(self.values) + 1024:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half
        return value_id
