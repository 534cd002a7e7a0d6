"""Result of one equivalence class of pods on every row: which rows fit, and which row is best.

A `ClassEvaluation` merges the plugin evaluations of the class in the order of the profile. The first filter that
rejects a row is its rejector. Totals are sums over all rows, with -1 where the pod does not fit, so the best row is one
`argmax`. Evaluations of classes that recur are cached. They follow only the changed rows and the plugin evaluations
that were evaluated in full since. For a class that occurs once the evaluation is built and dropped.
"""

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
from bayplan.framework.equivalence.rejections import RejectionCount, RejectorVector, build_diagnosis, count_rejections
from bayplan.framework.equivalence.score_terms import ActiveScoreTerms, IncrementalPlan, ScoreTerm
from bayplan.framework.equivalence.top_rows import GroupedTopRows, Rows, TopRows
from bayplan.framework.equivalence.weighted_scores import NO_WEIGHTED_SCORES, GroupScores
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.snapshot import BoolVector, IntVector, NodeTable, Snapshot

_NO_REJECTOR = -1
_MAX_CACHED_AMOUNTS = 4096
_MIN_CANDIDATES = 2
_MIN_ROWS_PER_GROUP = 2
"""After this many consecutive changes of scores by groups, further ones are expected."""


class ClassEvaluation:
    """One equivalence class of pods on all rows of one snapshot. `filters` and `scores` are in the profile's order."""

    def __init__(
        self,
        snapshot: Snapshot,
        evaluations: list[PluginEvaluation],
        filters: list[PluginEvaluation],
        scores: list[PluginEvaluation],
        counter: EvaluationCounter,
        *,
        single_use: bool = False,
    ) -> None:
        self.snapshot = snapshot
        self.was_cached = False  # whether it existed before the current pod
        self._single_use = single_use  # never refreshed
        self._counter = counter
        self._counted_evaluations = 0
        self._plugin_evaluations = evaluations
        self._filters = filters
        self._scores = [ScoreTerm(evaluation) for evaluation in scores]
        self._with_dependencies: list[PluginEvaluation] | None = None  # None: never refreshed
        self._without_dependencies: list[PluginEvaluation] = []
        self.feasible: BoolVector = np.zeros(0, dtype=np.bool_)
        self.rejector: RejectorVector = np.zeros(0, dtype=np.int8)
        self._top_rows: TopRows | GroupedTopRows = TopRows(np.zeros(0, dtype=np.int64))
        self._row_local: IntVector | None = None  # sum of the row-local scores; None if all other scores are constant
        self._constant = 0  # sum of the scores that are equal on all rows
        self._shifts = 0  # changes of scores since the last full computation
        self.candidates = 0
        self._layout = -1
        self._touched = self._renewed = 0
        self._versions: list[int] = []
        self._filter_versions: list[int] = []
        self._reasons: tuple[RejectionCount, ...] | None = None  # None: not counted
        # for each row: the group score it had, and the result of `scores_at`
        self._row_results: dict[int, tuple[int, bytes]] = {}
        self._plan: IncrementalPlan | None = None  # None: not built
        self._active: ActiveScoreTerms | None = None  # None: not built
        self._shared_state: Cycle | None = None  # None: not merged from the plugin evaluations
        self._table: tuple[BoolVector, NodeTable] | None = None
        self._amount_inputs: list[tuple[PluginEvaluation, bool, bool]] = []
        # amounts of a row that is not rejected -> score of each amount evaluation
        self._scores_by_amounts: dict[bytes, tuple[int, ...]] = {}
        self._rebuild()

    def plugin_evaluation(self, number: int) -> PluginEvaluation:
        """Return the evaluation of one plugin, by its number in the profile."""
        return self._plugin_evaluations[number]

    def refresh(self) -> None:
        snapshot, self.was_cached = self.snapshot, True
        if snapshot.layout != self._layout:
            self._rebuild()
            return
        if self._with_dependencies is None:
            self._with_dependencies = [
                evaluation for evaluation in self._plugin_evaluations if evaluation.role.checks_dependencies
            ]
            self._without_dependencies = [
                evaluation for evaluation in self._plugin_evaluations if not evaluation.role.checks_dependencies
            ]
        for evaluation in self._with_dependencies:
            evaluation.update()
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
        """Whether a plugin evaluation has answers on unchanged rows that are not merged here."""
        if self._counter.evaluations == self._counted_evaluations:
            return False
        if [evaluation.version for evaluation in self._plugin_evaluations] != self._versions:
            return True
        self._counted_evaluations = self._counter.evaluations
        return False

    def _update_rows(self, rows: Collection[int]) -> bool:
        """Update a few rows whose pods changed. Returns False if more than these rows must be evaluated."""
        plan = self._plan or self._build_plan()
        if not plan.can_update_rows:
            return False
        end = self.snapshot.touched.end
        for evaluation in plan.pod_evaluations:
            evaluation.update_rows(rows, self._touched, end)
        if len(rows) > 1 or not self._apply_cached_scores(plan, rows, end):
            for evaluation in plan.amount_evaluations:
                evaluation.update_rows(rows, self._touched, end)
            self._cache_scores(plan, rows)
        for evaluation in plan.amount_evaluations:
            if evaluation.out_of_range:
                return False
        if self._was_evaluated_in_full() or not self._apply_row_results(plan, rows):
            return False
        self._touched = end
        return True

    def _apply_cached_scores(self, plan: IncrementalPlan, rows: Collection[int], end: int) -> bool:
        """Set the scores of amounts that occurred before on a row that no plugin rejects."""
        (row,) = rows
        scores = self._scores_by_amounts.get(self.snapshot.nodes.amounts_key(row))
        if scores is None:
            return False
        for evaluation, score in zip(plan.amount_evaluations, scores, strict=True):
            evaluation.set_row_score(row, score, self._touched, end)
        return True

    def _cache_scores(self, plan: IncrementalPlan, rows: Collection[int]) -> None:
        for row in rows:
            if any(
                evaluation.out_of_range or (evaluation.rejects and evaluation.codes[row])
                for evaluation in plan.amount_evaluations
            ):
                continue
            if len(self._scores_by_amounts) >= _MAX_CACHED_AMOUNTS:
                self._scores_by_amounts.clear()
            key = self.snapshot.nodes.amounts_key(row)
            self._scores_by_amounts[key] = tuple(
                evaluation.raw.item(row) if evaluation.has_score else 0 for evaluation in plan.amount_evaluations
            )

    def _apply_row_results(self, plan: IncrementalPlan, rows: Collection[int]) -> bool:
        """Merge the evaluations of rows on which the pod did fit.

        Returns False, and changes nothing, if the pod did not fit on one of them or nearly no candidate is left.
        """
        candidates, top_rows = self.feasible, self._top_rows
        results = []
        rejected = 0
        for row in rows:
            if self.rejector.item(row) != _NO_REJECTOR:
                return False
            rejecting = self._rejecting_plugins(plan, row)
            rejected += rejecting is not None
            results.append((row, rejecting))
        if rejected and (
            self.candidates - rejected < _MIN_CANDIDATES
            or plan.has_inactive_terms
            or isinstance(top_rows, GroupedTopRows)
        ):
            return False
        for row, rejecting in results:
            self._row_results.pop(row, None)
            if rejecting is not None:
                self._reject_row(plan, row, rejecting)
            elif self._row_local is None:
                top_rows.set_total(row, plan.row_local_total(row) + self._constant)
            elif isinstance(top_rows, TopRows):
                self._row_local[row] = plan.row_local_total(row)
                top_rows.set_total(row, self._active_terms().total_at(row))
        if plan.normalized_terms:
            moved = self._apply_normalized_scores(plan, changed=self.feasible is not candidates)
            if isinstance(top_rows, GroupedTopRows):
                self._apply_group_scores(plan, top_rows, rows, moved=moved)
            elif moved:
                self._reweight(plan)
        return True

    @staticmethod
    def _rejecting_plugins(plan: IncrementalPlan, row: int) -> list[PluginEvaluation] | None:
        for evaluation in plan.row_evaluations:
            if evaluation.rejects and evaluation.codes.item(row):
                return [
                    evaluation
                    for evaluation in plan.row_evaluations
                    if evaluation.rejects and evaluation.codes.item(row)
                ]
        return None

    def _reject_row(self, plan: IncrementalPlan, row: int, rejecting: list[PluginEvaluation]) -> None:
        self.rejector[row] = min(map(self._filters.index, rejecting))
        self.feasible = self.feasible.copy()  # callers may hold the old vector
        self.feasible[row] = False
        self.candidates -= 1
        self._reasons = None
        if self._row_local is not None:
            self._row_local[row] = plan.row_local_total(row)
        self._top_rows.set_total(row, -1)

    def _apply_normalized_scores(self, plan: IncrementalPlan, *, changed: bool) -> bool:
        """Update scores that moved on unchanged rows, or all normalized scores if the candidates changed."""
        moved, active = False, self._active_terms()
        for place, term in plan.normalized_terms:
            if not changed and not term.has_moved():
                continue
            before = term.weighted
            if changed or not self._update_moved_term(term):
                self._update_term(term)
            if term.weighted is not before:
                moved = True
                active.score_sources[place] = term.score_source
                if before.groups is None or term.weighted.groups is None:  # `scores_at` compares group scores
                    self._row_results.clear()
            if not term.is_active:
                self._plan = self._active = None
        return moved

    def _reweight(self, plan: IncrementalPlan) -> None:
        """Compute totals after scores moved on unchanged rows."""
        self._shifts += 1
        self._row_results.clear()
        if self._row_local is None:
            self._compute_totals()
            return
        grouped = self._group_rows(plan) if self._shifts >= _MIN_ROWS_PER_GROUP else None
        if grouped is None:
            self._sum_terms()
            return
        groups, constant = grouped
        self._top_rows = GroupedTopRows(self._row_local, groups.of_row, groups.scores, constant)

    def _apply_group_scores(
        self, plan: IncrementalPlan, top_rows: GroupedTopRows, rows: Collection[int], *, moved: bool
    ) -> None:
        """Compute totals by groups: the groups have new scores, and a few rows may be in another group."""
        grouped = self._group_rows(plan) if moved else None
        if moved and (grouped is None or grouped[0].of_row is not top_rows.of_row):
            for row in rows:
                top_rows.row_local[row] = plan.row_local_total(row)
            self._reweight(plan)
            return
        if grouped is not None:
            top_rows.set_group_scores(grouped[0].scores, grouped[1])
        for row in rows:
            top_rows.set_total(row, plan.row_local_total(row))

    @staticmethod
    def _group_rows(plan: IncrementalPlan) -> tuple[GroupScores, int] | None:
        """Return the scores of the only term with group scores, and the sum of the constant terms.

        None if another term differs by row.
        """
        groups, constant = None, 0
        for _, term in plan.normalized_terms:
            weighted = term.weighted
            if weighted.row_scores is None:
                constant += weighted.constant
            elif weighted.groups is None or groups is not None:
                return None
            else:
                groups = weighted.groups
        return None if groups is None else (groups, constant)

    def _build_plan(self) -> IncrementalPlan:
        plan = self._plan = IncrementalPlan(self._plugin_evaluations, self._active_terms(), scores=bool(self._scores))
        inputs = [(evaluation, evaluation.has_filter, evaluation.has_score) for evaluation in plan.amount_evaluations]
        if inputs != self._amount_inputs:
            self._amount_inputs = inputs
            self._scores_by_amounts.clear()
        return plan

    def _rebuild(self) -> None:
        self._shared_state = None
        for evaluation in self._plugin_evaluations:
            if not evaluation.unshared:
                evaluation.update()
        self._merge_all_rows()
        for evaluation in self._plugin_evaluations:
            if (
                evaluation.unshared
                and evaluation.role.pre_scores
                and not evaluation.role.scores
                and self.candidates > 1
            ):
                evaluation.pre_score(self.snapshot.table.restricted_to(self.feasible))
        for term in self._scores:
            self._update_term(term)
        self._compute_totals()
        self._save_versions()

    def _update_changed_rows(self, rows: Sequence[int]) -> None:
        before = self.feasible
        for evaluation in self._without_dependencies:
            evaluation.update()
        evaluated_in_full = {
            id(evaluation)
            for evaluation, version in zip(self._plugin_evaluations, self._versions, strict=True)
            if evaluation.version != version
        }
        if evaluated_in_full:
            self._shared_state = None
        if [evaluation.filter_version for evaluation in self._filters] != self._filter_versions:
            self._merge_all_rows()
        elif rows:
            self._merge_rows(rows)
        changed = self.feasible is not before and not np.array_equal(before, self.feasible)
        if not changed:
            self.feasible = before  # the same object keeps everything cached for these candidates
        totals_changed = False
        for term in self._scores:
            evaluation = term.evaluation
            if evaluation.scores_row_local:
                totals_changed |= id(evaluation) in evaluated_in_full
            elif (
                changed
                or term.has_moved()
                or (evaluation.compares_candidates and evaluation.role.looks_at_pods and rows)
            ):
                self._update_term(term)
                totals_changed = True
        if totals_changed or changed or isinstance(self._top_rows, GroupedTopRows):
            self._compute_totals()
        else:
            self._compute_row_totals(rows)
        self._save_versions()

    def _save_versions(self) -> None:
        self._plan = self._active = None
        self._shifts = 0
        self._row_results.clear()
        if self._single_use:
            return
        snapshot = self.snapshot
        self._layout = snapshot.layout
        self._touched, self._renewed = snapshot.touched.end, snapshot.renewed.end
        self._versions = [evaluation.version for evaluation in self._plugin_evaluations]
        self._filter_versions = [evaluation.filter_version for evaluation in self._filters]
        self._counted_evaluations = self._counter.evaluations

    def _merge_all_rows(self) -> None:
        count = len(self.snapshot)
        rejector = np.full(count, _NO_REJECTOR, dtype=np.int8)
        feasible = np.ones(count, dtype=np.bool_)
        for number, evaluation in enumerate(self._filters):
            if evaluation.unshared:
                evaluation.evaluate(feasible)
            if evaluation.rejects:
                rejected = evaluation.codes != Code.SUCCESS
                rejected &= feasible
                np.copyto(rejector, np.int8(number), where=rejected)
                feasible ^= rejected
        for evaluation in self._plugin_evaluations:
            if evaluation.unshared and not evaluation.role.filters:
                evaluation.evaluate()
        self.rejector, self.feasible = rejector, feasible
        rejecting = any(evaluation.rejects for evaluation in self._filters)
        self.candidates = int(np.count_nonzero(feasible)) if rejecting else count
        self._reasons = None if rejecting else ()

    def _merge_rows(self, rows: Sequence[int]) -> None:
        where = np.array(rows, dtype=np.intp)
        rejector = np.full(len(rows), _NO_REJECTOR, dtype=np.int8)
        for number in range(len(self._filters) - 1, -1, -1):
            evaluation = self._filters[number]
            if evaluation.rejects:
                rejector[evaluation.codes[where] != Code.SUCCESS] = number
        fits = rejector == _NO_REJECTOR
        if not fits.all() or (self.rejector[where] != _NO_REJECTOR).any():
            self._reasons = None
        self.rejector[where] = rejector
        if not np.array_equal(fits, self.feasible[where]):
            self.feasible = self.feasible.copy()
            self.feasible[where] = fits
            self.candidates = int(np.count_nonzero(self.feasible))

    def _update_term(self, term: ScoreTerm) -> None:
        evaluation = term.evaluation
        if not evaluation.scores_row_local:
            # A single candidate needs no scores.
            scored = self.candidates > evaluation.unshared and (
                evaluation.has_score or (evaluation.compares_candidates and not evaluation.not_applicable)
            )
            weighted = evaluation.same_for_any_candidates() if scored else NO_WEIGHTED_SCORES
            if weighted is None:
                weighted = evaluation.weighted(self.feasible, self._candidates_table())
            term.weighted = weighted
            if evaluation.role.scores_depend_on is not None and evaluation.compares_candidates:
                term.stamp = evaluation.scores_stamp()
        term.changes = evaluation.changes

    def _update_moved_term(self, term: ScoreTerm) -> bool:
        """Update a term whose scores moved, usually by a call for group scores only."""
        evaluation = term.evaluation
        if not evaluation.compares_candidates or evaluation.unshared or self.candidates < len(self.feasible):
            return False
        weighted = evaluation.reweighted(self._candidates_table())
        if weighted is None:
            return False
        term.weighted, term.stamp = weighted, term.last_checked_stamp
        return True

    def _candidates_table(self) -> NodeTable:
        """Return the candidates as a table of the current snapshot."""
        if self._table is None or self._table[0] is not self.feasible:
            self._table = (self.feasible, self.snapshot.table.restricted_to(self.feasible))
        return self._table[1]

    def _compute_totals(self) -> None:
        row_local = first = None
        for term in self._scores:
            evaluation = term.evaluation
            if evaluation.scores_row_local and evaluation.has_score and not evaluation.all_zero:
                scores = evaluation.row_local_scores(self.feasible)
                if first is None:
                    first = scores
                else:
                    row_local = first + scores if row_local is None else np.add(row_local, scores, out=row_local)
        if row_local is None:
            row_local = np.zeros(len(self.feasible), dtype=np.int64) if first is None else first.copy()
        self._row_local = row_local
        self._sum_terms()

    def _sum_terms(self) -> None:
        """Compute totals from the sum of the row-local scores. The sum is stored if other scores differ by row."""
        assert self._row_local is not None
        total, constant = self._row_local, 0 if self._scores else 1
        for term in self._scores:
            if not term.evaluation.scores_row_local:
                vector = term.weighted.vector
                if vector is None:
                    constant += term.weighted.constant
                elif total is self._row_local:
                    total = total + vector
                else:
                    total += vector
        if total is self._row_local:
            self._row_local = None
        if constant:
            total += constant
        if self.candidates < len(total):
            np.copyto(total, -1, where=~self.feasible)
        self._constant = constant
        self._top_rows = TopRows(total)

    def _compute_row_totals(self, rows: Sequence[int]) -> None:
        """Compute the totals of changed rows. Other rows are unchanged."""
        where = np.array(rows, dtype=np.intp)
        row_local = np.zeros(len(rows), dtype=np.int64)
        normalized = np.full(len(rows), 0 if self._scores else 1, dtype=np.int64)
        for term in self._scores:
            evaluation = term.evaluation
            if not term.is_active:
                continue
            if evaluation.scores_row_local:
                if evaluation.out_of_range:
                    evaluation.row_local_scores(self.feasible)
                row_local += evaluation.raw[where] * evaluation.role.weight
            else:
                normalized += term.weighted.constant if (vector := term.weighted.vector) is None else vector[where]
        if self._row_local is not None:
            self._row_local[where] = row_local
        self._top_rows.total[where] = np.where(self.feasible[where], row_local + normalized, -1)
        self._top_rows = TopRows(self._top_rows.total)

    def lend_state(self, cycle: Cycle) -> None:
        """Share the state of the plugins with a pod of this class."""
        shared = self._shared_state
        if shared is None:
            shared = self._shared_state = Cycle(cycle.info, self.snapshot)
            shared.merge_states(
                [evaluation.cycle for evaluation in self._plugin_evaluations if not evaluation.unshared]
            )
        cycle.share_state(shared)

    def scores(self) -> TotalScores:
        """Return totals of the candidates, and the score of each plugin."""
        feasible = self.feasible
        scores_by_plugin = {
            term.evaluation.role.name: term.on_rows(feasible) for term in self._scores if term.is_active
        }
        return TotalScores(self._top_rows.total[feasible], scores_by_plugin)

    def best_rows(self) -> Rows:
        """Return the rows with the highest total, in order."""
        return self._top_rows.best_rows()

    def ranking(self, first: int, count: int) -> list[int]:
        """Return the chosen row, which is one of the best, and the next best rows."""
        return self._top_rows.ranking(first, min(count, self.candidates))

    @property
    def scoring(self) -> tuple[str, ...]:
        """Names of the score plugins with scores for this class."""
        return self._active_terms().names

    def _active_terms(self) -> ActiveScoreTerms:
        active = self._active
        if active is None:
            active = self._active = ActiveScoreTerms(self._scores)
        return active

    def scores_at(self, rows: list[int]) -> bytes:
        """Return for each of these rows its total and the score of each plugin in `scoring`."""
        results, active = self._row_results, self._active_terms()
        groups = self._top_rows if isinstance(self._top_rows, GroupedTopRows) else None
        packed = []
        for row in rows:
            result, group_score = results.get(row), 0 if groups is None else groups.group_score(row)
            if result is None or result[0] != group_score:
                result = results[row] = (group_score, active.pack_row_scores(row))
            packed.append(result[1])
        return b"".join(packed)

    def rejections(self) -> tuple[RejectionCount, ...]:
        """Return how many rows each plugin rejects, by reason."""
        if self._reasons is None:
            self._reasons = tuple(count_rejections(self._filters, self.rejector))
        return self._reasons

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis that a full attempt would have built."""
        return build_diagnosis(self.snapshot.nodes.names, self._filters, self.rejector)
