"""What one plugin says of every row about one kind of pod, kept up to date.

Pods that a plugin cannot tell apart (its `signature` of them is equal) get the same answers, so a `PluginEvaluation` is
made by one full evaluation and then only brought up to date: rows that changed since are asked again, and everything is
asked again when what the plugin depends on elsewhere has changed. Plugins say both next to their filter and score:

- `depends_on(cycle)`: a value that changes whenever answers on untouched rows may change (pods elsewhere, services,
  namespaces). A plugin without it is asked in full every time.
- `looks_at_pods`: false for a plugin that sees of a row only its node.
- `compares_candidates`: its scores depend on which nodes are candidates, so whoever knows the candidates asks for them.

Cost of catching up with one placement: a few Python operations for a plugin that looks at pods, a comparison of two
numbers for one that does not.
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
"""Up to so many changed rows are asked about one by one, more of them as a table."""

_UNSHARED_REFERENCES = 3
"""References to a vector under two names here, and nowhere else: these and the one that is passed to count them."""
_MIN_ROWS_FOR_FULL = 32
_FULL_EVALUATION_SHARE = 8
_MAX_REASONS = 128  # with more, from texts that change with the rows, the rows of now are asked afresh

CodeVector = npt.NDArray[np.int8]

_NO_CODES: CodeVector = np.zeros(0, dtype=np.int8)
_NO_SCORES: IntVector = np.zeros(0, dtype=np.int64)
_NO_ROWS: BoolVector = np.zeros(0, dtype=np.bool_)


def needs_full_evaluation(changed: int, rows: int) -> bool:
    """Whether so many changed rows are better evaluated together with all others."""
    return changed > max(_MIN_ROWS_FOR_FULL, rows // _FULL_EVALUATION_SHARE)


class EvaluationCounter:
    """Counts full evaluations of any part, so that whoever follows many of them need not look at each."""

    __slots__ = ("evaluations",)

    def __init__(self) -> None:
        self.evaluations = 0


class FilterReason:
    """A reason that a filter gives, and the rows it holds for (None: not yet for any)."""

    __slots__ = ("mask", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.mask: BoolVector | None = None


class PluginEvaluation:
    """One plugin, one kind of pod, all rows.

    `changes` grows whenever an answer may have changed, `version` whenever answers may have changed on rows that
    nothing happened to, `filter_version` when these are answers of a filter. A part of one pod's `unshared` is used for
    that pod alone: of a plugin that signs nothing.
    """

    def __init__(
        self, role: PluginRole, cycle: Cycle, boundary: PluginCaller, clock: EvaluationCounter, *, own: bool = False
    ) -> None:
        self.role = role
        self._clock = clock
        self.cycle = cycle
        self.unshared = own
        self.compares_candidates = (
            role.compares_candidates or own
        )  # whose scores are asked for once the candidates are known
        self.scores_row_local = (
            not role.normalizes and not self.compares_candidates
        )  # on each row, whatever the others are
        self._boundary = boundary
        self.version = self.filter_version = self.changes = 0
        self.has_filter = False  # whether the plugin has something to say about these pods
        self.rejects = False  # whether it may reject some row
        self.codes: CodeVector = _NO_CODES
        self.reasons: list[FilterReason] = []
        self._places: dict[str, list[int]] = {}  # of each text among the reasons
        self.sits_out = False  # the plugin said at once that it has nothing to say of these pods
        self.has_score = False
        self.all_zero = True  # whether it is known to give 0 to every row
        self.out_of_range = False  # whether it ever gave what is no score; that matters on candidates
        self.raw: IntVector = _NO_SCORES
        self._stamp: Hashable = None
        self._scores_stamp: Hashable = None
        self._answer: PreFilterResult | Status | None = None
        self._layout = -1
        self._cursor = 0
        self._weighted: tuple[int, bool, WeightedScores] | None = (
            None  # at which `changes`, and whether for any candidates
        )
        self._weighted_for: BoolVector = _NO_ROWS

    @property
    def is_evaluated(self) -> bool:
        """Whether it was ever evaluated to the end."""
        return self._layout != -1

    # keeping up -------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Follow the snapshot."""
        role, snapshot = self.role, self.cycle.snapshot
        if snapshot.layout != self._layout or (
            role.checks_dependencies
            and (self._depends_on() if role.is_external else role.depends_on(self.cycle)) != self._stamp
        ):
            self.evaluate()
            return
        if role.has_scores_version and self.has_score:
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
        """Whether the plugin has nothing to say about these pods now.

        One that had something to say is not asked: whoever needs its answers brings them up to date.
        """
        role = self.role
        if not self.is_evaluated:
            if role.sits_out is not None and role.sits_out(self.cycle):
                self.evaluate()
            return self.is_evaluated
        if self.sits_out:
            self.update()
        return self.sits_out

    def update_rows(self, rows: Collection[int], start: int, end: int) -> None:
        """The same for a plugin that looks at pods, when these rows are known to have been touched since `start`."""
        if self._cursor != start or self._layout != self.cycle.snapshot.layout or len(self.reasons) > _MAX_REASONS:
            if self._cursor != end:
                self.update()
            return
        self._refresh(rows)
        self._cursor = end

    def set_row_score(self, row: int, score: int, start: int, end: int) -> None:
        """The same for one row where the plugin rejects nothing and gives this score, which is known already."""
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

    def evaluate(self, left: BoolVector | None = None) -> None:
        """Ask about everything; of a plugin that walks over nodes, only about the rows that are `left`."""
        role, cycle = self.role, self.cycle
        self._layout = -1  # until all is answered: a plugin may break off halfway
        self.version += 1
        self.changes += 1
        self._clock.evaluations += 1
        self.filter_version += self.has_filter
        self.sits_out = role.sits_out is not None and role.sits_out(cycle)
        if self.sits_out:
            self._set_not_applicable()
            return
        self.has_filter = self._run_pre_filter() and role.filters
        self.filter_version += self.has_filter
        count = len(cycle.snapshot)
        self.codes = np.zeros(count, dtype=np.int8) if self.has_filter else _no_codes(count)
        self.reasons, self._places = [], {}
        self.rejects = False
        if self.has_filter:
            self._boundary.points.count(role.name, FILTER.metric_label, count)
            table = cycle.snapshot.table
            if role.needs_remaining_rows and left is not None:
                table = table.restricted_to(left)
            self._call(FILTER, table, self._filter_all, table)
        wanted = (
            not self.compares_candidates and (role.scores or role.pre_scores) and self.pre_score(cycle.snapshot.table)
        )
        self.has_score = wanted and role.scores
        if self.has_score:
            self._boundary.points.count(role.name, SCORE.metric_label, count)
            self._call(SCORE, cycle.snapshot.table, self._score_all)
            if role.has_scores_version:
                self._scores_stamp = self.scores_stamp()
        self._mark()

    def _call(self, point: ExtensionPoint, nodes: NodeTable | None, method: Callable[..., R], *args: Any) -> R:
        """Ask the plugin. What it raises is its fault, which an attempt that asks the same does not ask for again."""
        try:
            return self._boundary.call_timed(self.role.plugin, point, method, *args)
        except NotShareable:
            raise
        except PLUGIN_EXCEPTIONS as fault:
            known = self._boundary.record_failure(self.role.plugin, point, fault)
            known.question = (point, None if nodes is None else nodes.rows)
            raise known from fault

    def _set_not_applicable(self) -> None:
        """The plugin has nothing to say about these pods, until what it depends on changes."""
        name, cycle = self.role.name, self.cycle
        self.has_filter = self.has_score = self.rejects = False
        self.codes, self.reasons, self._places = _no_codes(len(cycle.snapshot)), [], {}
        if self.role.pre_filters:
            cycle.skip_filter.add(name)
        if self.role.pre_scores:
            cycle.skip_score.add(name)
        self._mark()

    def _mark(self) -> None:
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
            return self._boundary.call_timed(role.plugin, DEPENDS_ON, role.depends_on, self.cycle)
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
        scoring = (
            self.has_score and not role.has_scores_version
        )  # whose scores depend on more than rows is asked for all of them
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

    # filtering --------------------------------------------------------------------------------------------------

    def pre_filter(self) -> PreFilterResult | Status:
        """Ask PreFilter, ahead of the evaluation that this answer then is a part of."""
        role, cycle = self.role, self.cycle
        cycle.skip_filter.discard(role.name)
        self._answer = answer = self._call(PRE_FILTER, None, call_pre_filter, role.plugin, cycle)
        return answer

    def take_pre_filter_answer(self) -> PreFilterResult | Status | None:
        """What PreFilter said ahead, for whoever uses it: it is true of this moment alone."""
        answer, self._answer = self._answer, None
        return answer

    def _run_pre_filter(self) -> bool:
        """Whether the plugin wants to filter."""
        if not self.role.pre_filters:
            self.cycle.skip_filter.discard(self.role.name)
            return True
        if self._answer is None:
            self.pre_filter()
        answer = self.take_pre_filter_answer()
        if not isinstance(answer, Status):
            raise NotShareable
        if answer.code is Code.SKIP:
            self.cycle.skip_filter.add(self.role.name)
            return False
        self._boundary.points.count(self.role.name, PRE_FILTER.metric_label)
        if not answer.ok:
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
        role, nobody = self.role, table.no_rows_mask
        place = -1
        ask = partial(table_rejections, role.plugin) if role.is_external else role.plugin.filter_nodes
        for rejection in ask(self.cycle, table):
            place = self._reason_index(rejection.reason, place)
            if rejection.mask is nobody or not rejection.mask.any():
                continue
            code = rejection.status_code
            if not code.rejects or len(rejection.mask) != len(table):
                raise NotShareable
            if table.is_whole:
                self._reject(rejection.mask, code)
                self._mask(place)[rejection.mask] = True
                continue
            hit = table.rows[rejection.mask]
            before = self.codes[hit]
            self.codes[hit] = code if code is Code.UNRESOLVABLE else np.where(before == Code.SUCCESS, code, before)
            self._mask(place)[hit] = True
            self.rejects = True

    def _reject(self, mask: BoolVector, code: Code) -> None:
        """The gravest code of a row stays."""
        if code is not Code.UNRESOLVABLE and self.rejects:
            mask = mask & (self.codes == Code.SUCCESS)
        np.copyto(self.codes, np.int8(code), where=mask)
        self.rejects = True

    def _filter_one(self, node: NodeInfo) -> None:
        if self.codes[node.row]:
            self._clear_rejections(node.row)
        answer = self.role.plugin.filter(self.cycle, node)
        if answer is not None and not (status := to_status(answer, self.role.name, FILTER)).ok:
            self._record_rejections(node.row, status.code, status.reasons)

    def _record_rejections(self, rows: Any, code: Code, reasons: tuple[str, ...]) -> None:
        if not code.rejects:
            raise NotShareable
        self.codes[rows] = code
        self.rejects = True
        place = -1
        for text in reasons or ("",):
            place = self._reason_index(text, place)
            self._mask(place)[rows] = True

    def _clear_rejections(self, rows: Any) -> None:
        if not self.rejects:
            return
        self.codes[rows] = Code.SUCCESS
        for given in self.reasons:
            if given.mask is not None:
                given.mask[rows] = False

    def _reason_index(self, text: str, after: int) -> int:
        """Where a reason belongs that a row has after another one: at the first place for it behind that one's.

        So every row reads its reasons in the order in which it was given them, whatever the order is on other rows.
        """
        places = self._places.setdefault(text, [])
        for place in places:
            if place > after:
                return place
        places.append(len(self.reasons))
        self.reasons.append(FilterReason(text))
        return places[-1]

    def _mask(self, place: int) -> BoolVector:
        given = self.reasons[place]
        if given.mask is None:
            given.mask = np.zeros(len(self.codes), dtype=np.bool_)
        return given.mask

    # scoring ----------------------------------------------------------------------------------------------------

    def pre_score(self, candidates: NodeTable) -> bool:
        """Whether the plugin wants to score."""
        role, cycle = self.role, self.cycle
        cycle.skip_score.discard(role.name)
        if not role.pre_scores:
            return True
        status = self._call(PRE_SCORE, candidates, self._run_pre_score, candidates)
        if status.code is Code.SKIP:
            cycle.skip_score.add(role.name)
            return False
        self._boundary.points.count(role.name, PRE_SCORE.metric_label)
        if not status.ok:
            raise NotShareable
        return True

    def _run_pre_score(self, candidates: NodeTable) -> Status:
        return to_status(self.role.plugin.pre_score(self.cycle, candidates), self.role.name, PRE_SCORE)

    def _score_all(self) -> None:
        table = self.cycle.snapshot.table
        answer = self.role.plugin.score_nodes(self.cycle, table)
        vector = to_score_vector(answer, self.role.name, len(table))
        # What a plugin returned may be a column, or something it keeps: it is copied unless nobody else knows it.
        ours = vector is answer and vector.flags.owndata and getrefcount(vector) == _UNSHARED_REFERENCES
        self.raw = vector if ours else vector.copy()
        self.out_of_range = has_out_of_range(self.raw)
        self.all_zero = len(self.raw) == 0 or (self.raw.item(0) == 0 and not self.raw.any())

    def weighted(self, feasible: BoolVector, candidates: NodeTable) -> WeightedScores:
        """What a plugin that normalises or compares adds to each total, when these rows are the candidates."""
        if self.compares_candidates:
            return self._compute_weighted(feasible, candidates)
        if self._weighted is None or self._weighted[0] != self.changes:
            raw = self.raw
            everywhere = len(raw) > 0 and not (raw != raw[0]).any()
            self._weighted = (self.changes, everywhere, self._compute_weighted(feasible, candidates))
            self._weighted_for = feasible
        _, everywhere, known = self._weighted
        # Normalising looks at scores alone, so what is the same on all rows comes to the same on any of them.
        if everywhere or self._weighted_for is feasible or (candidates.is_whole and self._weighted_for.all()):
            return known
        return self._compute_weighted(feasible, candidates)

    def scores_stamp(self) -> Hashable:
        """What the scores depend on, of a plugin that says so apart."""
        stamp: Hashable = self.role.plugin.scores_depend_on(self.cycle)
        return stamp

    def _update_scores(self) -> None:
        """Ask for all scores again if they may have moved."""
        if self.scores_stamp() == self._scores_stamp:
            return
        self.changes += 1
        self.has_score = self.pre_score(self.cycle.snapshot.table) and self.role.scores
        if self.has_score:
            self._call(SCORE, self.cycle.snapshot.table, self._score_all)
        if self.scores_row_local or not self.has_score:
            self.version += 1
            self._clock.evaluations += 1
        self._scores_stamp = self.scores_stamp()

    def same_for_any_candidates(self) -> WeightedScores | None:
        """What a plugin adds to each total whose scores are the same on all rows; None where they are not."""
        known = self._weighted
        return known[2] if known is not None and known[0] == self.changes and known[1] else None

    def reweighted(self, candidates: NodeTable) -> WeightedScores | None:
        """The same once more for the same candidates, by groups; None where that takes more."""
        groups = self.role.plugin.score_groups(self.cycle, candidates) if self.role.has_score_groups else None
        return None if groups is None else WeightedScores.from_groups(groups, self.role.weight)

    def _compute_weighted(self, feasible: BoolVector, candidates: NodeTable) -> WeightedScores:
        role, all_rows = self.role, candidates.is_whole
        if self.compares_candidates:
            if not self.pre_score(candidates):
                return NO_WEIGHTED_SCORES
            if role.has_score_groups:
                groups = self._call(SCORE, candidates, role.plugin.score_groups, self.cycle, candidates)
                if groups is not None:
                    return WeightedScores.from_groups(groups, role.weight)
            final = self._call(SCORE, candidates, self._scores_of, candidates)
            if (
                role.checks_dependencies and not role.has_scores_version
            ):  # what it just counted is what it depends on from now on
                self._stamp = self._depends_on()
        else:
            final = self.raw[feasible]  # a copy: normalising may work in place
        if role.normalizes:
            final = self._call(NORMALIZE, candidates, self._normalized, candidates, final)
        return WeightedScores(final, role.weight, None if all_rows else feasible)

    def _scores_of(self, candidates: NodeTable) -> IntVector:
        return to_score_vector(self.role.plugin.score_nodes(self.cycle, candidates), self.role.name, len(candidates))

    def _normalized(self, candidates: NodeTable, scores: IntVector) -> IntVector:
        return to_score_vector(
            self.role.plugin.normalize(self.cycle, candidates, scores), self.role.name, len(candidates)
        )

    def row_local_scores(self, feasible: BoolVector) -> IntVector:
        """What a plugin that scores alone adds to each total; what it says of others than candidates is no matter."""
        if self.out_of_range and has_out_of_range(self.raw[feasible]):
            raise NotShareable
        return self.raw if self.role.weight == 1 else self.raw * self.role.weight


@lru_cache(maxsize=16)
def _no_codes(count: int) -> CodeVector:
    codes = np.zeros(count, dtype=np.int8)
    codes.flags.writeable = False
    return codes
