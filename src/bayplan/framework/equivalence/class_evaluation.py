"""Where one kind of pod stands on every row: which rows have room for it, and which of them is best.

A `ClassEvaluation` puts the parts together that plugins have in it (`parts`), in the order of the profile: a row
belongs to the first filter that rejects it, totals are sums over all rows with -1 where the pod does not fit, so the
best row is one `argmax` away. It is kept for pods that come again, and then only follows the rows that changed and the
parts that were asked in full since; for a pod that comes once it is put together and thrown away."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import Code
from bayplan.framework.equivalence.plugin_evaluation import (
    MAX_SINGLE_ROWS,
    EvaluationCounter,
    PluginEvaluation,
    needs_full_evaluation,
)
from bayplan.framework.equivalence.rejections import (
    RejectionCount,
    RejectorVector,
    build_diagnosis,
    count_rejections,
)
from bayplan.framework.equivalence.score_terms import ActiveScoreTerms, IncrementalPlan, ScoreTerm
from bayplan.framework.equivalence.top_rows import GroupedTopRows, Rows, TopRows
from bayplan.framework.equivalence.weighted_scores import NO_WEIGHTED_SCORES, GroupScores
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.snapshot import BoolVector, IntVector, NodeTable, Snapshot

_NO_REJECTOR = -1
_MAX_CACHED_AMOUNTS = 4096
_MIN_CANDIDATES = 2
_MIN_ROWS_PER_GROUP = 2
"""Scores that moved so often in a row, by groups, are expected to go on like that."""


class ClassEvaluation:
    """One kind of pod against all rows of one snapshot. `filters` and `scores` are parts in the profile's order."""

    def __init__(
        self,
        snapshot: Snapshot,
        parts: list[PluginEvaluation],
        filters: list[PluginEvaluation],
        scores: list[PluginEvaluation],
        clock: EvaluationCounter,
        *,
        once: bool = False,
    ) -> None:
        self.snapshot = snapshot
        self.was_cached = False  # before the pod that asks now
        self._once = once  # nobody will ask it to keep up
        self._clock = clock
        self._evaluations = 0
        self._parts = parts
        self._filters = filters
        self._scores = [ScoreTerm(part) for part in scores]
        self._watching: list[PluginEvaluation] | None = None  # None: it was never asked to keep up
        self._steady: list[PluginEvaluation] = []
        self.feasible: BoolVector = np.zeros(0, dtype=np.bool_)
        self.owner: RejectorVector = np.zeros(0, dtype=np.int8)
        self._top_rows: TopRows | GroupedTopRows = TopRows(np.zeros(0, dtype=np.int64))
        self._row_local: IntVector | None = None  # the sum of those who score alone; None where all others are `flat`
        self._constant = 0  # the sum of those who add the same to all rows
        self._shifts = 0  # how often scores moved since everything was put together
        self.candidates = 0
        self._layout = -1
        self._touched = self._renewed = 0
        self._versions: list[int] = []
        self._filter_versions: list[int] = []
        self._reasons: tuple[RejectionCount, ...] | None = None  # None: to be counted
        self._row_results: dict[
            int, tuple[int, bytes]
        ] = {}  # what `scores_at` said of rows, and what groups gave them then
        self._plan: IncrementalPlan | None = None  # None: to be found out
        self._active: ActiveScoreTerms | None = None  # the same
        self._known: Cycle | None = None  # None: to be collected from the parts
        self._table: tuple[BoolVector, NodeTable] | None = None
        self._asked_by_amounts: list[tuple[PluginEvaluation, bool, bool]] = []
        self._by_amounts: dict[bytes, tuple[int, ...]] = {}  # what followers gave to rows that they did not reject
        self._rebuild()

    def evaluation_of(self, number: int) -> PluginEvaluation:
        """What one plugin of the profile says, by the plugin's number there."""
        return self._parts[number]

    # keeping up -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Catch up with the snapshot."""
        snapshot, self.was_cached = self.snapshot, True
        if snapshot.layout != self._layout:
            self._rebuild()
            return
        if self._watching is None:
            self._watching = [part for part in self._parts if part.role.checks_dependencies]
            self._steady = [part for part in self._parts if not part.role.checks_dependencies]
        for part in self._watching:
            part.update()
        row = snapshot.touched.single_since(self._touched)
        rows: Collection[int] | None = (row,) if row >= 0 else snapshot.touched.since(self._touched)
        if rows is None or (len(rows) > MAX_SINGLE_ROWS and needs_full_evaluation(len(rows), len(snapshot))):
            self._rebuild()
        elif (
            self._was_evaluated_in_full()
            or snapshot.renewed.end != self._renewed
            or len(rows) > MAX_SINGLE_ROWS
            or (rows and not self._update_rows(rows))
        ):
            self._update_changed_rows(sorted(rows))

    def _was_evaluated_in_full(self) -> bool:
        """Whether a part has answers that this does not know, on rows that nothing happened to."""
        if self._clock.evaluations == self._evaluations:
            return False
        if [part.version for part in self._parts] != self._versions:
            return True
        self._evaluations = self._clock.evaluations
        return False

    def _update_rows(self, rows: Collection[int]) -> bool:
        """Catch up with pods that came or went on a few rows; false where more has to be looked at."""
        cast = self._plan or self._build_plan()
        if not cast.can_update_rows:
            return False
        end = self.snapshot.touched.end
        for part in cast.pod_evaluations:
            part.update_rows(rows, self._touched, end)
        if len(rows) > 1 or not self._apply_cached_scores(cast, rows, end):
            for part in cast.amount_evaluations:
                part.update_rows(rows, self._touched, end)
            self._cache_scores(cast, rows)
        for part in cast.amount_evaluations:
            if part.out_of_range:
                return False
        if self._was_evaluated_in_full() or not self._apply_row_results(cast, rows):
            return False
        self._touched = end
        return True

    def _apply_cached_scores(self, cast: IncrementalPlan, rows: Collection[int], end: int) -> bool:
        """Amounts that were met before, on a row that nobody rejected, get the scores that were given then."""
        (row,) = rows
        scores = self._by_amounts.get(self.snapshot.nodes.amounts_key(row))
        if scores is None:
            return False
        for part, score in zip(cast.amount_evaluations, scores, strict=True):
            part.set_row_score(row, score, self._touched, end)
        return True

    def _cache_scores(self, cast: IncrementalPlan, rows: Collection[int]) -> None:
        for row in rows:
            if any(part.out_of_range or (part.rejects and part.codes[row]) for part in cast.amount_evaluations):
                continue
            if len(self._by_amounts) >= _MAX_CACHED_AMOUNTS:
                self._by_amounts.clear()
            key = self.snapshot.nodes.amounts_key(row)
            self._by_amounts[key] = tuple(
                part.raw.item(row) if part.has_score else 0 for part in cast.amount_evaluations
            )

    def _apply_row_results(self, cast: IncrementalPlan, rows: Collection[int]) -> bool:
        """What followers say of rows where the pod did fit; false where it did not, or nearly nothing is left: nothing
        has changed then."""
        candidates, leaders = self.feasible, self._top_rows
        verdicts = []
        rejected = 0
        for row in rows:
            if self.owner.item(row) != _NO_REJECTOR:
                return False
            rejecting = self._rejecting_plugin(cast, row)
            rejected += rejecting is not None
            verdicts.append((row, rejecting))
        if rejected and (
            self.candidates - rejected < _MIN_CANDIDATES
            or cast.has_inactive_terms
            or isinstance(leaders, GroupedTopRows)
        ):
            return False
        for row, rejecting in verdicts:
            self._row_results.pop(row, None)
            if rejecting is not None:
                self._reject_row(cast, row, rejecting)
            elif self._row_local is None:
                leaders.set_total(row, cast.row_local_total(row) + self._constant)
            elif isinstance(leaders, TopRows):
                self._row_local[row] = cast.row_local_total(row)
                leaders.set_total(row, self._active_terms().total_at(row))
        if cast.normalized_terms:
            moved = self._apply_normalized_scores(cast, changed=self.feasible is not candidates)
            if isinstance(leaders, GroupedTopRows):
                self._apply_group_scores(cast, leaders, rows, moved=moved)
            elif moved:
                self._reweight(cast)
        return True

    @staticmethod
    def _rejecting_plugin(cast: IncrementalPlan, row: int) -> list[PluginEvaluation] | None:
        """Who of the followers rejects a row."""
        for part in cast.row_evaluations:
            if part.rejects and part.codes.item(row):
                return [part for part in cast.row_evaluations if part.rejects and part.codes.item(row)]
        return None

    def _reject_row(self, cast: IncrementalPlan, row: int, rejecting: list[PluginEvaluation]) -> None:
        self.owner[row] = min(map(self._filters.index, rejecting))
        self.feasible = self.feasible.copy()  # whoever holds the old one holds the old candidates
        self.feasible[row] = False
        self.candidates -= 1
        self._reasons = None
        if self._row_local is not None:
            self._row_local[row] = cast.row_local_total(row)
        self._top_rows.set_total(row, -1)

    def _apply_normalized_scores(self, cast: IncrementalPlan, *, changed: bool) -> bool:
        """Weigh again what has moved on rows that nothing happened to, or is told of other candidates now."""
        moved, spoken = False, self._active_terms()
        for place, addend in cast.normalized_terms:
            if not changed and not addend.has_moved():
                continue
            before = addend.weighted
            if changed or not self._update_moved_term(addend):
                self._update_term(addend)
            if addend.weighted is not before:
                moved = True
                spoken.score_sources[place] = addend.score_source
                if before.groups is None or addend.weighted.groups is None:  # `scores_at` looks at groups by itself
                    self._row_results.clear()
            if not addend.is_active:
                self._plan = self._active = None
        return moved

    def _reweight(self, cast: IncrementalPlan) -> None:
        """Scores moved on rows that nothing happened to."""
        self._shifts += 1
        self._row_results.clear()
        if self._row_local is None:
            self._add_up()
            return
        grouped = self._group_rows(cast) if self._shifts >= _MIN_ROWS_PER_GROUP else None
        if grouped is None:
            self._sum()
            return
        groups, flat = grouped
        self._top_rows = GroupedTopRows(self._row_local, groups.of_row, groups.scores, flat)

    def _apply_group_scores(
        self, cast: IncrementalPlan, leaders: GroupedTopRows, rows: Collection[int], *, moved: bool
    ) -> None:
        """The same where totals are kept by groups: these have other scores, and one or two rows are elsewhere."""
        grouped = self._group_rows(cast) if moved else None
        if moved and (grouped is None or grouped[0].of_row is not leaders.of_row):
            for row in rows:
                leaders.row_local[row] = cast.row_local_total(row)
            self._reweight(cast)
            return
        if grouped is not None:
            leaders.set_group_scores(grouped[0].scores, grouped[1])
        for row in rows:
            leaders.set_total(row, cast.row_local_total(row))

    @staticmethod
    def _group_rows(cast: IncrementalPlan) -> tuple[GroupScores, int] | None:
        """The one who scores by groups, and what all others add; None where there is more to it."""
        groups, flat = None, 0
        for _, addend in cast.normalized_terms:
            weighted = addend.weighted
            if weighted.row_scores is None:
                flat += weighted.constant
            elif weighted.groups is None or groups is not None:
                return None
            else:
                groups = weighted.groups
        return None if groups is None else (groups, flat)

    def _build_plan(self) -> IncrementalPlan:
        cast = self._plan = IncrementalPlan(self._parts, self._active_terms(), scores=bool(self._scores))
        asked = [(part, part.has_filter, part.has_score) for part in cast.amount_evaluations]
        if asked != self._asked_by_amounts:
            self._asked_by_amounts = asked
            self._by_amounts.clear()
        return cast

    def _rebuild(self) -> None:
        self._known = None
        for part in self._parts:
            if not part.unshared:
                part.update()
        self._merge_all_rows()
        for part in self._parts:
            if part.unshared and part.role.pre_scores and not part.role.scores and self.candidates > 1:
                part.pre_score(self.snapshot.table.restricted_to(self.feasible))
        for addend in self._scores:
            self._update_term(addend)
        self._add_up()
        self._mark()

    def _update_changed_rows(self, rows: Sequence[int]) -> None:
        before = self.feasible
        for part in self._steady:
            part.update()
        asked = {id(part) for part, version in zip(self._parts, self._versions, strict=True) if part.version != version}
        if asked:
            self._known = None
        if [part.filter_version for part in self._filters] != self._filter_versions:
            self._merge_all_rows()
        elif rows:
            self._merge_rows(rows)
        changed = self.feasible is not before and not np.array_equal(before, self.feasible)
        if not changed:
            self.feasible = before  # the same object: whatever was found out about these candidates stays
        again = False
        for addend in self._scores:
            part = addend.evaluation
            if part.scores_row_local:
                again |= id(part) in asked
            elif changed or addend.has_moved() or (part.compares_candidates and part.role.looks_at_pods and rows):
                self._update_term(addend)
                again = True
        if again or changed or isinstance(self._top_rows, GroupedTopRows):
            self._add_up()
        else:
            self._add_up_rows(rows)
        self._mark()

    def _mark(self) -> None:
        self._plan = self._active = None
        self._shifts = 0
        self._row_results.clear()
        if self._once:
            return
        snapshot = self.snapshot
        self._layout = snapshot.layout
        self._touched, self._renewed = snapshot.touched.end, snapshot.renewed.end
        self._versions = [part.version for part in self._parts]
        self._filter_versions = [part.filter_version for part in self._filters]
        self._evaluations = self._clock.evaluations

    # filters ----------------------------------------------------------------------------------------------------

    def _merge_all_rows(self) -> None:
        count = len(self.snapshot)
        owner = np.full(count, _NO_REJECTOR, dtype=np.int8)
        feasible = np.ones(count, dtype=np.bool_)
        for number, part in enumerate(self._filters):
            if part.unshared:
                part.evaluate(feasible)
            if part.rejects:
                rejected = part.codes != Code.SUCCESS
                rejected &= feasible
                np.copyto(owner, np.int8(number), where=rejected)
                feasible ^= rejected
        for part in self._parts:
            if part.unshared and not part.role.filters:
                part.evaluate()
        self.owner, self.feasible = owner, feasible
        rejecting = any(part.rejects for part in self._filters)
        self.candidates = int(np.count_nonzero(feasible)) if rejecting else count
        self._reasons = None if rejecting else ()

    def _merge_rows(self, rows: Sequence[int]) -> None:
        where = np.array(rows, dtype=np.intp)
        owner = np.full(len(rows), _NO_REJECTOR, dtype=np.int8)
        for number in range(len(self._filters) - 1, -1, -1):
            part = self._filters[number]
            if part.rejects:
                owner[part.codes[where] != Code.SUCCESS] = number
        fits = owner == _NO_REJECTOR
        if not fits.all() or (self.owner[where] != _NO_REJECTOR).any():
            self._reasons = None
        self.owner[where] = owner
        if not np.array_equal(fits, self.feasible[where]):
            self.feasible = self.feasible.copy()
            self.feasible[where] = fits
            self.candidates = int(np.count_nonzero(self.feasible))

    # totals -----------------------------------------------------------------------------------------------------

    def _update_term(self, addend: ScoreTerm) -> None:
        part = addend.evaluation
        if not part.scores_row_local:
            # One candidate needs no opinion.
            speaks = self.candidates > part.unshared and (
                part.has_score or (part.compares_candidates and not part.sits_out)
            )
            known = part.same_for_any_candidates() if speaks else NO_WEIGHTED_SCORES
            if known is None:
                known = part.weighted(self.feasible, self._candidates_table())
            addend.weighted = known
            if part.role.has_scores_version and part.compares_candidates:
                addend.stamp = part.scores_stamp()
        addend.changes = part.changes

    def _update_moved_term(self, addend: ScoreTerm) -> bool:
        """Scores moved, and nothing else: most often the plugin is asked no more than for them."""
        part = addend.evaluation
        if not part.compares_candidates or part.unshared or self.candidates < len(self.feasible):
            return False
        weighted = part.reweighted(self._candidates_table())
        if weighted is None:
            return False
        addend.weighted, addend.stamp = weighted, addend.last_checked_stamp
        return True

    def _candidates_table(self) -> NodeTable:
        """The candidates, as a table of the snapshot of now."""
        if self._table is None or self._table[0] is not self.feasible:
            self._table = (self.feasible, self.snapshot.table.restricted_to(self.feasible))
        return self._table[1]

    def _add_up(self) -> None:
        alone = first = None
        for addend in self._scores:
            part = addend.evaluation
            if part.scores_row_local and part.has_score and not part.all_zero:
                scores = part.row_local_scores(self.feasible)
                if first is None:
                    first = scores
                else:
                    alone = first + scores if alone is None else np.add(alone, scores, out=alone)
        if alone is None:
            alone = np.zeros(len(self.feasible), dtype=np.int64) if first is None else first.copy()
        self._row_local = alone
        self._sum()

    def _sum(self) -> None:
        """Totals from the sum of those who score alone, which is kept while there are others."""
        assert self._row_local is not None
        total, flat = self._row_local, 0 if self._scores else 1
        for addend in self._scores:
            if not addend.evaluation.scores_row_local:
                vector = addend.weighted.vector
                if vector is None:
                    flat += addend.weighted.constant
                elif total is self._row_local:
                    total = total + vector
                else:
                    total += vector
        if total is self._row_local:
            self._row_local = None
        if flat:
            total += flat
        if self.candidates < len(total):
            np.copyto(total, -1, where=~self.feasible)
        self._constant = flat
        self._top_rows = TopRows(total)

    def _add_up_rows(self, rows: Sequence[int]) -> None:
        """Totals of rows where something happened; nothing moved on others."""
        where = np.array(rows, dtype=np.intp)
        alone = np.zeros(len(rows), dtype=np.int64)
        others = np.full(len(rows), 0 if self._scores else 1, dtype=np.int64)
        for addend in self._scores:
            part = addend.evaluation
            if not addend.is_active:
                continue
            if part.scores_row_local:
                if part.out_of_range:
                    part.row_local_scores(self.feasible)
                alone += part.raw[where] * part.role.weight
            else:
                others += addend.weighted.constant if (vector := addend.weighted.vector) is None else vector[where]
        if self._row_local is not None:
            self._row_local[where] = alone
        self._top_rows.total[where] = np.where(self.feasible[where], alone + others, -1)
        self._top_rows = TopRows(self._top_rows.total)

    # telling ----------------------------------------------------------------------------------------------------

    def lend_state(self, cycle: Cycle) -> None:
        """Give a pod of this kind what plugins found out about it."""
        known = self._known
        if known is None:
            known = self._known = Cycle(cycle.info, self.snapshot)
            known.merge_states([part.cycle for part in self._parts if not part.unshared])
        cycle.share_state(known)

    def scores(self) -> TotalScores:
        """Totals and their parts for the candidates."""
        feasible = self.feasible
        parts = {addend.evaluation.role.name: addend.on_rows(feasible) for addend in self._scores if addend.is_active}
        return TotalScores(self._top_rows.total[feasible], parts)

    def best_rows(self) -> Rows:
        """The rows with the highest total, in order."""
        return self._top_rows.best_rows()

    def ranking(self, first: int, count: int) -> list[int]:
        """The chosen row, which is one of the best, and the best others."""
        return self._top_rows.ranking(first, min(count, self.candidates))

    @property
    def scoring(self) -> tuple[str, ...]:
        """The score plugins that have something to say."""
        return self._active_terms().names

    def _active_terms(self) -> ActiveScoreTerms:
        spoken = self._active
        if spoken is None:
            spoken = self._active = ActiveScoreTerms(self._scores)
        return spoken

    def scores_at(self, rows: list[int]) -> bytes:
        """For each of these rows its total, and what each of `scoring` gave to it."""
        told, spoken = self._row_results, self._active_terms()
        groups = self._top_rows if isinstance(self._top_rows, GroupedTopRows) else None
        texts = []
        for row in rows:
            known, given = told.get(row), 0 if groups is None else groups.group_score(row)
            if known is None or known[0] != given:
                known = told[row] = (given, spoken.pack_row_scores(row))
            texts.append(known[1])
        return b"".join(texts)

    def rejections(self) -> tuple[RejectionCount, ...]:
        """Who rejects how many rows, and why."""
        if self._reasons is None:
            self._reasons = tuple(count_rejections(self._filters, self.owner))
        return self._reasons

    def diagnosis(self) -> Diagnosis:
        """The same diagnosis that a full attempt would have made."""
        return build_diagnosis(self.snapshot.nodes.names, self._filters, self.owner)
