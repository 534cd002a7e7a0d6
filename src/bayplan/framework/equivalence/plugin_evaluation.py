"""What one plugin says of every row about one kind of pod, kept up to date.

Pods that a plugin cannot tell apart (its `signature` of them is equal) get the same answers, so a `Part` is made by one
full evaluation and then only brought up to date: rows that changed since are asked again, and everything is asked
again when what the plugin depends on elsewhere has changed. Plugins say both next to their filter and score:

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
    Point,
)
from bayplan.framework.api.plugin import MAX_SCORE, NarrowTo
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import Code, Status
from bayplan.framework.equivalence.plugin_role import Role
from bayplan.framework.equivalence.weighted_scores import (
    NOTHING,
    CannotShare,
    Weighted,
    as_vector,
    out_of_range,
)
from bayplan.framework.runtime.filtering import pre_filter_answer, refusals, rejections_of
from bayplan.framework.runtime.plugin_call import FAULTS, Boundary, as_status
from bayplan.snapshot import BoolVector, IntVector, NodeTable, NodeView

R = TypeVar("R")

FEW_ROWS = 2
"""Up to so many changed rows are asked about one by one, more of them as a table."""

_OURS_ALONE = 3
"""References to a vector under two names here, and nowhere else: these and the one that is passed to count them."""
_ALWAYS_REFRESHED = 32
_REFRESHED_SHARE = 8
_MOST_REASONS = 128  # with more, from texts that change with the rows, the rows of now are asked afresh

CodeVector = npt.NDArray[np.int8]

_NO_CODES: CodeVector = np.zeros(0, dtype=np.int8)
_NO_SCORES: IntVector = np.zeros(0, dtype=np.int64)
_NO_ROWS: BoolVector = np.zeros(0, dtype=np.bool_)


def too_many(changed: int, rows: int) -> bool:
    """Whether so many changed rows are better evaluated together with all others."""
    return changed > max(_ALWAYS_REFRESHED, rows // _REFRESHED_SHARE)


class EvaluationClock:
    """Counts full evaluations of any part, so that whoever follows many of them need not look at each."""

    __slots__ = ("evaluations",)

    def __init__(self) -> None:
        self.evaluations = 0


class Given:
    """A reason that a filter gives, and the rows it holds for (None: not yet for any)."""

    __slots__ = ("mask", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.mask: BoolVector | None = None


class Part:
    """One plugin, one kind of pod, all rows.

    `changes` grows whenever an answer may have changed, `version` whenever answers may have changed on rows that
    nothing happened to, `filter_version` when these are answers of a filter. A part of one pod's `own` is used for
    that pod alone: of a plugin that signs nothing.
    """

    def __init__(
        self, role: Role, cycle: Cycle, boundary: Boundary, clock: EvaluationClock, *, own: bool = False
    ) -> None:
        self.role = role
        self._clock = clock
        self.cycle = cycle
        self.own = own
        self.compares = role.compares or own  # whose scores are asked for once the candidates are known
        self.scores_alone = not role.normalizes and not self.compares  # on each row, whatever the others are
        self._boundary = boundary
        self.version = self.filter_version = self.changes = 0
        self.filtering = False  # whether the plugin has something to say about these pods
        self.rejects = False  # whether it may reject some row
        self.codes: CodeVector = _NO_CODES
        self.reasons: list[Given] = []
        self._places: dict[str, list[int]] = {}  # of each text among the reasons
        self.sits_out = False  # the plugin said at once that it has nothing to say of these pods
        self.scoring = False
        self.silent = True  # whether it is known to give 0 to every row
        self.wild = False  # whether it ever gave what is no score; that matters on candidates
        self.raw: IntVector = _NO_SCORES
        self._stamp: Hashable = None
        self._scores_stamp: Hashable = None
        self._answer: NarrowTo | Status | None = None
        self._layout = -1
        self._cursor = 0
        self._weighted: tuple[int, bool, Weighted] | None = None  # at which `changes`, and whether for any candidates
        self._weighted_for: BoolVector = _NO_ROWS

    @property
    def is_known(self) -> bool:
        """Whether it was ever evaluated to the end."""
        return self._layout != -1

    # keeping up -------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Follow the snapshot."""
        role, snapshot = self.role, self.cycle.snapshot
        if snapshot.layout != self._layout or (
            role.watches and (self._depends_on() if role.outside else role.depends_on(self.cycle)) != self._stamp
        ):
            self.evaluate()
            return
        if role.moves and self.scoring:
            self._catch_up_scores()
        journal = snapshot.touched if role.looks_at_pods else snapshot.renewed
        end = journal.end
        if end == self._cursor:
            return
        if self.filtering or self.scoring:
            rows = journal.since(self._cursor)
            if rows is None or too_many(len(rows), len(snapshot)) or len(self.reasons) > _MOST_REASONS:
                self.evaluate()
                return
            self._refresh(rows)
        self._cursor = end

    def still_sits_out(self) -> bool:
        """Whether the plugin has nothing to say about these pods now.

        One that had something to say is not asked: whoever needs its answers brings them up to date.
        """
        role = self.role
        if not self.is_known:
            if role.sits_out is not None and role.sits_out(self.cycle):
                self.evaluate()
            return self.is_known
        if self.sits_out:
            self.catch_up()
        return self.sits_out

    def follow(self, rows: Collection[int], start: int, end: int) -> None:
        """The same for a plugin that looks at pods, when these rows are known to have been touched since `start`."""
        if self._cursor != start or self._layout != self.cycle.snapshot.layout or len(self.reasons) > _MOST_REASONS:
            if self._cursor != end:
                self.catch_up()
            return
        self._refresh(rows)
        self._cursor = end

    def accept(self, row: int, score: int, start: int, end: int) -> None:
        """The same for one row where the plugin rejects nothing and gives this score, which is known already."""
        if self._cursor != start or self._layout != self.cycle.snapshot.layout:
            self.catch_up()
            return
        self.changes += 1
        if self.rejects:
            self._forget(row)
        if self.scoring:
            self.raw[row] = score
            self.silent &= score == 0
        self._cursor = end

    def evaluate(self, left: BoolVector | None = None) -> None:
        """Ask about everything; of a plugin that walks over nodes, only about the rows that are `left`."""
        role, cycle = self.role, self.cycle
        self._layout = -1  # until all is answered: a plugin may break off halfway
        self.version += 1
        self.changes += 1
        self._clock.evaluations += 1
        self.filter_version += self.filtering
        self.sits_out = role.sits_out is not None and role.sits_out(cycle)
        if self.sits_out:
            self._sit_out()
            return
        self.filtering = self._pre_filtered() and role.filters
        self.filter_version += self.filtering
        count = len(cycle.snapshot)
        self.codes = np.zeros(count, dtype=np.int8) if self.filtering else _no_codes(count)
        self.reasons, self._places = [], {}
        self.rejects = False
        if self.filtering:
            self._boundary.points.count(role.name, FILTER.label, count)
            table = cycle.snapshot.table
            if role.wants_rows_left and left is not None:
                table = table.narrowed(left)
            self._ask(FILTER, table, self._filter_all, table)
        wanted = not self.compares and (role.scores or role.pre_scores) and self.pre_score(cycle.snapshot.table)
        self.scoring = wanted and role.scores
        if self.scoring:
            self._boundary.points.count(role.name, SCORE.label, count)
            self._ask(SCORE, cycle.snapshot.table, self._score_all)
            if role.moves:
                self._scores_stamp = self.scores_stamp()
        self._mark()

    def _ask(self, point: Point, nodes: NodeTable | None, method: Callable[..., R], *args: Any) -> R:
        """Ask the plugin. What it raises is its fault, which an attempt that asks the same does not ask for again."""
        try:
            return self._boundary.timed(self.role.plugin, point, method, *args)
        except CannotShare:
            raise
        except FAULTS as fault:
            known = self._boundary.failed(self.role.plugin, point, fault)
            known.question = (point, None if nodes is None else nodes.rows)
            raise known from fault

    def _sit_out(self) -> None:
        """The plugin has nothing to say about these pods, until what it depends on changes."""
        name, cycle = self.role.name, self.cycle
        self.filtering = self.scoring = self.rejects = False
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
        if role.watches:
            self._stamp = self._depends_on()

    def _depends_on(self) -> Hashable:
        role = self.role
        if not role.outside:
            return role.depends_on(self.cycle)
        try:
            return self._boundary.timed(role.plugin, DEPENDS_ON, role.depends_on, self.cycle)
        except FAULTS as fault:
            raise PluginFault.raised(role.plugin, DEPENDS_ON.key, fault) from fault

    def _refresh(self, rows: Collection[int]) -> None:
        self.changes += 1
        if self.role.outside:
            self._ask(FILTER if self.filtering else SCORE, None, self._ask_again, rows)
        else:
            self._ask_again(rows)

    def _ask_again(self, rows: Collection[int]) -> None:
        role, cycle = self.role, self.cycle
        columns = cycle.snapshot.nodes
        few = len(rows) <= FEW_ROWS
        scoring = self.scoring and not role.moves  # whose scores depend on more than rows is asked for all of them
        if few and (role.filters_one or not self.filtering) and (role.scores_one or not scoring):
            for row in rows:
                node = NodeView(columns, row)
                if self.filtering:
                    self._filter_one(node)
                if scoring:
                    self.raw[row] = score = role.plugin.score(cycle, node)
                    if score:
                        self.silent = False
                        self.wild |= not 0 < score <= MAX_SCORE
            return
        table: NodeTable | None = None
        if self.filtering:
            if not role.filters_tables:
                for row in rows:
                    self._filter_one(NodeView(columns, row))
            else:
                table = NodeTable(columns, np.array(sorted(rows), dtype=np.intp))
                self._forget(table.rows)
                self._filter_table(table)
        if scoring:
            table = table or NodeTable(columns, np.array(sorted(rows), dtype=np.intp))
            self.raw[table.rows] = scores = as_vector(role.plugin.score_nodes(cycle, table), role.name, len(table))
            self.silent = False
            self.wild |= out_of_range(scores)

    # filtering --------------------------------------------------------------------------------------------------

    def pre_filter(self) -> NarrowTo | Status:
        """Ask PreFilter, ahead of the evaluation that this answer then is a part of."""
        role, cycle = self.role, self.cycle
        cycle.skip_filter.discard(role.name)
        self._answer = answer = self._ask(PRE_FILTER, None, pre_filter_answer, role.plugin, cycle)
        return answer

    def take_answer(self) -> NarrowTo | Status | None:
        """What PreFilter said ahead, for whoever uses it: it is true of this moment alone."""
        answer, self._answer = self._answer, None
        return answer

    def _pre_filtered(self) -> bool:
        """Whether the plugin wants to filter."""
        if not self.role.pre_filters:
            self.cycle.skip_filter.discard(self.role.name)
            return True
        if self._answer is None:
            self.pre_filter()
        answer = self.take_answer()
        if not isinstance(answer, Status):
            raise CannotShare
        if answer.code is Code.SKIP:
            self.cycle.skip_filter.add(self.role.name)
            return False
        self._boundary.points.count(self.role.name, PRE_FILTER.label)
        if not answer.ok:
            raise CannotShare
        return True

    def _filter_all(self, table: NodeTable) -> None:
        if self.role.filters_tables:
            self._filter_table(table)
            return
        where = table.rows
        found = refusals(self.role.plugin, self.cycle, table, np.arange(len(where)))
        for (code, reasons), positions in found.items():
            self._note(where[positions], code, reasons)

    def _filter_table(self, table: NodeTable) -> None:
        role, nobody = self.role, table.nobody
        place = -1
        ask = partial(rejections_of, role.plugin) if role.outside else role.plugin.filter_nodes
        for rejection in ask(self.cycle, table):
            place = self._place(rejection.reason, place)
            if rejection.mask is nobody or not rejection.mask.any():
                continue
            code = rejection.status_code
            if not code.rejects or len(rejection.mask) != len(table):
                raise CannotShare
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

    def _filter_one(self, node: NodeView) -> None:
        if self.codes[node.row]:
            self._forget(node.row)
        answer = self.role.plugin.filter(self.cycle, node)
        if answer is not None and not (status := as_status(answer, self.role.name, FILTER)).ok:
            self._note(node.row, status.code, status.reasons)

    def _note(self, rows: Any, code: Code, reasons: tuple[str, ...]) -> None:
        if not code.rejects:
            raise CannotShare
        self.codes[rows] = code
        self.rejects = True
        place = -1
        for text in reasons or ("",):
            place = self._place(text, place)
            self._mask(place)[rows] = True

    def _forget(self, rows: Any) -> None:
        if not self.rejects:
            return
        self.codes[rows] = Code.SUCCESS
        for given in self.reasons:
            if given.mask is not None:
                given.mask[rows] = False

    def _place(self, text: str, after: int) -> int:
        """Where a reason belongs that a row has after another one: at the first place for it behind that one's.

        So every row reads its reasons in the order in which it was given them, whatever the order is on other rows.
        """
        places = self._places.setdefault(text, [])
        for place in places:
            if place > after:
                return place
        places.append(len(self.reasons))
        self.reasons.append(Given(text))
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
        status = self._ask(PRE_SCORE, candidates, self._pre_scored, candidates)
        if status.code is Code.SKIP:
            cycle.skip_score.add(role.name)
            return False
        self._boundary.points.count(role.name, PRE_SCORE.label)
        if not status.ok:
            raise CannotShare
        return True

    def _pre_scored(self, candidates: NodeTable) -> Status:
        return as_status(self.role.plugin.pre_score(self.cycle, candidates), self.role.name, PRE_SCORE)

    def _score_all(self) -> None:
        table = self.cycle.snapshot.table
        answer = self.role.plugin.score_nodes(self.cycle, table)
        vector = as_vector(answer, self.role.name, len(table))
        # What a plugin returned may be a column, or something it keeps: it is copied unless nobody else knows it.
        ours = vector is answer and vector.flags.owndata and getrefcount(vector) == _OURS_ALONE
        self.raw = vector if ours else vector.copy()
        self.wild = out_of_range(self.raw)
        self.silent = len(self.raw) == 0 or (self.raw.item(0) == 0 and not self.raw.any())

    def weighted(self, feasible: BoolVector, candidates: NodeTable) -> Weighted:
        """What a plugin that normalises or compares adds to each total, when these rows are the candidates."""
        if self.compares:
            return self._weigh(feasible, candidates)
        if self._weighted is None or self._weighted[0] != self.changes:
            raw = self.raw
            everywhere = len(raw) > 0 and not (raw != raw[0]).any()
            self._weighted = (self.changes, everywhere, self._weigh(feasible, candidates))
            self._weighted_for = feasible
        _, everywhere, known = self._weighted
        # Normalising looks at scores alone, so what is the same on all rows comes to the same on any of them.
        if everywhere or self._weighted_for is feasible or (candidates.is_whole and self._weighted_for.all()):
            return known
        return self._weigh(feasible, candidates)

    def scores_stamp(self) -> Hashable:
        """What the scores depend on, of a plugin that says so apart."""
        stamp: Hashable = self.role.plugin.scores_depend_on(self.cycle)
        return stamp

    def _catch_up_scores(self) -> None:
        """Ask for all scores again if they may have moved."""
        if self.scores_stamp() == self._scores_stamp:
            return
        self.changes += 1
        self.scoring = self.pre_score(self.cycle.snapshot.table) and self.role.scores
        if self.scoring:
            self._ask(SCORE, self.cycle.snapshot.table, self._score_all)
        if self.scores_alone or not self.scoring:
            self.version += 1
            self._clock.evaluations += 1
        self._scores_stamp = self.scores_stamp()

    def same_for_any_candidates(self) -> Weighted | None:
        """What a plugin adds to each total whose scores are the same on all rows; None where they are not."""
        known = self._weighted
        return known[2] if known is not None and known[0] == self.changes and known[1] else None

    def weighted_again(self, candidates: NodeTable) -> Weighted | None:
        """The same once more for the same candidates, by groups; None where that takes more."""
        groups = self.role.plugin.score_groups(self.cycle, candidates) if self.role.groups else None
        return None if groups is None else Weighted.of_groups(groups, self.role.weight)

    def _weigh(self, feasible: BoolVector, candidates: NodeTable) -> Weighted:
        role, all_rows = self.role, candidates.is_whole
        if self.compares:
            if not self.pre_score(candidates):
                return NOTHING
            if role.groups:
                groups = self._ask(SCORE, candidates, role.plugin.score_groups, self.cycle, candidates)
                if groups is not None:
                    return Weighted.of_groups(groups, role.weight)
            final = self._ask(SCORE, candidates, self._scores_of, candidates)
            if role.watches and not role.moves:  # what it just counted is what it depends on from now on
                self._stamp = self._depends_on()
        else:
            final = self.raw[feasible]  # a copy: normalising may work in place
        if role.normalizes:
            final = self._ask(NORMALIZE, candidates, self._normalized, candidates, final)
        return Weighted(final, role.weight, None if all_rows else feasible)

    def _scores_of(self, candidates: NodeTable) -> IntVector:
        return as_vector(self.role.plugin.score_nodes(self.cycle, candidates), self.role.name, len(candidates))

    def _normalized(self, candidates: NodeTable, scores: IntVector) -> IntVector:
        return as_vector(self.role.plugin.normalize(self.cycle, candidates, scores), self.role.name, len(candidates))

    def alone(self, feasible: BoolVector) -> IntVector:
        """What a plugin that scores alone adds to each total; what it says of others than candidates is no matter."""
        if self.wild and out_of_range(self.raw[feasible]):
            raise CannotShare
        return self.raw if self.role.weight == 1 else self.raw * self.role.weight


@lru_cache(maxsize=16)
def _no_codes(count: int) -> CodeVector:
    codes = np.zeros(count, dtype=np.int8)
    codes.flags.writeable = False
    return codes
