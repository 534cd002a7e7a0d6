"""Amounts of all rows as floats, following one snapshot: what scoring of resources divides, ready to be divided.

Columns of amounts are whole numbers. Shares of them are computed faster from floats, which are exact as long as every
amount is small (`SMALL`), and converting a column costs as much as dividing it. So whoever scores resources keeps a
mirror and brings the rows up to date that changed: a few assignments after a placement.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.snapshot import NodeColumns, Snapshot

FloatVector = npt.NDArray[np.float64]
FloatMatrix = npt.NDArray[np.float64]

_WORTH_COPYING = 64
"""When more rows than this changed, whole columns are converted."""


class AmountMirror:
    """What rows have of some resources and what is taken of it: `has[i]`, `taken[i]`, one entry a row.

    `changed(columns, rows)` tells whoever keeps something of their own for each row; None: all rows.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        guessed: Sequence[bool],
        changed: Callable[[NodeColumns, list[int] | None], None] | None = None,
    ) -> None:
        self._sources = tuple(zip(numbers, guessed, strict=True))
        self._changed = changed
        self._snapshot: weakref.ref[Snapshot] | None = None
        self._layout = -1
        self._cursor = 0
        self._usable = False
        self.has: FloatMatrix = np.zeros((0, 0))
        self.taken: FloatMatrix = np.zeros((0, 0))

    def follow(self, snapshot: Snapshot) -> bool:
        """Catch up; false where floats would not do: an amount is too large, or a row lacks a resource."""
        columns = snapshot.nodes
        if not columns.all_small:
            return False
        rows = None
        if self._layout == snapshot.layout and self._snapshot is not None and self._snapshot() is snapshot:
            rows = snapshot.touched.since(self._cursor)
        if rows is None or len(rows) > _WORTH_COPYING:
            self._copy_all(snapshot)
        elif rows:
            self._copy_rows(columns, list(rows))
        self._cursor = snapshot.touched.end
        return self._usable

    def _copy_all(self, snapshot: Snapshot) -> None:
        columns = snapshot.nodes
        count = columns.count
        self._snapshot, self._layout = weakref.ref(snapshot), snapshot.layout
        self.has = np.array([columns.allocatable[number, :count] for number, _ in self._sources], dtype=np.float64)
        self.taken = np.array(
            [(columns.nonzero if guess else columns.requested)[number, :count] for number, guess in self._sources],
            dtype=np.float64,
        )
        self._usable = bool(self.has.all())
        if self._changed is not None and self._usable:
            self._changed(columns, None)

    def _copy_rows(self, columns: NodeColumns, rows: list[int]) -> None:
        for row in rows:
            for place, (number, guess) in enumerate(self._sources):
                has = columns.allocatable.item(number, row)
                if not has or not self._usable:  # whether others still lack it has to be looked at as a whole
                    self._layout = -1
                    self._usable = False
                    return
                self.has[place, row] = has
                self.taken[place, row] = (columns.nonzero if guess else columns.requested).item(number, row)
        if self._changed is not None:
            self._changed(columns, rows)
