"""Where one kind of pod stands on every row: which rows have room for it, and which of them is best.

A `Standing` puts the parts together that plugins have in it (`parts`), in the order of the profile: a row belongs to
the first filter that rejects it, totals are sums over all rows with -1 where the pod does not fit, so the best row is
one `argmax` away. It is kept for pods that come again, and then only follows the rows that changed and the parts that
were asked in full since; for a pod that comes once it is put together and thrown away.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from struct import pack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bayplan.framework.cycle import Cycle
from bayplan.framework.diagnosis import Diagnosis, Reason, Verdicts
from bayplan.framework.parts import FEW_ROWS, NOTHING, EvaluationClock, Part, Weighted, too_many
from bayplan.framework.scoring import Scores, ranked
from bayplan.framework.status import Code
from bayplan.snapshot import BoolVector, IntVector, NodeTable, RowVector, Snapshot

_NOBODY = -1
_REMEMBERED_AMOUNTS = 4096


class RejectionCount(NamedTuple):
    """A reason of one plugin, and how many rows it holds for."""

    plugin: str
    text: str
    nodes: int


class _Addend:
    """What one score plugin adds to the totals."""

    __slots__ = ("changes", "part", "weighted")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.changes = -1  # of the part, when this was computed
        self.weighted: Weighted = NOTHING  # of one that scores alone the part's own vector counts

    @property
    def speaks(self) -> bool:
        """Whether the plugin has something to say about these pods."""
        return self.weighted is not NOTHING if self.part.compares else self.part.scoring

    @property
    def vector(self) -> IntVector | None:
        """Scores by row, weighted where the plugin does not score alone; None where they are the same everywhere."""
        part = self.part
        if not part.scores_alone:
            return self.weighted.vector
        # Pods that come and go may make one speak up that looks at them.
        return None if part.silent and not part.role.looks_at_pods else part.raw

    @property
    def factor(self) -> int:
        return self.part.role.weight if self.part.scores_alone else 1

    def over(self, rows: BoolVector) -> IntVector:
        if self.part.scores_alone:
            return self.part.raw[rows] * self.factor
        return self.weighted.over(rows)


class _Cast(NamedTuple):
    """Who has something to say about these pods."""

    followers: list[Part]  # those who look at the pods of a row
    names: tuple[str, ...]  # of the score plugins
    scores: list[tuple[IntVector | None, int]]  # of each a vector and its factor, or one number for all rows
    simple: bool  # pods that come or go on a row change totals there and nowhere else
    by_amounts: bool  # and nothing but the amounts of the row says how
    moving: list[tuple[int, _Addend]]  # those whose scores may move on all rows at once, with their place in `scores`

    def total(self, row: int) -> int:
        total = 0
        for vector, factor in self.scores:
            if vector is None:
                total += factor
                continue
            total += vector.item(row) * factor
        return total


class Standing:
    """One kind of pod against all rows of one snapshot. `filters` and `scores` are parts in the profile's order."""

    def __init__(
        self,
        snapshot: Snapshot,
        parts: Sequence[Part],
        filters: Sequence[Part],
        scores: Sequence[Part],
        clock: EvaluationClock,
    ) -> None:
        self.snapshot = snapshot
        self._clock = clock
        self._evaluations = 0
        self._parts = parts
        self._filters = filters
        self._scores = [_Addend(part) for part in scores]
        self._watching = [part for part in parts if part.role.watches]
        self._steady = [part for part in parts if not part.role.watches]
        self.feasible: BoolVector = np.zeros(0, dtype=np.bool_)
        self.owner: npt.NDArray[np.int8] = np.zeros(0, dtype=np.int8)  # the first filter that rejects a row
        self.total: IntVector = np.zeros(0, dtype=np.int64)
        self._alone: IntVector | None = None  # the sum of those who score alone; None where that is the total
        self.candidates = 0
        self._layout = -1
        self._touched = self._renewed = 0
        self._versions: list[int] = []
        self._filter_versions: list[int] = []
        self._reasons: tuple[RejectionCount, ...] | None = None  # None: to be counted
        self._best: RowVector | list[int] | None = None  # None: to be looked for; a list once it is changed
        self._top = 0  # the total of the best rows
        self._cast: _Cast | None = None  # None: to be found out
        self._known: Cycle | None = None  # None: to be collected from the parts
        self._table: tuple[BoolVector, NodeTable] | None = None
        self._asked_by_amounts: list[tuple[Part, bool, bool]] = []
        self._by_amounts: dict[bytes, tuple[int, ...]] = {}  # what followers gave to rows that they did not reject
        self._rebuild()

    # keeping up -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Catch up with the snapshot."""
        snapshot = self.snapshot
        if snapshot.layout != self._layout:
            self._rebuild()
            return
        for part in self._watching:
            part.catch_up()
        rows = snapshot.touched.since(self._touched)
        if rows is None or too_many(len(rows), len(snapshot)):
            self._rebuild()
        elif (
            self._asked_in_full()
            or snapshot.renewed.end != self._renewed
            or len(rows) > FEW_ROWS
            or (rows and not self._follow(rows))
        ):
            self._catch_up(sorted(rows))

    def _asked_in_full(self) -> bool:
        """Whether a part has answers that this does not know, on rows that nothing happened to."""
        if self._clock.evaluations == self._evaluations:
            return False
        if [part.version for part in self._parts] != self._versions:
            return True
        self._evaluations = self._clock.evaluations
        return False

    def _follow(self, rows: set[int]) -> bool:
        """Catch up with pods that came or went on a few rows; false where more than these rows is concerned."""
        cast = self._cast or self._find_cast()
        if not cast.simple:
            return False
        end = self.snapshot.touched.end
        key = b""
        if cast.by_amounts and len(rows) == 1:
            (row,) = rows
            key = self.snapshot.nodes.amounts_key(row)
            scores = self._by_amounts.get(key)
            if scores is not None and self.owner[row] == _NOBODY:
                return self._accept(cast, row, scores, end)
        for part in cast.followers:
            part.follow(rows, self._touched, end)
        if self._asked_in_full() or any(part.wild for part in cast.followers):
            return False
        for row in rows:
            if self.owner[row] != _NOBODY:
                return False
            for part in cast.followers:
                if part.rejects and part.codes[row]:
                    return False
            self._set_row(cast, row)
        if key:
            if len(self._by_amounts) >= _REMEMBERED_AMOUNTS:
                self._by_amounts.clear()
            self._by_amounts[key] = tuple(part.raw.item(row) if part.scoring else 0 for part in cast.followers)
        self._touched = end
        self._move(cast)
        return True

    def _accept(self, cast: _Cast, row: int, scores: tuple[int, ...], end: int) -> bool:
        """A row has amounts that were met before, on a row that nobody rejected."""
        for part, score in zip(cast.followers, scores, strict=True):
            part.accept(row, score, self._touched, end)
        if self._asked_in_full():
            return False
        self._set_row(cast, row)
        self._touched = end
        self._move(cast)
        return True

    def _move(self, cast: _Cast) -> None:
        """Ask those again whose scores have moved on rows that nothing happened to."""
        moved = False
        for place, addend in cast.moving:
            if addend.part.scores_moved():
                self._weigh(addend)
                weighted = addend.weighted
                cast.scores[place] = (weighted.vector, 1) if weighted.vector is not None else (None, weighted.flat)
                moved = True
                if weighted is NOTHING:
                    self._cast = None
        if moved:
            (self._add_up if self._alone is None else self._sum)()

    def _set_row(self, cast: _Cast, row: int) -> None:
        """Pods came or went on one row; the best rows are still known, as long as one of them is left."""
        total = cast.total(row)
        before = self.total.item(row)
        if self._alone is not None:
            self._alone[row] += total - before
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

    def _find_cast(self) -> _Cast:
        followers = [part for part in self._parts if part.role.looks_at_pods and (part.filtering or part.scoring)]
        speaking = [addend for addend in self._scores if addend.speaks]
        self._cast = _Cast(
            followers,
            tuple(addend.part.role.name for addend in speaking),
            [(vector, a.factor) if (vector := a.vector) is not None else (None, a.weighted.flat) for a in speaking],
            bool(self._scores) and all(a.part.scores_alone for a in speaking if a.part.role.looks_at_pods),
            all(part.role.sees_amounts for part in followers),
            [(place, addend) for place, addend in enumerate(speaking) if addend.part.role.moves],
        )
        asked = [(part, part.filtering, part.scoring) for part in followers]
        if asked != self._asked_by_amounts:
            self._asked_by_amounts = asked
            self._by_amounts.clear()
        return self._cast

    def _rebuild(self) -> None:
        self._known = None
        for part in self._parts:
            if not part.own:
                part.catch_up()
        self._settle_all()
        for part in self._parts:
            if part.own and part.role.pre_scores and not part.role.scores and self.candidates > 1:
                part.pre_score(self.snapshot.table.narrowed(self.feasible))
        for addend in self._scores:
            self._weigh(addend)
        self._add_up()
        self._mark()

    def _catch_up(self, rows: Sequence[int]) -> None:
        before = self.feasible
        for part in self._steady:
            part.catch_up()
        asked = {id(part) for part, version in zip(self._parts, self._versions, strict=True) if part.version != version}
        if asked:
            self._known = None
        if [part.filter_version for part in self._filters] != self._filter_versions:
            self._settle_all()
        elif rows:
            self._settle_rows(rows)
        changed = self.feasible is not before and not np.array_equal(before, self.feasible)
        if not changed:
            self.feasible = before  # the same object: whatever was found out about these candidates stays
        again = False
        for addend in self._scores:
            part = addend.part
            if part.scores_alone:
                again |= id(part) in asked
            elif (
                changed
                or part.changes != addend.changes
                or (part.compares and part.role.looks_at_pods and rows)
                or (part.role.moves and part.scores_moved())
            ):
                self._weigh(addend)
                again = True
        if again or changed:
            self._add_up()
        else:
            self._add_up_rows(rows)
        self._mark()

    def _mark(self) -> None:
        snapshot = self.snapshot
        self._layout = snapshot.layout
        self._touched, self._renewed = snapshot.touched.end, snapshot.renewed.end
        self._versions = [part.version for part in self._parts]
        self._filter_versions = [part.filter_version for part in self._filters]
        self._evaluations = self._clock.evaluations
        self._best = self._cast = None

    # filters ----------------------------------------------------------------------------------------------------

    def _settle_all(self) -> None:
        count = len(self.snapshot)
        owner = np.full(count, _NOBODY, dtype=np.int8)
        feasible = np.ones(count, dtype=np.bool_)
        for number, part in enumerate(self._filters):
            if part.own:
                part.evaluate(feasible)
            if part.rejects:
                rejected = part.codes != Code.SUCCESS
                rejected &= feasible
                np.copyto(owner, np.int8(number), where=rejected)
                feasible ^= rejected
        for part in self._parts:
            if part.own and not part.role.filters:
                part.evaluate()
        self.owner, self.feasible = owner, feasible
        self.candidates = int(np.count_nonzero(feasible))
        self._reasons = None

    def _settle_rows(self, rows: Sequence[int]) -> None:
        where = np.array(rows, dtype=np.intp)
        owner = np.full(len(rows), _NOBODY, dtype=np.int8)
        for number in range(len(self._filters) - 1, -1, -1):
            part = self._filters[number]
            if part.rejects:
                owner[part.codes[where] != Code.SUCCESS] = number
        fits = owner == _NOBODY
        if not fits.all() or (self.owner[where] != _NOBODY).any():
            self._reasons = None
        self.owner[where] = owner
        if not np.array_equal(fits, self.feasible[where]):
            self.feasible = self.feasible.copy()
            self.feasible[where] = fits
            self.candidates = int(np.count_nonzero(self.feasible))

    # totals -----------------------------------------------------------------------------------------------------

    def _weigh(self, addend: _Addend) -> None:
        part = addend.part
        if not part.scores_alone:
            speaks = self.candidates > part.own and (part.compares or part.scoring)  # one candidate needs no opinion
            addend.weighted = part.weighted(self.feasible, self._candidates_table()) if speaks else NOTHING
        addend.changes = part.changes

    def _candidates_table(self) -> NodeTable:
        """The candidates, as a table of the snapshot of now."""
        if self._table is None or self._table[0] is not self.feasible:
            self._table = (self.feasible, self.snapshot.table.narrowed(self.feasible))
        return self._table[1]

    def _add_up(self) -> None:
        alone: IntVector | None = None
        for addend in self._scores:
            part = addend.part
            if part.scores_alone and part.scoring and not part.silent:
                scores = part.alone(self.feasible)
                alone = scores.copy() if alone is None else np.add(alone, scores, out=alone)
        self._alone = np.zeros(len(self.feasible), dtype=np.int64) if alone is None else alone
        self._sum()

    def _sum(self) -> None:
        """Totals from the sum of those who score alone, which is kept while there are others."""
        assert self._alone is not None
        total, flat = self._alone, 0 if self._scores else 1
        for addend in self._scores:
            if not addend.part.scores_alone:
                vector = addend.weighted.vector
                if vector is None:
                    flat += addend.weighted.flat
                elif total is self._alone:
                    total = total + vector
                else:
                    total += vector
        if total is self._alone:
            total, self._alone = self._alone, None
        if flat:
            total += flat
        if self.candidates < len(total):
            np.copyto(total, -1, where=~self.feasible)
        self.total = total
        self._best = None

    def _add_up_rows(self, rows: Sequence[int]) -> None:
        where = np.array(rows, dtype=np.intp)
        alone = np.zeros(len(rows), dtype=np.int64)
        others = np.full(len(rows), 0 if self._scores else 1, dtype=np.int64)
        for addend in self._scores:
            if not addend.speaks:
                continue
            if addend.part.scores_alone:
                if addend.part.wild:
                    addend.part.alone(self.feasible)
                alone += addend.part.raw[where] * addend.factor
            else:
                others += addend.weighted.flat if (vector := addend.vector) is None else vector[where]
        if self._alone is not None:
            self._alone[where] = alone
        self.total[where] = np.where(self.feasible[where], alone + others, -1)

    # telling ----------------------------------------------------------------------------------------------------

    def lend(self, cycle: Cycle) -> None:
        """Give a pod of this kind what plugins found out about it."""
        known = self._known
        if known is None:
            known = self._known = Cycle(cycle.info, self.snapshot)
            for part in self._parts:
                if not part.own:
                    known.adopt(part.cycle)
        cycle.share(known)

    def scores(self) -> Scores:
        """Totals and their parts for the candidates."""
        feasible = self.feasible
        parts = {addend.part.role.name: addend.over(feasible) for addend in self._scores if addend.speaks}
        return Scores(self.total[feasible], parts)

    def best_rows(self) -> RowVector | list[int]:
        """The rows with the highest total, in order."""
        best = self._best
        if best is None:
            total = self.total
            self._top = total.item(total.argmax())
            best = self._best = (total == self._top).nonzero()[0]
        return best

    def ranking(self, first: int, count: int) -> list[int]:
        """The chosen row, which is one of the best, and the best others."""
        best = self.best_rows()
        if len(best) >= count:
            others = [int(row) for row in best[:count] if row != first]
            return [first, *others[: count - 1]]
        return ranked(self.total, first, min(count, self.candidates))

    @property
    def scoring(self) -> tuple[str, ...]:
        """The score plugins that have something to say."""
        return (self._cast or self._find_cast()).names

    def scores_at(self, rows: list[int]) -> bytes:
        """Totals of these rows, then what each of `scoring` gave to them."""
        item = self.total.item
        numbers = [item(row) for row in rows]
        for vector, factor in (self._cast or self._find_cast()).scores:
            if vector is None:
                numbers += [factor] * len(rows)
                continue
            item = vector.item
            numbers += [item(row) * factor for row in rows]
        return pack(f"{len(numbers)}q", *numbers)

    def rejections(self) -> tuple[RejectionCount, ...]:
        """Who rejects how many rows, and why."""
        if self._reasons is None:
            self._reasons = tuple(self._count_rejections())
        return self._reasons

    def _count_rejections(self) -> Iterator[RejectionCount]:
        for number, part in enumerate(self._filters):
            if not part.rejects:
                continue
            mine = self.owner == number
            for text, mask in part.reasons.items():
                if mask is not None and (nodes := int(np.count_nonzero(mask & mine))):
                    yield RejectionCount(part.role.name, text, nodes)

    def diagnosis(self) -> Diagnosis:
        """The same diagnosis that a full attempt would have made."""
        diagnosis = Diagnosis(self.snapshot.nodes.names)
        verdicts = Verdicts.none_yet(len(self.feasible))
        for number, part in enumerate(self._filters):
            mine = self.owner == number
            if not mine.any():
                continue
            name = part.role.name
            verdicts.codes[mine] = part.codes[mine]
            verdicts.plugins[name] = mine
            for text, mask in part.reasons.items():
                if mask is not None and (held := mask & mine).any():
                    verdicts.reasons.append(Reason(name, text, held))
            diagnosis.unschedulable_plugins.add(name)
            if (part.codes[mine] == Code.PENDING).any():
                diagnosis.pending_plugins.add(name)
        diagnosis.verdicts = verdicts
        return diagnosis
