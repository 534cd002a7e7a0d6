"""The rows with the highest total, updated row by row.

Called by `ClassEvaluation` once for each decision. `TopRows` has one total for each row: a placement changes one of
them, and the best rows stay known as long as one of them is left. `GroupedTopRows` has totals of two terms, the
row-local score and the score of the row's group. A placement then changes one row and the scores of some groups; there
are about a dozen groups. The best rows are those of the best groups, so nothing is computed over all rows. Both classes
return the same rows for the same totals.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from bayplan.framework.runtime.scoring import top_positions
from bayplan.snapshot import IntVector, RowVector

Rows: TypeAlias = "RowVector | array[int]"
"""Rows in order: a vector when computed, an array once it changes. A list scatters its numbers over memory."""

_MAX_MERGED_SETS = 16
"""Number of merged sets of tied groups in the cache. Three zones have seven such sets."""


class TopRows:
    """Totals with one number for each row."""

    __slots__ = ("_best", "_top", "total")

    def __init__(self, total: IntVector) -> None:
        self.total = total
        self._best: Rows | None = None  # None: unknown
        self._top = 0  # total of the best rows

    def set_total(self, row: int, total: int) -> None:
        before = self.total.item(row)
        if total == before:
            return
        self.total[row] = total
        best, top = self._best, self._top
        if best is None:
            return
        if not isinstance(best, array):
            best = self._best = _as_array(best)
        if before == top:
            del best[bisect_left(best, row)]
        if total > top:
            self._best, self._top = array("q", (row,)), total
        elif total == top:
            insort(best, row)
        elif not best:
            self._best = None

    def best_rows(self) -> Rows:
        """Return the rows with the highest total, in order."""
        best = self._best
        if best is None:
            total = self.total
            self._top = total.item(total.argmax())
            best = self._best = (total == self._top).nonzero()[0]
        return best

    def ranking(self, first: int, count: int) -> list[int]:
        """Return a row that is one of the best, and the next best rows."""
        best = self.best_rows()
        if len(best) >= count:
            return _move_to_front(first, best[:count])
        return top_positions(self.total, first, count)


def _as_array(rows: RowVector) -> array[int]:
    return array("q", rows.astype(np.int64, copy=False).tobytes())


def _move_to_front(first: int, rows: Rows) -> list[int]:
    """Return as many rows with this one first. It takes its own place, or that of the last row."""
    result: list[int] = rows.tolist()
    if first in result:
        result.remove(first)
    else:
        result.pop()
    return [first, *result]


class _TopGroup:
    """The best rows of one group, by their row-local scores."""

    __slots__ = ("members", "merged", "rows", "top", "top_count")

    def __init__(self, members: int, top: int, top_count: int, rows: array[int] | None = None) -> None:
        self.members = members  # rows in the group
        self.top = top  # highest row-local score
        self.top_count = top_count  # rows with this score; 0: unknown
        self.rows = rows  # these rows, in order; None: unknown
        self.merged: list[array[int]] = []  # merged lists of tied groups with these rows


class GroupedTopRows:
    """Totals that are the sum of a row-local score and the score of the row's group.

    `of_row` belongs to the plugin that built the groups and changes there. `set_total` reads the row's current group.
    """

    __slots__ = ("_best", "_constant", "_group_of", "_groups", "_merged", "_scores", "_total", "of_row", "row_local")

    def __init__(self, row_local: IntVector, of_row: RowVector, scores: Sequence[int], constant: int) -> None:
        self.row_local = row_local
        self.of_row = of_row
        self._group_of = of_row.copy()
        self._groups = self._group_sizes(len(scores))  # groups with rows
        self._merged: dict[tuple[int, ...], array[int]] = {}  # the best rows of groups that have tied
        self.set_group_scores(scores, constant)

    def _group_sizes(self, size: int) -> dict[int, _TopGroup]:
        of_row = self._group_of
        tops = np.full(size, np.iinfo(np.int64).min)
        np.maximum.at(tops, of_row, self.row_local)
        members = np.bincount(of_row, minlength=size).tolist()
        top_count = np.bincount(of_row[self.row_local == tops[of_row]], minlength=size).tolist()
        counted = zip(members, tops.tolist(), top_count, strict=True)
        return {number: _TopGroup(*each) for number, each in enumerate(counted) if each[0]}

    def set_group_scores(self, scores: Sequence[int], constant: int) -> None:
        """Set the score of each group, and the constant that is added to all rows."""
        self._scores = scores
        self._constant = constant
        self._best: array[int] | None = None
        self._total: IntVector | None = None

    @property
    def total(self) -> IntVector:
        """One number for each row, computed on demand."""
        if self._total is None:
            self._total = np.array(self._scores, dtype=np.int64).take(self._group_of)
            self._total += self.row_local
            self._total += self._constant
        return self._total

    def group_score(self, row: int) -> int:
        return self._scores[self.of_row.item(row)]

    def set_total(self, row: int, row_local: int) -> None:
        """Set the row-local score of one row, which may be in another group now."""
        before, number = self.row_local.item(row), self._group_of.item(row)
        now = self.of_row.item(row)
        if before == row_local and number == now:
            return
        self._best = self._total = None
        self._remove_from_group(number, row, before)
        self.row_local[row] = row_local
        self._group_of[row] = now
        self._add_to_group(now, row, row_local)

    def _remove_from_group(self, number: int, row: int, row_local: int) -> None:
        group = self._groups[number]
        group.members -= 1
        if not group.members:
            del self._groups[number]
            self._invalidate_group(number)
        elif group.top_count and row_local == group.top:
            group.top_count -= 1
            if not group.top_count:
                self._invalidate_group(number)
            elif group.rows is not None:
                del group.rows[bisect_left(group.rows, row)]
                for rows in group.merged:
                    del rows[bisect_left(rows, row)]

    def _add_to_group(self, number: int, row: int, row_local: int) -> None:
        group = self._groups.get(number)
        if group is None:
            self._groups[number] = _TopGroup(1, row_local, 1, array("q", (row,)))
            return
        group.members += 1
        if group.top_count and row_local > group.top:
            group.top, group.top_count, group.rows = row_local, 1, array("q", (row,))
            self._invalidate_group(number)
        elif group.top_count and row_local == group.top:
            group.top_count += 1
            if group.rows is not None:
                insort(group.rows, row)
                for rows in group.merged:
                    insort(rows, row)

    def _invalidate_group(self, number: int) -> None:
        """Drop the merged lists of a group whose best rows changed."""
        merged = self._merged
        for tied in [tied for tied in merged if number in tied]:
            del merged[tied]
        for other, group in self._groups.items():
            group.merged = [rows for tied, rows in merged.items() if other in tied]

    def best_rows(self) -> Rows:
        """Return the rows with the highest total, in order."""
        best = self._best
        if best is None:
            best = self._best = self._find_best()
        return best

    def _find_best(self) -> array[int]:
        found: list[int] = []
        top, scores = 0, self._scores
        for number, group in self._groups.items():
            if not group.top_count:
                self._find_group_top(number, group)
            total = group.top + scores[number]
            if not found or total > top:
                top, found = total, [number]
            elif total == top:
                found.append(number)
        return self._rows(found[0]) if len(found) == 1 else self._merge(tuple(sorted(found)))

    def _merge(self, tied: tuple[int, ...]) -> array[int]:
        """Return the best rows of groups that tie. The same groups tie repeatedly, so the list is cached."""
        rows = self._merged.get(tied)
        if rows is None:
            if len(self._merged) >= _MAX_MERGED_SETS:
                self._merged.clear()
                for group in self._groups.values():
                    group.merged = []
            every = np.sort(np.concatenate([np.frombuffer(self._rows(number), dtype=np.int64) for number in tied]))
            rows = self._merged[tied] = _as_array(every)
            for number in tied:
                self._groups[number].merged.append(rows)
        return rows

    def _find_group_top(self, number: int, group: _TopGroup) -> None:
        rows = (self._group_of == number).nonzero()[0]
        row_local = self.row_local[rows]
        group.top = row_local.item(row_local.argmax())
        group.rows = _as_array(rows[row_local == group.top])
        group.top_count = len(group.rows)

    def _rows(self, number: int) -> array[int]:
        group = self._groups[number]
        if group.rows is None:
            group.rows = _as_array(((self._group_of == number) & (self.row_local == group.top)).nonzero()[0])
        return group.rows

    def ranking(self, first: int, count: int) -> list[int]:
        """Return a row that is one of the best, and the next best rows."""
        best = self.best_rows()
        if len(best) >= count:
            return _move_to_front(first, best[:count])
        return top_positions(self.total, first, count)
