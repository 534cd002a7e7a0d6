"""Rows one after another, for searches that mostly end early: nothing is sorted or listed before somebody asks for it.

After `ROWS_BEFORE_NARROWING` rows in vain a search pays for narrowing the others down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bayplan.batch.model.nodes import FloatVector
from bayplan.snapshot import BoolVector

ROWS_BEFORE_NARROWING = 64
_UNSORTED = 8  # so many are cheaper to find one by one than by sorting all


def rows_in_order(among: BoolVector) -> Iterator[int]:
    """Rows in their own order."""
    first = int(among.argmax()) if len(among) else 0
    if among[first : first + 1].any():
        yield first
        yield from (np.flatnonzero(among[first + 1 :]) + (first + 1)).tolist()


def first_rows(among: BoolVector) -> BoolVector:
    """As many of the rows as are looked at before the others are narrowed down."""
    rows = np.flatnonzero(among)
    if len(rows) <= ROWS_BEFORE_NARROWING:
        return among
    found: BoolVector = np.zeros(len(among), dtype=np.bool_)
    found[rows[:ROWS_BEFORE_NARROWING]] = True
    return found


def rows_by_score(among: BoolVector, totals: FloatVector, narrowed: Callable[[], BoolVector]) -> Iterator[int]:
    """Rows by their scores, equal ones in their own order; those whose score is no number are left out."""
    waiting = among & ~np.isnan(totals)
    left = np.where(waiting, totals, -np.inf)
    for _ in range(_UNSORTED if len(left) else 0):
        row = int(left.argmax())
        if left[row] == -np.inf:
            break
        yield row
        left[row], waiting[row] = -np.inf, False
    rows = np.flatnonzero(waiting)
    ordered = rows[np.argsort(-totals[rows], kind="stable")]
    yield from ordered[:ROWS_BEFORE_NARROWING].tolist()
    rest = ordered[ROWS_BEFORE_NARROWING:]
    if len(rest):
        yield from rest[narrowed()[rest]].tolist()
