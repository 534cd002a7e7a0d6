"""Lazy iteration over rows, for searches that usually end early: nothing is sorted or listed before it is needed.

After `ROWS_BEFORE_NARROWING` rows without success, a search narrows down the remaining rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bayplan.batch.model.nodes import FloatVector
from bayplan.snapshot import BoolVector

ROWS_BEFORE_NARROWING = 64
_UNSORTED = 8  # finding this many maxima one by one is cheaper than sorting all rows


def rows_in_order(among: BoolVector) -> Iterator[int]:
    first = int(among.argmax()) if len(among) else 0
    if among[first : first + 1].any():
        yield first
        yield from (np.flatnonzero(among[first + 1 :]) + (first + 1)).tolist()


def first_rows(among: BoolVector) -> BoolVector:
    """The first `ROWS_BEFORE_NARROWING` of the rows; these are tried before the rest is narrowed down."""
    rows = np.flatnonzero(among)
    if len(rows) <= ROWS_BEFORE_NARROWING:
        return among
    found: BoolVector = np.zeros(len(among), dtype=np.bool_)
    found[rows[:ROWS_BEFORE_NARROWING]] = True
    return found


def rows_by_score(among: BoolVector, totals: FloatVector, narrowed: Callable[[], BoolVector]) -> Iterator[int]:
    """Rows by score, highest first, ties in row order. Rows whose score is NaN are left out."""
    remaining = among & ~np.isnan(totals)
    scores = np.where(remaining, totals, -np.inf)
    for _ in range(_UNSORTED if len(scores) else 0):
        row = int(scores.argmax())
        if scores[row] == -np.inf:
            break
        yield row
        scores[row], remaining[row] = -np.inf, False
    rows = np.flatnonzero(remaining)
    ordered = rows[np.argsort(-totals[rows], kind="stable")]
    yield from ordered[:ROWS_BEFORE_NARROWING].tolist()
    rest = ordered[ROWS_BEFORE_NARROWING:]
    if len(rest):
        yield from rest[narrowed()[rest]].tolist()
