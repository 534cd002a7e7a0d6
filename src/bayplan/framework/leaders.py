"""Which rows have the highest total, kept up to date row by row?

Asked by `Standing` once a decision. `Leaders` has one total a row: a placement changes one of them, and the best rows
are still known as long as one of them is left. `GroupLeaders` is for totals of two parts, what a row has alone and what
its whole group of rows has: a placement then changes one row and the scores of some groups, of which there are a dozen.
The best rows are those of the best groups, so nothing is computed over all rows. Both say the same of the same totals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import overload

import numpy as np

from bayplan.framework.scoring import ranked
from bayplan.snapshot import IntVector, RowVector

Rows = RowVector | Sequence[int]
"""Rows in order."""


class Leaders:
    """Totals as one number a row."""

    __slots__ = ("_best", "_top", "total")

    def __init__(self, total: IntVector) -> None:
        self.total = total
        self._best: RowVector | list[int] | None = None  # None: to be looked for; a list once it is changed
        self._top = 0  # the total of the best rows

    def total_at(self, row: int) -> int:
        return self.total.item(row)

    def put(self, row: int, total: int) -> None:
        """One row's total is another."""
        before = self.total.item(row)
        if total == before:
            return
        self.total[row] = total
        best, top = self._best, self._top
        if best is None:
            return
        if not isinstance(best, list):
            best = self._best = best.tolist()
        if before == top:
            del best[bisect_left(best, row)]
        if total > top:
            self._best, self._top = [row], total
        elif total == top:
            insort(best, row)
        elif not best:
            self._best = None

    def best_rows(self) -> Rows:
        """The rows with the highest total, in order."""
        best = self._best
        if best is None:
            total = self.total
            self._top = total.item(total.argmax())
            best = self._best = (total == self._top).nonzero()[0]
        return best

    def ranking(self, first: int, count: int) -> list[int]:
        """A row that is one of the best, and the best others."""
        best = self.best_rows()
        if len(best) >= count:
            return _headed(first, best[:count], count)
        return ranked(self.total, first, count)


def _headed(first: int, rows: Rows, count: int) -> list[int]:
    others = [int(row) for row in rows if row != first]
    return [first, *others[: count - 1]]


class _Group:
    """The best rows of one group, by what they have alone."""

    __slots__ = ("held", "members", "rows", "top")

    def __init__(self, members: int, top: int, held: int, rows: list[int] | None = None) -> None:
        self.members = members  # rows in the group
        self.top = top  # the most that one of them has
        self.held = held  # rows that have the most; 0: to be looked for
        self.rows = rows  # these rows, in order; None: to be looked for


class GroupLeaders:
    """Totals that are the sum of what a row has `alone` and of what its group has.

    `of_row` belongs to whoever made the groups: it moves there, and `put` reads for the row where it is now.
    """

    __slots__ = ("_best", "_flat", "_group_of", "_groups", "_scores", "_total", "alone", "of_row")

    def __init__(self, alone: IntVector, of_row: RowVector, scores: Sequence[int], flat: int) -> None:
        self.alone = alone
        self.of_row = of_row
        self._group_of = of_row.copy()
        self._groups = self._counted(len(scores))  # those that have members
        self.weigh(scores, flat)

    def _counted(self, size: int) -> dict[int, _Group]:
        of_row = self._group_of
        tops = np.full(size, np.iinfo(np.int64).min)
        np.maximum.at(tops, of_row, self.alone)
        members = np.bincount(of_row, minlength=size).tolist()
        held = np.bincount(of_row[self.alone == tops[of_row]], minlength=size).tolist()
        counted = zip(members, tops.tolist(), held, strict=True)
        return {number: _Group(*each) for number, each in enumerate(counted) if each[0]}

    def weigh(self, scores: Sequence[int], flat: int) -> None:
        """The score of each group, and what is added to all rows alike."""
        self._scores = scores
        self._flat = flat
        self._best: Rows | None = None
        self._total: IntVector | None = None

    def total_at(self, row: int) -> int:
        return self.alone.item(row) + self._scores[self._group_of.item(row)] + self._flat

    @property
    def total(self) -> IntVector:
        """One number a row: for whoever wants all of them."""
        if self._total is None:
            self._total = np.array(self._scores, dtype=np.int64).take(self._group_of)
            self._total += self.alone
            self._total += self._flat
        return self._total

    def put(self, row: int, alone: int) -> None:
        """One row has this alone, and may be in another group."""
        before, number = self.alone.item(row), self._group_of.item(row)
        now = self.of_row.item(row)
        if before == alone and number == now:
            return
        self._best = self._total = None
        self._leave(number, row, before)
        self.alone[row] = alone
        self._group_of[row] = now
        self._enter(now, row, alone)

    def _leave(self, number: int, row: int, alone: int) -> None:
        group = self._groups[number]
        group.members -= 1
        if not group.members:
            del self._groups[number]
        elif group.held and alone == group.top:
            group.held -= 1
            if group.rows is not None:
                del group.rows[bisect_left(group.rows, row)]

    def _enter(self, number: int, row: int, alone: int) -> None:
        group = self._groups.get(number)
        if group is None:
            self._groups[number] = _Group(1, alone, 1, [row])
            return
        group.members += 1
        if group.held and alone > group.top:
            group.top, group.held, group.rows = alone, 1, [row]
        elif group.held and alone == group.top:
            group.held += 1
            if group.rows is not None:
                insort(group.rows, row)

    def best_rows(self) -> Rows:
        """The rows with the highest total, in order."""
        best = self._best
        if best is None:
            best = self._best = self._find_best()
        return best

    def _find_best(self) -> Rows:
        found: list[int] = []
        top, scores = 0, self._scores
        for number, group in self._groups.items():
            if not group.held:
                self._look(number, group)
            total = group.top + scores[number]
            if not found or total > top:
                top, found = total, [number]
            elif total == top:
                found.append(number)
        tied = [self._rows(number) for number in found]
        return tied[0] if len(tied) == 1 else TiedRows(tied)

    def _look(self, number: int, group: _Group) -> None:
        rows = (self._group_of == number).nonzero()[0]
        alone = self.alone[rows]
        group.top = alone.item(alone.argmax())
        group.rows = rows[alone == group.top].tolist()
        group.held = len(group.rows)

    def _rows(self, number: int) -> list[int]:
        group = self._groups[number]
        if group.rows is None:
            group.rows = ((self._group_of == number) & (self.alone == group.top)).nonzero()[0].tolist()
        return group.rows

    def ranking(self, first: int, count: int) -> list[int]:
        """A row that is one of the best, and the best others."""
        best = self.best_rows()
        if len(best) >= count:
            return _headed(first, best[:count], count)
        return ranked(self.total, first, count)


class TiedRows(Sequence[int]):
    """Several lists of rows, each in order, as one list in order that is not made."""

    __slots__ = ("_length", "_lists")

    def __init__(self, lists: Sequence[list[int]]) -> None:
        self._lists = lists
        self._length = sum(map(len, lists))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return merge(*self._lists)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._length)
            return list(islice(self, start, stop, step))
        if not -self._length <= place < self._length:
            raise IndexError(place)
        return self._row_at(place % self._length)

    def _row_at(self, place: int) -> int:
        """The first row up to which there are more rows than `place`: guessed, as if they were evenly spread."""
        lists, halve = self._lists, False
        low, high = min([rows[0] for rows in lists]), max([rows[-1] for rows in lists])
        below, until = 0, self._length  # how many come before `low`, and up to `high`
        while low < high:
            share = (high - low) // 2 if halve else (high - low) * (place - below) // (until - below)
            halve = not halve  # whatever the rows are, every second guess halves what is left
            guess, count = low + share, 0
            for rows in lists:
                count += bisect_right(rows, guess)
            if count > place:
                high, until = guess, count
            else:
                low, below = guess + 1, count
        return low
