"""Where one kind of pod stands on every row: which rows have room for it, and which of them is best.

A `Standing` puts the parts together that plugins have in it (`parts`), in the order of the profile: a row belongs to
the first filter that rejects it, totals are sums over all rows with -1 where the pod does not fit, so the best row is
one `argmax` away. It is kept for pods that come again, and then only follows the rows that changed and the parts that
were asked in full since; for a pod that comes once it is put together and thrown away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import Code
from bayplan.framework.equivalence.plugin_evaluation import (
    FEW_ROWS,
    EvaluationClock,
    Part,
    too_many,
)
from bayplan.framework.equivalence.rejections import (
    OwnerVector,
    RejectionCount,
    counted_rejections,
    diagnosed,
)
from bayplan.framework.equivalence.score_terms import Addend, Cast, Spoken
from bayplan.framework.equivalence.top_rows import GroupLeaders, Leaders, Rows
from bayplan.framework.equivalence.weighted_scores import NOTHING, GroupScores
from bayplan.framework.runtime.scoring import Scores
from bayplan.snapshot import BoolVector, IntVector, NodeTable, Snapshot

_NOBODY = -1
_REMEMBERED_AMOUNTS = 4096
_FEW_CANDIDATES = 2
_WORTH_GROUPING = 2
"""Scores that moved so often in a row, by groups, are expected to go on like that."""


class Standing:
    """One kind of pod against all rows of one snapshot. `filters` and `scores` are parts in the profile's order."""

    def __init__(
        self,
        snapshot: Snapshot,
        parts: list[Part],
        filters: list[Part],
        scores: list[Part],
        clock: EvaluationClock,
        *,
        once: bool = False,
    ) -> None:
        self.snapshot = snapshot
        self.was_known = False  # before the pod that asks now
        self._once = once  # nobody will ask it to keep up
        self._clock = clock
        self._evaluations = 0
        self._parts = parts
        self._filters = filters
        self._scores = [Addend(part) for part in scores]
        self._watching: list[Part] | None = None  # None: it was never asked to keep up
        self._steady: list[Part] = []
        self.feasible: BoolVector = np.zeros(0, dtype=np.bool_)
        self.owner: OwnerVector = np.zeros(0, dtype=np.int8)
        self._leaders: Leaders | GroupLeaders = Leaders(np.zeros(0, dtype=np.int64))
        self._alone: IntVector | None = None  # the sum of those who score alone; None where all others are `flat`
        self._flat = 0  # the sum of those who add the same to all rows
        self._shifts = 0  # how often scores moved since everything was put together
        self.candidates = 0
        self._layout = -1
        self._touched = self._renewed = 0
        self._versions: list[int] = []
        self._filter_versions: list[int] = []
        self._reasons: tuple[RejectionCount, ...] | None = None  # None: to be counted
        self._told: dict[int, tuple[int, bytes]] = {}  # what `scores_at` said of rows, and what groups gave them then
        self._cast: Cast | None = None  # None: to be found out
        self._spoken: Spoken | None = None  # the same
        self._known: Cycle | None = None  # None: to be collected from the parts
        self._table: tuple[BoolVector, NodeTable] | None = None
        self._asked_by_amounts: list[tuple[Part, bool, bool]] = []
        self._by_amounts: dict[bytes, tuple[int, ...]] = {}  # what followers gave to rows that they did not reject
        self._rebuild()

    def part(self, number: int) -> Part:
        """What one plugin of the profile says, by the plugin's number there."""
        return self._parts[number]

    # keeping up -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Catch up with the snapshot."""
        snapshot, self.was_known = self.snapshot, True
        if snapshot.layout != self._layout:
            self._rebuild()
            return
        if self._watching is None:
            self._watching = [part for part in self._parts if part.role.watches]
            self._steady = [part for part in self._parts if not part.role.watches]
        for part in self._watching:
            part.catch_up()
        row = snapshot.touched.single_since(self._touched)
        rows: Collection[int] | None = (row,) if row >= 0 else snapshot.touched.since(self._touched)
        if rows is None or (len(rows) > FEW_ROWS and too_many(len(rows), len(snapshot))):
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

    def _follow(self, rows: Collection[int]) -> bool:
        """Catch up with pods that came or went on a few rows; false where more has to be looked at."""
        cast = self._cast or self._find_cast()
        if not cast.simple:
            return False
        end = self.snapshot.touched.end
        for part in cast.by_pods:
            part.follow(rows, self._touched, end)
        if len(rows) > 1 or not self._recall(cast, rows, end):
            for part in cast.by_amounts:
                part.follow(rows, self._touched, end)
            self._remember(cast, rows)
        for part in cast.by_amounts:
            if part.wild:
                return False
        if self._asked_in_full() or not self._settle(cast, rows):
            return False
        self._touched = end
        return True

    def _recall(self, cast: Cast, rows: Collection[int], end: int) -> bool:
        """Amounts that were met before, on a row that nobody rejected, get the scores that were given then."""
        (row,) = rows
        scores = self._by_amounts.get(self.snapshot.nodes.amounts_key(row))
        if scores is None:
            return False
        for part, score in zip(cast.by_amounts, scores, strict=True):
            part.accept(row, score, self._touched, end)
        return True

    def _remember(self, cast: Cast, rows: Collection[int]) -> None:
        for row in rows:
            if any(part.wild or (part.rejects and part.codes[row]) for part in cast.by_amounts):
                continue
            if len(self._by_amounts) >= _REMEMBERED_AMOUNTS:
                self._by_amounts.clear()
            key = self.snapshot.nodes.amounts_key(row)
            self._by_amounts[key] = tuple(part.raw.item(row) if part.scoring else 0 for part in cast.by_amounts)

    def _settle(self, cast: Cast, rows: Collection[int]) -> bool:
        """What followers say of rows where the pod did fit; false where it did not, or nearly nothing is left: nothing
        has changed then."""
        candidates, leaders = self.feasible, self._leaders
        verdicts = []
        rejected = 0
        for row in rows:
            if self.owner.item(row) != _NOBODY:
                return False
            rejecting = self._rejecting(cast, row)
            rejected += rejecting is not None
            verdicts.append((row, rejecting))
        if rejected and (
            self.candidates - rejected < _FEW_CANDIDATES or cast.waiting or isinstance(leaders, GroupLeaders)
        ):
            return False
        for row, rejecting in verdicts:
            self._told.pop(row, None)
            if rejecting is not None:
                self._reject_row(cast, row, rejecting)
            elif self._alone is None:
                leaders.put(row, cast.alone_at(row) + self._flat)
            elif isinstance(leaders, Leaders):
                self._alone[row] = cast.alone_at(row)
                leaders.put(row, self._speaking().total_at(row))
        if cast.shifting:
            moved = self._shift(cast, changed=self.feasible is not candidates)
            if isinstance(leaders, GroupLeaders):
                self._settle_groups(cast, leaders, rows, moved=moved)
            elif moved:
                self._weigh_anew(cast)
        return True

    @staticmethod
    def _rejecting(cast: Cast, row: int) -> list[Part] | None:
        """Who of the followers rejects a row."""
        for part in cast.followers:
            if part.rejects and part.codes.item(row):
                return [part for part in cast.followers if part.rejects and part.codes.item(row)]
        return None

    def _reject_row(self, cast: Cast, row: int, rejecting: list[Part]) -> None:
        self.owner[row] = min(map(self._filters.index, rejecting))
        self.feasible = self.feasible.copy()  # whoever holds the old one holds the old candidates
        self.feasible[row] = False
        self.candidates -= 1
        self._reasons = None
        if self._alone is not None:
            self._alone[row] = cast.alone_at(row)
        self._leaders.put(row, -1)

    def _shift(self, cast: Cast, *, changed: bool) -> bool:
        """Weigh again what has moved on rows that nothing happened to, or is told of other candidates now."""
        moved, spoken = False, self._speaking()
        for place, addend in cast.shifting:
            if not changed and not addend.has_moved():
                continue
            before = addend.weighted
            if changed or not self._weigh_again(addend):
                self._weigh(addend)
            if addend.weighted is not before:
                moved = True
                spoken.scores[place] = addend.given
                if before.groups is None or addend.weighted.groups is None:  # `scores_at` looks at groups by itself
                    self._told.clear()
            if not addend.speaks:
                self._cast = self._spoken = None
        return moved

    def _weigh_anew(self, cast: Cast) -> None:
        """Scores moved on rows that nothing happened to."""
        self._shifts += 1
        self._told.clear()
        if self._alone is None:
            self._add_up()
            return
        grouped = self._grouped(cast) if self._shifts >= _WORTH_GROUPING else None
        if grouped is None:
            self._sum()
            return
        groups, flat = grouped
        self._leaders = GroupLeaders(self._alone, groups.of_row, groups.scores, flat)

    def _settle_groups(self, cast: Cast, leaders: GroupLeaders, rows: Collection[int], *, moved: bool) -> None:
        """The same where totals are kept by groups: these have other scores, and one or two rows are elsewhere."""
        grouped = self._grouped(cast) if moved else None
        if moved and (grouped is None or grouped[0].of_row is not leaders.of_row):
            for row in rows:
                leaders.alone[row] = cast.alone_at(row)
            self._weigh_anew(cast)
            return
        if grouped is not None:
            leaders.weigh(grouped[0].scores, grouped[1])
        for row in rows:
            leaders.put(row, cast.alone_at(row))

    @staticmethod
    def _grouped(cast: Cast) -> tuple[GroupScores, int] | None:
        """The one who scores by groups, and what all others add; None where there is more to it."""
        groups, flat = None, 0
        for _, addend in cast.shifting:
            weighted = addend.weighted
            if weighted.by_row is None:
                flat += weighted.flat
            elif weighted.groups is None or groups is not None:
                return None
            else:
                groups = weighted.groups
        return None if groups is None else (groups, flat)

    def _find_cast(self) -> Cast:
        cast = self._cast = Cast(self._parts, self._speaking(), scores=bool(self._scores))
        asked = [(part, part.filtering, part.scoring) for part in cast.by_amounts]
        if asked != self._asked_by_amounts:
            self._asked_by_amounts = asked
            self._by_amounts.clear()
        return cast

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
            elif changed or addend.has_moved() or (part.compares and part.role.looks_at_pods and rows):
                self._weigh(addend)
                again = True
        if again or changed or isinstance(self._leaders, GroupLeaders):
            self._add_up()
        else:
            self._add_up_rows(rows)
        self._mark()

    def _mark(self) -> None:
        self._cast = self._spoken = None
        self._shifts = 0
        self._told.clear()
        if self._once:
            return
        snapshot = self.snapshot
        self._layout = snapshot.layout
        self._touched, self._renewed = snapshot.touched.end, snapshot.renewed.end
        self._versions = [part.version for part in self._parts]
        self._filter_versions = [part.filter_version for part in self._filters]
        self._evaluations = self._clock.evaluations

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
        rejecting = any(part.rejects for part in self._filters)
        self.candidates = int(np.count_nonzero(feasible)) if rejecting else count
        self._reasons = None if rejecting else ()

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

    def _weigh(self, addend: Addend) -> None:
        part = addend.part
        if not part.scores_alone:
            # One candidate needs no opinion.
            speaks = self.candidates > part.own and (part.scoring or (part.compares and not part.sits_out))
            known = part.same_for_any_candidates() if speaks else NOTHING
            if known is None:
                known = part.weighted(self.feasible, self._candidates_table())
            addend.weighted = known
            if part.role.moves and part.compares:
                addend.stamp = part.scores_stamp()
        addend.changes = part.changes

    def _weigh_again(self, addend: Addend) -> bool:
        """Scores moved, and nothing else: most often the plugin is asked no more than for them."""
        part = addend.part
        if not part.compares or part.own or self.candidates < len(self.feasible):
            return False
        weighted = part.weighted_again(self._candidates_table())
        if weighted is None:
            return False
        addend.weighted, addend.stamp = weighted, addend.seen
        return True

    def _candidates_table(self) -> NodeTable:
        """The candidates, as a table of the snapshot of now."""
        if self._table is None or self._table[0] is not self.feasible:
            self._table = (self.feasible, self.snapshot.table.narrowed(self.feasible))
        return self._table[1]

    def _add_up(self) -> None:
        alone = first = None
        for addend in self._scores:
            part = addend.part
            if part.scores_alone and part.scoring and not part.silent:
                scores = part.alone(self.feasible)
                if first is None:
                    first = scores
                else:
                    alone = first + scores if alone is None else np.add(alone, scores, out=alone)
        if alone is None:
            alone = np.zeros(len(self.feasible), dtype=np.int64) if first is None else first.copy()
        self._alone = alone
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
            self._alone = None
        if flat:
            total += flat
        if self.candidates < len(total):
            np.copyto(total, -1, where=~self.feasible)
        self._flat = flat
        self._leaders = Leaders(total)

    def _add_up_rows(self, rows: Sequence[int]) -> None:
        """Totals of rows where something happened; nothing moved on others."""
        where = np.array(rows, dtype=np.intp)
        alone = np.zeros(len(rows), dtype=np.int64)
        others = np.full(len(rows), 0 if self._scores else 1, dtype=np.int64)
        for addend in self._scores:
            part = addend.part
            if not addend.speaks:
                continue
            if part.scores_alone:
                if part.wild:
                    part.alone(self.feasible)
                alone += part.raw[where] * part.role.weight
            else:
                others += addend.weighted.flat if (vector := addend.weighted.vector) is None else vector[where]
        if self._alone is not None:
            self._alone[where] = alone
        self._leaders.total[where] = np.where(self.feasible[where], alone + others, -1)
        self._leaders = Leaders(self._leaders.total)

    # telling ----------------------------------------------------------------------------------------------------

    def lend(self, cycle: Cycle) -> None:
        """Give a pod of this kind what plugins found out about it."""
        known = self._known
        if known is None:
            known = self._known = Cycle(cycle.info, self.snapshot)
            known.adopt_all([part.cycle for part in self._parts if not part.own])
        cycle.share(known)

    def scores(self) -> Scores:
        """Totals and their parts for the candidates."""
        feasible = self.feasible
        parts = {addend.part.role.name: addend.over(feasible) for addend in self._scores if addend.speaks}
        return Scores(self._leaders.total[feasible], parts)

    def best_rows(self) -> Rows:
        """The rows with the highest total, in order."""
        return self._leaders.best_rows()

    def ranking(self, first: int, count: int) -> list[int]:
        """The chosen row, which is one of the best, and the best others."""
        return self._leaders.ranking(first, min(count, self.candidates))

    @property
    def scoring(self) -> tuple[str, ...]:
        """The score plugins that have something to say."""
        return self._speaking().names

    def _speaking(self) -> Spoken:
        spoken = self._spoken
        if spoken is None:
            spoken = self._spoken = Spoken(self._scores)
        return spoken

    def scores_at(self, rows: list[int]) -> bytes:
        """For each of these rows its total, and what each of `scoring` gave to it."""
        told, spoken = self._told, self._speaking()
        groups = self._leaders if isinstance(self._leaders, GroupLeaders) else None
        texts = []
        for row in rows:
            known, given = told.get(row), 0 if groups is None else groups.given_to_group_of(row)
            if known is None or known[0] != given:
                known = told[row] = (given, spoken.spelled_out(row))
            texts.append(known[1])
        return b"".join(texts)

    def rejections(self) -> tuple[RejectionCount, ...]:
        """Who rejects how many rows, and why."""
        if self._reasons is None:
            self._reasons = tuple(counted_rejections(self._filters, self.owner))
        return self._reasons

    def diagnosis(self) -> Diagnosis:
        """The same diagnosis that a full attempt would have made."""
        return diagnosed(self.snapshot.nodes.names, self._filters, self.owner)
