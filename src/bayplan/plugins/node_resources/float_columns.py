"""What is computed of amounts on all rows again and again, kept at hand and following one snapshot.

Columns of amounts are whole numbers. Shares of them are computed faster from floats, which are exact as long as every
amount is small (`SMALL`), and converting a column costs as much as dividing it: `FloatColumns` has them converted. Most
pods find room everywhere: `MinimumFree` knows how little of a resource any row has left, which says so without looking.
Both bring up to date the rows that changed: a few assignments after a placement.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.snapshot import IntVector, NodeColumns, Snapshot
from bayplan.snapshot.intern_tables import PODS

FloatVector = npt.NDArray[np.float64]
FloatMatrix = npt.NDArray[np.float64]

RowsChanged = Callable[[NodeColumns, Collection[int] | None], None]
"""Told of rows of a mirror that changed; None: of all."""

_MAX_ROWS_IN_PLACE = 64
"""When more rows than this changed, whole columns are converted."""


class SnapshotCursor:
    """Which rows of one snapshot have changed since it was last asked."""

    __slots__ = ("_cursor", "_layout", "_snapshot")

    def __init__(self) -> None:
        self._snapshot: weakref.ref[Snapshot] | None = None
        self._layout = -1
        self._cursor = 0

    def changed(self, snapshot: Snapshot) -> Collection[int] | None:
        """None: all of them, or so many that looking at all of them is as well."""
        rows: Collection[int] | None = None
        touched = snapshot.touched
        if self._layout == snapshot.layout and self._snapshot is not None and self._snapshot() is snapshot:
            row = touched.single_since(self._cursor)
            rows = (row,) if row >= 0 else touched.since(self._cursor)
        else:
            self._snapshot, self._layout = weakref.ref(snapshot), snapshot.layout
        self._cursor = touched.end
        return None if rows is None or len(rows) > _MAX_ROWS_IN_PLACE else rows

    def start_over(self) -> None:
        self._layout = -1


class MinimumFree:
    """How little of a resource the fullest row has left."""

    def __init__(self) -> None:
        self._follower = SnapshotCursor()
        self._free: dict[int, IntVector] = {}
        self._least: dict[int, int] = {}

    def follow(self, snapshot: Snapshot) -> None:
        columns = snapshot.nodes
        rows = self._follower.changed(snapshot)
        if rows is None:
            self._free.clear()
            self._least.clear()
            return
        for number, free in self._free.items():
            for row in rows:
                left = _free_amount(columns, number, row)
                known = self._least.get(number)
                if known is not None and left <= known:
                    self._least[number] = left
                elif free.item(row) == known:  # it was the fullest, perhaps
                    del self._least[number]
                free[row] = left

    def of(self, columns: NodeColumns, number: int) -> int:
        """Of the resource with this number, or of places for pods."""
        least = self._least.get(number)
        if least is None:
            free = self._free.get(number)
            if free is None:
                count = columns.count
                taken = columns.pod_count if number == PODS else columns.requested[number]
                free = self._free[number] = columns.allocatable[number, :count] - taken[:count]
            least = self._least[number] = int(free.min())
        return least


def _free_amount(columns: NodeColumns, number: int, row: int) -> int:
    taken = columns.pod_count.item(row) if number == PODS else columns.requested.item(number, row)
    return columns.allocatable.item(number, row) - taken


class FloatColumns:
    """What rows have of some resources, what is taken of it and left: `allocatable[i]`, `requested[i]`, `free[i]`, one
    entry a row.

    `changed(columns, rows)` tells whoever keeps something of their own for each row; None: all rows.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        guessed: Sequence[bool],
        changed: RowsChanged | None = None,
    ) -> None:
        self._sources = tuple(zip(numbers, guessed, strict=True))
        self._changed = changed
        self._follower = SnapshotCursor()
        self._usable = False
        self.allocatable: FloatMatrix = np.zeros((0, 0))
        self.requested: FloatMatrix = np.zeros((0, 0))
        self.free: FloatMatrix = np.zeros((0, 0))
        self.desk: FloatMatrix = np.zeros((0, 0))  # as large as these, for whoever computes: nothing stays on it
        self._least: list[float | None] = []  # what the fullest row has left; None: to be looked for

    def fits_everywhere(self, demand: Sequence[int]) -> bool:
        """Whether every row has so much left of everything."""
        for place, amount in enumerate(demand):
            least = self._least[place]
            if least is None:
                least = self._least[place] = self.free[place].min().item() if self.free.shape[1] else 0.0
            if amount > least:
                return False
        return True

    def follow(self, snapshot: Snapshot) -> bool:
        """Catch up; false where floats would not do: an amount is too large, or a row lacks a resource."""
        columns = snapshot.nodes
        if not columns.all_small:
            return False
        rows = self._follower.changed(snapshot)
        if rows is None:
            self._copy_all(columns)
        elif rows:
            self._copy_rows(columns, rows)
        return self._usable

    def _copy_all(self, columns: NodeColumns) -> None:
        count = columns.count
        self.allocatable = np.array(
            [columns.allocatable[number, :count] for number, _ in self._sources], dtype=np.float64
        )
        self.requested = np.array(
            [(columns.nonzero if guess else columns.requested)[number, :count] for number, guess in self._sources],
            dtype=np.float64,
        )
        self.free = self.allocatable - self.requested
        self.desk = np.empty_like(self.free)
        self._least = [None] * len(self._sources)
        self._usable = bool(self.allocatable.all())
        if self._changed is not None and self._usable:
            self._changed(columns, None)

    def _copy_rows(self, columns: NodeColumns, rows: Collection[int]) -> None:
        for row in rows:
            for place, (number, guess) in enumerate(self._sources):
                has = columns.allocatable.item(number, row)
                if not has or not self._usable:  # whether others still lack it has to be looked at as a whole
                    self._follower.start_over()
                    self._usable = False
                    return
                taken = (columns.nonzero if guess else columns.requested).item(number, row)
                self.allocatable[place, row] = has
                self.requested[place, row] = taken
                self._set_left(place, row, float(has - taken))
        if self._changed is not None:
            self._changed(columns, rows)

    def _set_left(self, place: int, row: int, left: float) -> None:
        least = self._least[place]
        if least is not None and left <= least:
            self._least[place] = left
        elif self.free.item(place, row) == least:  # it was the fullest, perhaps
            self._least[place] = None
        self.free[place, row] = left
