"""Rows one after another, for searches that mostly end early: nothing is sorted or listed before somebody asks for it.

After `PATIENCE` rows in vain a search pays for narrowing the others down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bayplan.batch.model.nodes import FloatVector
from bayplan.snapshot import BoolVector

PATIENCE = 64
_UNSORTED = 8  # so many are cheaper to find one by one than by sorting all


def one_by_one(among: BoolVector) -> Iterator[int]:
    """Rows in their own order."""
    first = int(among.argmax()) if len(among) else 0
    if among[first : first + 1].any():
        yield first
        yield from (np.flatnonzero(among[first + 1 :]) + (first + 1)).tolist()


def first_rows(among: BoolVector) -> BoolVector:
    """As many of the rows as are looked at before the others are narrowed down."""
    rows = np.flatnonzero(among)
    if len(rows) <= PATIENCE:
        return among
    found: BoolVector = np.zeros(len(among), dtype=np.bool_)
    found[rows[:PATIENCE]] = True
    return found


def best_first(among: BoolVector, totals: FloatVector, narrowed: Callable[[], BoolVector]) -> Iterator[int]:
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
    yield from ordered[:PATIENCE].tolist()
    rest = ordered[PATIENCE:]
    if len(rest):
        yield from rest[narrowed()[rest]].tolist()
