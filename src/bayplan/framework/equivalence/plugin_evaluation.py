"""Evaluation of one plugin on every row for one equivalence class of pods, updated incrementally.

Pods with an equal `signature` of a plugin get the same answers. A `PluginEvaluation` starts with one full evaluation.
Later updates evaluate only the rows that changed, or everything if another dependency of the plugin changed
(`PluginTraits.depends_on`: pods elsewhere, services, namespaces). `ClassEvaluation`, which knows the candidates,
requests the scores of a plugin that compares them.

Cost of an update after one placement: a few Python operations for a plugin that looks at pods, a comparison of two
numbers for any other plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import lru_cache, partial
from sys import getrefcount
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    DEPENDS_ON,
    FILTER,
    NORMALIZE,
    PRE_FILTER,
    PRE_SCORE,
    SCORE,
    ExtensionPoint,
)
from bayplan.framework.api.plugin import MAX_SCORE, PreFilterResult
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import Code, Status
from bayplan.framework.equivalence.plugin_role import PluginRole
from bayplan.framework.equivalence.weighted_scores import (
    NO_WEIGHTED_SCORES,
    NotShareable,
    WeightedScores,
    has_out_of_range,
    to_score_vector,
)
from bayplan.framework.runtime.filtering import call_pre_filter, filter_one_by_one, table_rejections
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS, PluginCaller, to_status
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable

R = TypeVar("R")

MAX_SINGLE_ROWS = 2
"""Up to this many changed rows are evaluated one by one, more of them as a table."""

_UNSHARED_REFERENCES = 3
"""Reference count of a vector with two local names and no owner elsewhere. The argument of `getrefcount` counts too."""
_MIN_ROWS_FOR_FULL = 32
_FULL_EVALUATION_SHARE = 8
_MAX_REASONS = 128  # with more reasons, caused by texts that change with the rows, everything is evaluated again

CodeVector = npt.NDArray[np.int8]

_NO_CODES: CodeVector = np.zeros(0, dtype=np.int8)
_NO_SCORES: IntVector = np.zeros(0, dtype=np.int64)
_NO_ROWS: BoolVector = np.zeros(0, dtype=np.bool_)


def needs_full_evaluation(changed: int, rows: int) -> bool:
    """Whether this many changed rows are cheaper to evaluate together with all rows."""
    return changed > max(_MIN_ROWS_FOR_FULL, rows // _FULL_EVALUATION_SHARE)


class EvaluationCounter:
    """Counts full evaluations of all plugins. A user of many evaluations need not check each of them."""

    __slots__ = ("evaluations",)

    def __init__(self) -> None:
        self.evaluations = 0


class FilterReason:
    """A reason of a filter and the rows that have it (None: no row yet)."""

    __slots__ = ("mask", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.mask: BoolVector | None = None


class PluginEvaluation:
    """One plugin, one equivalence class, all rows.

    `changes` grows whenever an answer may have changed. `version` grows whenever answers on unchanged rows may have
    changed, `filter_version` when these are answers of a filter. An `unshared` evaluation belongs to a single pod: the
    plugin returns no signature for it.
    """

    def __init__(
        self,
        role: PluginRole,
        cycle: Cycle,
        caller: PluginCaller,
        counter: EvaluationCounter,
        *,
        unshared: bool = False,
    ) -> None:
        self.role = role
        self._counter = counter
        self.cycle = cycle
        self.unshared = unshared
        # the scores are requested when the candidates are known
        self.compares_candidates = role.compares_candidates or unshared
        # the score of a row does not depend on other rows
        self.scores_row_local = not role.normalizes and not self.compares_candidates
        self._caller = caller
        self.version = self.filter_version = self.changes = 0
        self.has_filter = False  # whether the plugin filters these pods
        self.rejects = False  # whether it may reject a row
        self.codes: CodeVector = _NO_CODES
        self.reasons: list[FilterReason] = []
        self._reason_indexes: dict[str, list[int]] = {}  # text -> indexes in `reasons`
        self.not_applicable = False  # whether the plugin declared that it is not applicable to these pods
        self.has_score = False
        self.all_zero = True  # whether every row is known to score 0
        self.out_of_range = False  # whether a score was ever invalid; this matters on candidates
        self.raw: IntVector = _NO_SCORES
        self._stamp: Hashable = None
        self._scores_stamp: Hashable = None
        self._pre_filter_result: PreFilterResult | Status | None = None
        self._layout = -1
        self._cursor = 0
        # the value of `changes`, whether the scores are the same on all rows, and the weighted scores
        self._weighted: tuple[int, bool, WeightedScores] | None = None
        self._weighted_feasible: BoolVector = _NO_ROWS

    @property
    def is_evaluated(self) -> bool:
        """Whether an evaluation was completed."""
        return self._layout != -1

    def update(self) -> None:
        role, snapshot = self.role, self.cycle.snapshot
        if snapshot.layout != self._layout or (
            role.checks_dependencies
            and (self._depends_on() if role.is_external else role.depends_on(self.cycle)) != self._stamp
        ):
            self.evaluate()
            return
        if role.scores_depend_on is not None and self.has_score:
            self._update_scores()
        journal = snapshot.touched if role.looks_at_pods else snapshot.renewed
        end = journal.end
        if end == self._cursor:
            return
        if self.has_filter or self.has_score:
            rows = journal.since(self._cursor)
            if rows is None or needs_full_evaluation(len(rows), len(snapshot)) or len(self.reasons) > _MAX_REASONS:
                self.evaluate()
                return
            self._refresh(rows)
        self._cursor = end

    def is_still_not_applicable(self) -> bool:
        """Whether the plugin still has nothing to evaluate for these pods.

        A plugin that had something to evaluate is not updated here: the user of its answers updates it.
        """
        role = self.role
        if not self.is_evaluated:
            if role.not_applicable is not None and role.not_applicable(self.cycle):
                self.evaluate()
            return self.is_evaluated
        if self.not_applicable:
            self.update()
        return self.not_applicable

    def update_rows(self, rows: Collection[int], start: int, end: int) -> None:
        """Update a plugin that looks at pods, when the rows that changed since `start` are known."""
        if self._cursor != start or self._layout != self.cycle.snapshot.layout or len(self.reasons) > _MAX_REASONS:
            if self._cursor != end:
                self.update()
            return
        self._refresh(rows)
        self._cursor = end

    def set_row_score(self, row: int, score: int, start: int, end: int) -> None:
        """Update one row whose score is known, and which the plugin does not reject."""
        if self._cursor != start or self._layout != self.cycle.snapshot.layout:
            self.update()
            return
        self.changes += 1
        if self.rejects:
            self._clear_rejections(row)
        if self.has_score:
            self.raw[row] = score
            self.all_zero &= score == 0
        self._cursor = end

    def evaluate(self, remaining: BoolVector | None = None) -> None:
        """Evaluate all rows, or only the `remaining` rows for a plugin that loops over nodes."""
        role, cycle = self.role, self.cycle
        self._layout = -1  # until the evaluation is complete: a plugin may raise
        self.version += 1
        self.changes += 1
        self._counter.evaluations += 1
        self.filter_version += self.has_filter
        self.not_applicable = role.not_applicable is not None and role.not_applicable(cycle)
        if self.not_applicable:
            self._set_not_applicable()
            return
        self.has_filter = self._run_pre_filter() and role.filters
        self.filter_version += self.has_filter
        count = len(cycle.snapshot)
        self.codes = np.zeros(count, dtype=np.int8) if self.has_filter else _no_codes(count)
        self.reasons, self._reason_indexes = [], {}
        self.rejects = False
        if self.has_filter:
            self._caller.points.count(role.name, FILTER.metric_label, count)
            table = cycle.snapshot.table
            if role.needs_remaining_rows and remaining is not None:
                table = table.restricted_to(remaining)
            self._call(FILTER, table, self._filter_all, table)
        scored = (
            not self.compares_candidates and (role.scores or role.pre_scores) and self.pre_score(cycle.snapshot.table)
        )
        self.has_score = scored and role.scores
        if self.has_score:
            self._caller.points.count(role.name, SCORE.metric_label, count)
            self._call(SCORE, cycle.snapshot.table, self._score_all)
            if role.scores_depend_on is not None:
                self._scores_stamp = self.scores_stamp()
        self._save_cursor()

    def _call(self, point: ExtensionPoint, nodes: NodeTable | None, method: Callable[..., R], *args: Any) -> R:
        """Call the plugin. If it raises, the fault is stored for an attempt that makes the same call."""
        try:
            return self._caller.call_timed(self.role.plugin, point, method, *args)
        except NotShareable:
            raise
        except PLUGIN_EXCEPTIONS as fault:
            known = self._caller.record_failure(self.role.plugin, point, fault)
            known.failed_call = (point, None if nodes is None else nodes.rows)
            raise known from fault

    def _set_not_applicable(self) -> None:
        """The plugin has nothing to evaluate for these pods until its dependencies change."""
        name, cycle = self.role.name, self.cycle
        self.has_filter = self.has_score = self.rejects = False
        self.codes, self.reasons, self._reason_indexes = _no_codes(len(cycle.snapshot)), [], {}
        if self.role.pre_filters:
            cycle.skip_filter.add(name)
        if self.role.pre_scores:
            cycle.skip_score.add(name)
        self._save_cursor()

    def _save_cursor(self) -> None:
        role, snapshot = self.role, self.cycle.snapshot
        self._layout = snapshot.layout
        self._cursor = (snapshot.touched if role.looks_at_pods else snapshot.renewed).end
        if role.checks_dependencies:
            self._stamp = self._depends_on()

    def _depends_on(self) -> Hashable:
        role = self.role
        if not role.is_external:
            return role.depends_on(self.cycle)
        try:
            return self._caller.call_timed(role.plugin, DEPENDS_ON, role.depends_on, self.cycle)
        except PLUGIN_EXCEPTIONS as fault:
            raise PluginFault.from_exception(role.plugin, DEPENDS_ON.key, fault) from fault

    def _refresh(self, rows: Collection[int]) -> None:
        self.changes += 1
        if self.role.is_external:
            self._call(FILTER if self.has_filter else SCORE, None, self._evaluate_rows, rows)
        else:
            self._evaluate_rows(rows)

    def _evaluate_rows(self, rows: Collection[int]) -> None:
        role, cycle = self.role, self.cycle
        columns = cycle.snapshot.nodes
        few = len(rows) <= MAX_SINGLE_ROWS
        # a plugin with `scores_depend_on` computes the scores of all rows
        scoring = self.has_score and role.scores_depend_on is None
        if few and (role.filters_one or not self.has_filter) and (role.scores_one or not scoring):
            for row in rows:
                node = NodeInfo(columns, row)
                if self.has_filter:
                    self._filter_one(node)
                if scoring:
                    self.raw[row] = score = role.plugin.score(cycle, node)
                    if score:
                        self.all_zero = False
                        self.out_of_range |= not 0 < score <= MAX_SCORE
            return
        table: NodeTable | None = None
        if self.has_filter:
            if not role.filters_tables:
                for row in rows:
                    self._filter_one(NodeInfo(columns, row))
            else:
                table = NodeTable(columns, np.array(sorted(rows), dtype=np.intp))
                self._clear_rejections(table.rows)
                self._filter_table(table)
        if scoring:
            table = table or NodeTable(columns, np.array(sorted(rows), dtype=np.intp))
            self.raw[table.rows] = scores = to_score_vector(
                role.plugin.score_nodes(cycle, table), role.name, len(table)
            )
            self.all_zero = False
            self.out_of_range |= has_out_of_range(scores)

    def pre_filter(self) -> PreFilterResult | Status:
        """Call PreFilter before the evaluation, which then uses the answer."""
        role, cycle = self.role, self.cycle
        cycle.skip_filter.discard(role.name)
        self._pre_filter_result = pre_filter_result = self._call(PRE_FILTER, None, call_pre_filter, role.plugin, cycle)
        return pre_filter_result

    def take_pre_filter_result(self) -> PreFilterResult | Status | None:
        """Return and clear the early answer of PreFilter, which is valid only now."""
        pre_filter_result, self._pre_filter_result = self._pre_filter_result, None
        return pre_filter_result

    def _run_pre_filter(self) -> bool:
        """Whether the plugin filters these pods."""
        if not self.role.pre_filters:
            self.cycle.skip_filter.discard(self.role.name)
            return True
        if self._pre_filter_result is None:
            self.pre_filter()
        pre_filter_result = self.take_pre_filter_result()
        if not isinstance(pre_filter_result, Status):
            raise NotShareable
        if pre_filter_result.code is Code.SKIP:
            self.cycle.skip_filter.add(self.role.name)
            return False
        self._caller.points.count(self.role.name, PRE_FILTER.metric_label)
        if not pre_filter_result.ok:
            raise NotShareable
        return True

    def _filter_all(self, table: NodeTable) -> None:
        if self.role.filters_tables:
            self._filter_table(table)
            return
        where = table.rows
        found = filter_one_by_one(self.role.plugin, self.cycle, table, np.arange(len(where)))
        for (code, reasons), positions in found.items():
            self._record_rejections(where[positions], code, reasons)

    def _filter_table(self, table: NodeTable) -> None:
        role, no_rows = self.role, table.no_rows_mask
        index = -1
        filter_nodes = partial(table_rejections, role.plugin) if role.is_external else role.plugin.filter_nodes
        for rejection in filter_nodes(self.cycle, table):
            index = self._reason_index(rejection.reason, index)
            if rejection.mask is no_rows or not rejection.mask.any():
                continue
            code = rejection.status_code
            if not code.rejects or len(rejection.mask) != len(table):
                raise NotShareable
            if table.is_whole:
                self._reject(rejection.mask, code)
                self._mask(index)[rejection.mask] = True
                continue
            hit = table.rows[rejection.mask]
            before = self.codes[hit]
            self.codes[hit] = code if code is Code.UNRESOLVABLE else np.where(before == Code.SUCCESS, code, before)
            self._mask(index)[hit] = True
            self.rejects = True

    def _reject(self, mask: BoolVector, code: Code) -> None:
        """Set the code of the rejected rows. The gravest code of a row wins."""
        if code is not Code.UNRESOLVABLE and self.rejects:
            mask = mask & (self.codes == Code.SUCCESS)
        np.copyto(self.codes, np.int8(code), where=mask)
        self.rejects = True

    def _filter_one(self, node: NodeInfo) -> None:
        if self.codes[node.row]:
            self._clear_rejections(node.row)
        result = self.role.plugin.filter(self.cycle, node)
        if result is not None and not (status := to_status(result, self.role.name, FILTER)).ok:
            self._record_rejections(node.row, status.code, status.reasons)

    def _record_rejections(self, rows: Any, code: Code, reasons: tuple[str, ...]) -> None:
        if not code.rejects:
            raise NotShareable
        self.codes[rows] = code
        self.rejects = True
        index = -1
        for text in reasons or ("",):
            index = self._reason_index(text, index)
            self._mask(index)[rows] = True

    def _clear_rejections(self, rows: Any) -> None:
        if not self.rejects:
            return
        self.codes[rows] = Code.SUCCESS
        for reason in self.reasons:
            if reason.mask is not None:
                reason.mask[rows] = False

    def _reason_index(self, text: str, after: int) -> int:
        """Return the index of a reason that follows another reason on a row: the first one behind that of the other.

        This keeps the order of the reasons of each row, whatever the order is on other rows.
        """
        indexes = self._reason_indexes.setdefault(text, [])
        for index in indexes:
            if index > after:
                return index
        indexes.append(len(self.reasons))
        self.reasons.append(FilterReason(text))
        return indexes[-1]

    def _mask(self, index: int) -> BoolVector:
        reason = self.reasons[index]
        if reason.mask is None:
            reason.mask = np.zeros(len(self.codes), dtype=np.bool_)
        return reason.mask

    def pre_score(self, candidates: NodeTable) -> bool:
        """Whether the plugin scores these pods."""
        role, cycle = self.role, self.cycle
        cycle.skip_score.discard(role.name)
        if not role.pre_scores:
            return True
        status = self._call(PRE_SCORE, candidates, self._run_pre_score, candidates)
        if status.code is Code.SKIP:
            cycle.skip_score.add(role.name)
            return False
        self._caller.points.count(role.name, PRE_SCORE.metric_label)
        if not status.ok:
            raise NotShareable
        return True

    def _run_pre_score(self, candidates: NodeTable) -> Status:
        return to_status(self.role.plugin.pre_score(self.cycle, candidates), self.role.name, PRE_SCORE)

    def _score_all(self) -> None:
        table = self.cycle.snapshot.table
        scores = self.role.plugin.score_nodes(self.cycle, table)
        vector = to_score_vector(scores, self.role.name, len(table))
        # The plugin may have returned a column or a stored vector: it is copied unless it is referenced only here.
        is_unshared = vector is scores and vector.flags.owndata and getrefcount(vector) == _UNSHARED_REFERENCES
        self.raw = vector if is_unshared else vector.copy()
        self.out_of_range = has_out_of_range(self.raw)
        self.all_zero = len(self.raw) == 0 or (self.raw.item(0) == 0 and not self.raw.any())

    def weighted(self, feasible: BoolVector, candidates: NodeTable) -> WeightedScores:
        """Return what a plugin that normalizes or compares adds to each total, for these candidates."""
        if self.compares_candidates:
            return self._compute_weighted(feasible, candidates)
        if self._weighted is None or self._weighted[0] != self.changes:
            raw = self.raw
            constant = len(raw) > 0 and not (raw != raw[0]).any()
            self._weighted = (self.changes, constant, self._compute_weighted(feasible, candidates))
            self._weighted_feasible = feasible
        _, constant, known = self._weighted
        # Normalization reads scores alone: scores that are equal on all rows normalize to one value for any candidates.
        if constant or self._weighted_feasible is feasible or (candidates.is_whole and self._weighted_feasible.all()):
            return known
        return self._compute_weighted(feasible, candidates)

    def scores_stamp(self) -> Hashable:
        """Return the dependencies of the scores, for a plugin that declares `scores_depend_on`."""
        assert self.role.scores_depend_on is not None
        return self.role.scores_depend_on(self.cycle)

    def _update_scores(self) -> None:
        """Compute all scores again if their dependencies changed."""
        if self.scores_stamp() == self._scores_stamp:
            return
        self.changes += 1
        self.has_score = self.pre_score(self.cycle.snapshot.table) and self.role.scores
        if self.has_score:
            self._call(SCORE, self.cycle.snapshot.table, self._score_all)
        if self.scores_row_local or not self.has_score:
            self.version += 1
            self._counter.evaluations += 1
        self._scores_stamp = self.scores_stamp()

    def same_for_any_candidates(self) -> WeightedScores | None:
        """Return what a plugin adds to each total if its scores are equal on all rows, otherwise None."""
        known = self._weighted
        return known[2] if known is not None and known[0] == self.changes and known[1] else None

    def reweighted(self, candidates: NodeTable) -> WeightedScores | None:
        """Compute the weighted scores for the same candidates again, by groups.

        None if the plugin returns no groups.
        """
        groups = None if self.role.score_groups is None else self.role.score_groups(self.cycle, candidates)
        return None if groups is None else WeightedScores.from_groups(groups, self.role.weight)

    def _compute_weighted(self, feasible: BoolVector, candidates: NodeTable) -> WeightedScores:
        role, all_rows = self.role, candidates.is_whole
        if self.compares_candidates:
            if not self.pre_score(candidates):
                return NO_WEIGHTED_SCORES
            if role.score_groups is not None:
                groups = self._call(SCORE, candidates, role.score_groups, self.cycle, candidates)
                if groups is not None:
                    return WeightedScores.from_groups(groups, role.weight)
            final = self._call(SCORE, candidates, self._score_candidates, candidates)
            # its dependencies include the counts that it just computed
            if role.checks_dependencies and role.scores_depend_on is None:
                self._stamp = self._depends_on()
        else:
            final = self.raw[feasible]  # a copy: normalization may work in place
        if role.normalizes:
            final = self._call(NORMALIZE, candidates, self._normalize, candidates, final)
        return WeightedScores(final, role.weight, None if all_rows else feasible)

    def _score_candidates(self, candidates: NodeTable) -> IntVector:
        return to_score_vector(self.role.plugin.score_nodes(self.cycle, candidates), self.role.name, len(candidates))

    def _normalize(self, candidates: NodeTable, scores: IntVector) -> IntVector:
        return to_score_vector(
            self.role.plugin.normalize(self.cycle, candidates, scores), self.role.name, len(candidates)
        )

    def row_local_scores(self, feasible: BoolVector) -> IntVector:
        """Return what a plugin with row-local scores adds to each total.

        Rows that are not candidates may have any value.
        """
        if self.out_of_range and has_out_of_range(self.raw[feasible]):
            raise NotShareable
        return self.raw if self.role.weight == 1 else self.raw * self.role.weight


@lru_cache(maxsize=16)
def _no_codes(count: int) -> CodeVector:
    codes = np.zeros(count, dtype=np.int8)
    codes.flags.writeable = False
    return codes
