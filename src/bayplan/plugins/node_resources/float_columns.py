"""Derived columns of resource amounts that follow one snapshot.

Amounts are integers. Shares are computed faster from floats, which are exact for small amounts (`FLOAT_EXACT_LIMIT`).
Converting a column costs as much as a division, so `FloatColumns` caches the converted columns. Most pods fit on all
nodes: `MinimumFree` caches the smallest free amount of a resource, which proves this without a scan. Both update only
the changed rows: a few assignments after a placement.
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
"""Called with the changed rows of float columns; None: all rows."""

_MAX_ROWS_IN_PLACE = 64
"""If more rows than this changed, whole columns are converted."""


class SnapshotCursor:
    """Returns the changed rows of one snapshot since the last call."""

    __slots__ = ("_cursor", "_layout", "_snapshot")

    def __init__(self) -> None:
        self._snapshot: weakref.ref[Snapshot] | None = None
        self._layout = -1
        self._cursor = 0

    def changed_rows(self, snapshot: Snapshot) -> Collection[int] | None:
        """Return the changed rows; None for all rows, or for so many that a full update is not slower."""
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
    """The smallest free amount of a resource on any row."""

    def __init__(self) -> None:
        self._cursor = SnapshotCursor()
        self._free: dict[int, IntVector] = {}
        self._minimum: dict[int, int] = {}

    def follow(self, snapshot: Snapshot) -> None:
        columns = snapshot.nodes
        rows = self._cursor.changed_rows(snapshot)
        if rows is None:
            self._free.clear()
            self._minimum.clear()
            return
        for number, free_column in self._free.items():
            for row in rows:
                free = _free_amount(columns, number, row)
                minimum = self._minimum.get(number)
                if minimum is not None and free <= minimum:
                    self._minimum[number] = free
                elif free_column.item(row) == minimum:  # this row may have been the minimum
                    del self._minimum[number]
                free_column[row] = free

    def of(self, columns: NodeColumns, number: int) -> int:
        """Return the minimum of the resource with this number, or of free pod slots."""
        minimum = self._minimum.get(number)
        if minimum is None:
            free = self._free.get(number)
            if free is None:
                count = columns.count
                requested = columns.pod_count if number == PODS else columns.requested[number]
                free = self._free[number] = columns.allocatable[number, :count] - requested[:count]
            minimum = self._minimum[number] = int(free.min())
        return minimum


def _free_amount(columns: NodeColumns, number: int, row: int) -> int:
    requested = columns.pod_count.item(row) if number == PODS else columns.requested.item(number, row)
    return columns.allocatable.item(number, row) - requested


class FloatColumns:
    """Allocatable, requested and free amounts of some resources: `allocatable[i]`, `requested[i]` and `free[i]`, by
    row.

    `changed(columns, rows)` is called for owners of further columns; None: all rows.
    """

    def __init__(
        self, numbers: Sequence[int], use_default_requests: Sequence[bool], changed: RowsChanged | None = None
    ) -> None:
        self._sources = tuple(zip(numbers, use_default_requests, strict=True))
        self._on_change = changed
        self._cursor = SnapshotCursor()
        self._usable = False
        self.allocatable: FloatMatrix = np.zeros((0, 0))
        self.requested: FloatMatrix = np.zeros((0, 0))
        self.free: FloatMatrix = np.zeros((0, 0))
        self.buffer: FloatMatrix = np.zeros((0, 0))  # scratch space of the same shape for computations
        self._minimum: list[float | None] = []  # the smallest free amount of each resource; None: unknown

    def fits_everywhere(self, demand: Sequence[int]) -> bool:
        for index, amount in enumerate(demand):
            minimum = self._minimum[index]
            if minimum is None:
                minimum = self._minimum[index] = self.free[index].min().item() if self.free.shape[1] else 0.0
            if amount > minimum:
                return False
        return True

    def follow(self, snapshot: Snapshot) -> bool:
        """Update the columns.

        Returns False if floats cannot be used: an amount is too large, or a row lacks a resource.
        """
        columns = snapshot.nodes
        if not columns.all_small:
            return False
        rows = self._cursor.changed_rows(snapshot)
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
            [
                (columns.nonzero if use_default_request else columns.requested)[number, :count]
                for number, use_default_request in self._sources
            ],
            dtype=np.float64,
        )
        self.free = self.allocatable - self.requested
        self.buffer = np.empty_like(self.free)
        self._minimum = [None] * len(self._sources)
        self._usable = bool(self.allocatable.all())
        if self._on_change is not None and self._usable:
            self._on_change(columns, None)

    def _copy_rows(self, columns: NodeColumns, rows: Collection[int]) -> None:
        for row in rows:
            for index, (number, use_default_request) in enumerate(self._sources):
                allocatable = columns.allocatable.item(number, row)
                if not allocatable or not self._usable:  # whether another row still lacks it needs a full update
                    self._cursor.start_over()
                    self._usable = False
                    return
                requested = (columns.nonzero if use_default_request else columns.requested).item(number, row)
                self.allocatable[index, row] = allocatable
                self.requested[index, row] = requested
                self._set_free(index, row, float(allocatable - requested))
        if self._on_change is not None:
            self._on_change(columns, rows)

    def _set_free(self, index: int, row: int, free: float) -> None:
        minimum = self._minimum[index]
        if minimum is not None and free <= minimum:
            self._minimum[index] = free
        elif self.free.item(index, row) == minimum:  # this row may have been the minimum
            self._minimum[index] = None
        self.free[index, row] = free
