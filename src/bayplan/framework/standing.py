"""What one class of pods knows about every row: who rejects it, why, and what each score plugin gives it.

Pods of one class get the same answers, so a `Standing` is made by one full evaluation and then only brought up to
date: rows that changed since are asked again, and a plugin that depends on more than its own row is asked again in
full when what it depends on has changed. Plugins say both next to their filter and score:

- `depends_on(cycle)`: a value that changes whenever answers on untouched rows may change (pods elsewhere, services,
  namespaces). A plugin without it is asked in full every time.
- `looks_at_pods`: false for a plugin that sees of a row only its node.
- `compares_candidates`: its scores depend on which nodes are candidates, so they are asked anew when those change.

Totals are sums over all rows with -1 where the pod does not fit, so the best row is one `argmax` away. Cost of a
refresh after one placement: a few Python operations for each plugin that looks at pods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bayplan.framework.boundary import Boundary, as_status
from bayplan.framework.cycle import Cycle
from bayplan.framework.diagnosis import Diagnosis, Reason, Verdicts
from bayplan.framework.plugin import MAX_SCORE, row_alone
from bayplan.framework.points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.scoring import Scores
from bayplan.framework.status import Code, Status
from bayplan.snapshot import BoolVector, IntVector, NodeTable, NodeView, RowVector, Snapshot

_FEW_ROWS = 2
"""Up to so many changed rows are asked about one by one, more of them as a table."""

_ALWAYS_REFRESHED = 32
_REFRESHED_SHARE = 8
"""When more than so many rows, and more than one row in so many, have changed, everything is evaluated in one go."""

CodeVector = npt.NDArray[np.int8]


class CannotStand(Exception):
    """This pod needs a full attempt: a plugin rejects it outright, narrows the nodes, breaks, or answers nonsense."""


@dataclass(slots=True)
class FilterPart:
    """One filter's own answer on every row, whatever the filters before it say."""

    plugin: Any
    active: bool = False
    looks_at_pods: bool = True
    codes: CodeVector = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    reasons: dict[str, BoolVector | None] = field(default_factory=dict)  # in the order the filter gives them
    stamp: Hashable = None

    def __post_init__(self) -> None:
        self.looks_at_pods = bool(getattr(self.plugin, "looks_at_pods", True))

    def evaluate(self, cycle: Cycle, count: int) -> None:
        """Ask about all rows."""
        self.codes = np.zeros(count, dtype=np.int8)
        self.reasons = {}
        if self.active:
            self._ask(cycle, cycle.snapshot.table)

    def refresh(self, cycle: Cycle, rows: Sequence[int]) -> None:
        """Ask about some rows."""
        if len(rows) <= _FEW_ROWS and hasattr(self.plugin, "filter"):
            for row in rows:
                self._forget(row)
                status = as_status(self.plugin.filter(cycle, NodeView(cycle.snapshot.nodes, row)), "", FILTER)
                if not status.ok:
                    self._note(row, status)
            return
        where = np.array(rows, dtype=np.intp)
        if self.codes[where].any():
            self.codes[where] = Code.SUCCESS
            for mask in self.reasons.values():
                if mask is not None:
                    mask[where] = False
        self._ask(cycle, NodeTable(cycle.snapshot.nodes, where))

    def _ask(self, cycle: Cycle, table: NodeTable) -> None:
        where = table.rows
        for rejection in self.plugin.filter_nodes(cycle, table):
            self.reasons.setdefault(rejection.reason, None)
            if not rejection.mask.any():
                continue
            code = rejection.status_code
            if not code.rejects:
                raise CannotStand
            hit = where[rejection.mask]
            before = self.codes[hit]
            self.codes[hit] = code if code is Code.UNRESOLVABLE else np.where(before == Code.SUCCESS, code, before)
            self._mask(rejection.reason)[hit] = True

    def _note(self, row: int, status: Status) -> None:
        if not status.rejected:
            raise CannotStand
        self.codes[row] = status.code
        for text in status.reasons:
            self._mask(text)[row] = True

    def _forget(self, row: int) -> None:
        if self.codes[row]:
            self.codes[row] = Code.SUCCESS
            for mask in self.reasons.values():
                if mask is not None:
                    mask[row] = False

    def _mask(self, text: str) -> BoolVector:
        mask = self.reasons.get(text)
        if mask is None:
            mask = self.reasons[text] = np.zeros(len(self.codes), dtype=np.bool_)
        return mask


@dataclass(slots=True)
class ScorePart:
    """One score plugin on every row: what it says, and what that adds to the total."""

    plugin: Any
    weight: int
    active: bool = False
    looks_at_pods: bool = True
    normalizes: bool = False
    compares_candidates: bool = False
    raw: IntVector = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    weighted: IntVector = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    stamp: Hashable = None

    def __post_init__(self) -> None:
        self.looks_at_pods = bool(getattr(self.plugin, "looks_at_pods", True))
        self.normalizes = hasattr(self.plugin, "normalize")
        self.compares_candidates = bool(getattr(self.plugin, "compares_candidates", False))

    def evaluate(self, cycle: Cycle, feasible: BoolVector) -> None:
        """Ask about all rows, or about the candidates where the plugin compares them."""
        table = cycle.snapshot.table
        if not self.compares_candidates:
            self.raw = _vector(self.plugin.score_nodes(cycle, table))
        else:
            candidates = table.narrowed(feasible)
            self.raw = np.zeros(len(table), dtype=np.int64)
            self.raw[feasible] = _vector(self.plugin.score_nodes(cycle, candidates))
        self.weigh(cycle, feasible)

    def refresh(self, cycle: Cycle, rows: Sequence[int]) -> None:
        """Ask about some rows. Only for plugins that neither compare candidates nor normalise."""
        if len(rows) <= _FEW_ROWS and hasattr(self.plugin, "score"):
            for row in rows:
                self.raw[row] = score = self.plugin.score(cycle, NodeView(cycle.snapshot.nodes, row))
                self.weighted[row] = _checked(score) * self.weight
            return
        where = np.array(rows, dtype=np.intp)
        self.raw[where] = fresh = _vector(self.plugin.score_nodes(cycle, NodeTable(cycle.snapshot.nodes, where)))
        self.weighted[where] = _checked_all(fresh) * self.weight

    def weigh(self, cycle: Cycle, feasible: BoolVector) -> None:
        """Normalise over the candidates and apply the weight."""
        if not self.normalizes:
            self.weighted = _checked_all(self.raw, feasible) * self.weight
            return
        candidates = cycle.snapshot.table.narrowed(feasible)
        final = _vector(self.plugin.normalize(cycle, candidates, self.raw[feasible]))
        self.weighted = np.zeros(len(self.raw), dtype=np.int64)
        self.weighted[feasible] = _checked_all(final) * self.weight


class RejectionCount(NamedTuple):
    """A reason of one plugin, and how many rows it holds for."""

    plugin: str
    text: str
    nodes: int


class Standing:
    """One class of pods against all rows of one snapshot."""

    def __init__(
        self,
        cycle: Cycle,
        pre_filters: Sequence[Any],
        filters: Sequence[Any],
        pre_scores: Sequence[Any],
        scores: Sequence[Any],
        weights: dict[str, int],
        boundary: Boundary,
    ) -> None:
        self._boundary = boundary
        self.cycle = cycle
        self._pre_filters = {plugin.name: plugin for plugin in pre_filters}
        self._pre_scores = {plugin.name: plugin for plugin in pre_scores}
        self._filters = [FilterPart(plugin) for plugin in filters]
        self._others = [plugin for name, plugin in self._pre_filters.items() if name not in _names(filters)]
        self._scores = [ScorePart(plugin, weights[plugin.name]) for plugin in scores]
        self._quiet = [plugin for name, plugin in self._pre_scores.items() if name not in _names(scores)]
        self.feasible: BoolVector = np.zeros(0, dtype=np.bool_)
        self.owner: CodeVector = np.zeros(0, dtype=np.int8)  # the first filter that rejects a row, -1: none
        self.total: IntVector = np.zeros(0, dtype=np.int64)
        self.candidates = 0
        self._layout = -1
        self._touched = self._renewed = 0
        self._reasons: tuple[RejectionCount, ...] | None = None  # None: to be counted
        parts: list[FilterPart | ScorePart] = [*self._filters, *self._scores]
        self._watching = [part for part in parts if not _is_row_alone(part.plugin)]
        self.rebuild()

    @property
    def snapshot(self) -> Snapshot:
        return self.cycle.snapshot

    # keeping up -------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Evaluate everything."""
        snapshot = self.snapshot
        self.cycle.skip_filter, self.cycle.skip_score = set(), set()
        for plugin in self._others:
            self._run_pre_filter(plugin)
        for part in self._filters:
            self._evaluate_filter(part)
        self._settle_feasible()
        self._evaluate_scores(self._scores, everything=True)
        self._add_up()
        self._reasons = None
        self._mark(snapshot)

    def refresh(self) -> None:
        """Catch up with the snapshot."""
        snapshot = self.snapshot
        rows = snapshot.touched.since(self._touched)
        renewed = snapshot.renewed.since(self._renewed)
        many = max(_ALWAYS_REFRESHED, len(self.feasible) // _REFRESHED_SHARE)
        if snapshot.layout != self._layout or rows is None or renewed is None or len(rows) > many:
            self.rebuild()
            return
        moved = {id(part) for part in self._watching if self._stamp(part.plugin) != part.stamp}
        if rows or moved:
            self._catch_up(sorted(rows), [row for row in rows if row in renewed], moved)
            self._mark(snapshot)

    def _catch_up(self, touched: Sequence[int], fresh: Sequence[int], moved: set[int]) -> None:
        before = self.feasible
        in_full = self._refresh_filters(touched, fresh, moved)
        if in_full:
            self._settle_feasible()
            self._reasons = None
        else:
            self._settle_rows(touched)
        changed = self.feasible is not before and not np.array_equal(before, self.feasible)
        if not self.candidates or (changed and not before.any()):
            self._evaluate_scores(self._scores, everything=False)
            self._add_up()
        else:
            self._refresh_scores(touched, fresh, moved, candidates_changed=changed)

    def _refresh_filters(self, touched: Sequence[int], fresh: Sequence[int], moved: set[int]) -> bool:
        """True when some filter was asked in full."""
        in_full = False
        for part in self._filters:
            if id(part) in moved:
                self._evaluate_filter(part)
                in_full = True
            elif part.active and (rows := touched if part.looks_at_pods else fresh):
                part.refresh(self.cycle, rows)
        return in_full

    def _refresh_scores(
        self, touched: Sequence[int], fresh: Sequence[int], moved: set[int], *, candidates_changed: bool
    ) -> None:
        again: list[ScorePart] = []
        for part in self._scores:
            if id(part) in moved or (candidates_changed and part.compares_candidates):
                again.append(part)
                continue
            if not part.active:
                continue
            rows = touched if part.looks_at_pods else fresh
            if rows and (part.normalizes or part.compares_candidates):
                again.append(part)
            elif rows:
                part.refresh(self.cycle, rows)
            elif candidates_changed and part.normalizes:
                part.weigh(self.cycle, self.feasible)
        if again:
            self._evaluate_scores(again, everything=False)
        if again or candidates_changed:
            self._add_up()
        else:
            self._add_up_rows(touched)

    # parts ------------------------------------------------------------------------------------------------------

    def _evaluate_filter(self, part: FilterPart) -> None:
        part.active = self._run_pre_filter(part.plugin)
        self._boundary.timed(part.plugin, FILTER, part.evaluate, self.cycle, len(self.snapshot))
        part.stamp = self._stamp(part.plugin)

    def _run_pre_filter(self, plugin: Any) -> bool:
        """Whether the plugin wants to filter."""
        self.cycle.skip_filter.discard(plugin.name)
        if plugin.name not in self._pre_filters:
            return True
        status = as_status(plugin.pre_filter(self.cycle), plugin.name, PRE_FILTER)
        if status.code is Code.SKIP:
            self.cycle.skip_filter.add(plugin.name)
            return False
        if not status.ok:
            raise CannotStand
        return True

    def _evaluate_scores(self, parts: Sequence[ScorePart], *, everything: bool) -> None:
        candidates = self.snapshot.table.narrowed(self.feasible)
        if everything:
            for plugin in self._quiet:
                self._run_pre_score(plugin, candidates)
        count = len(self.snapshot)
        for part in parts:
            part.active = len(candidates) > 0 and self._run_pre_score(part.plugin, candidates)
            if part.active:
                self._boundary.timed(part.plugin, SCORE, part.evaluate, self.cycle, self.feasible)
            else:
                part.raw, part.weighted = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
            part.stamp = self._stamp(part.plugin)

    def _run_pre_score(self, plugin: Any, candidates: NodeTable) -> bool:
        self.cycle.skip_score.discard(plugin.name)
        if plugin.name not in self._pre_scores:
            return True
        status = as_status(plugin.pre_score(self.cycle, candidates), plugin.name, PRE_SCORE)
        if status.code is Code.SKIP:
            self.cycle.skip_score.add(plugin.name)
            return False
        if not status.ok:
            raise CannotStand
        return True

    def _stamp(self, plugin: Any) -> Hashable:
        depends: Callable[[Cycle], Hashable] | None = getattr(plugin, "depends_on", None)
        return object() if depends is None else depends(self.cycle)

    # sums -------------------------------------------------------------------------------------------------------

    def _settle_feasible(self) -> None:
        count = len(self.snapshot)
        self.owner = np.full(count, -1, dtype=np.int8)
        feasible = np.ones(count, dtype=np.bool_)
        for number, part in enumerate(self._filters):
            if not part.active or not part.codes.any():
                continue
            rejected = part.codes != Code.SUCCESS
            self.owner[rejected & feasible] = number
            feasible &= ~rejected
        self.feasible = feasible
        self.candidates = int(np.count_nonzero(feasible))

    def _settle_rows(self, rows: Sequence[int]) -> None:
        if len(rows) > _FEW_ROWS:
            self._settle_many(np.array(rows, dtype=np.intp))
            return
        feasible = self.feasible
        for row in rows:
            number = next((n for n, part in enumerate(self._filters) if part.active and part.codes[row]), -1)
            if number < 0 and self.owner[row] < 0:
                continue
            self.owner[row] = number
            self._reasons = None
            if feasible[row] != (number < 0):
                self.candidates += 1 if number < 0 else -1
                if feasible is self.feasible:
                    feasible = feasible.copy()
                feasible[row] = number < 0
        self.feasible = feasible

    def _settle_many(self, rows: RowVector) -> None:
        owner = np.full(len(rows), -1, dtype=np.int8)
        for number in range(len(self._filters) - 1, -1, -1):
            part = self._filters[number]
            if part.active:
                owner[part.codes[rows] != Code.SUCCESS] = number
        if np.array_equal(owner, self.owner[rows]) and not (owner >= 0).any():
            return
        self._reasons = None
        self.owner[rows] = owner
        fits = owner < 0
        if not np.array_equal(fits, self.feasible[rows]):
            self.feasible = self.feasible.copy()
            self.feasible[rows] = fits
            self.candidates = int(np.count_nonzero(self.feasible))

    def _add_up(self) -> None:
        total = np.zeros(len(self.feasible), dtype=np.int64)
        for part in self._scores:
            if part.active:
                total += part.weighted
        if not self._scores:
            total += 1
        total[~self.feasible] = -1
        self.total = total

    def _add_up_rows(self, rows: Sequence[int]) -> None:
        if len(rows) > _FEW_ROWS:
            where = np.array(rows, dtype=np.intp)
            total = np.full(len(where), 0 if self._scores else 1, dtype=np.int64)
            for part in self._scores:
                if part.active:
                    total += part.weighted[where]
            self.total[where] = np.where(self.feasible[where], total, -1)
            return
        for row in rows:
            if self.feasible[row]:
                self.total[row] = sum(int(part.weighted[row]) for part in self._scores if part.active)
                if not self._scores:
                    self.total[row] = 1
            else:
                self.total[row] = -1

    def _mark(self, snapshot: Snapshot) -> None:
        self._layout = snapshot.layout
        self._touched, self._renewed = snapshot.touched.end, snapshot.renewed.end

    # telling ----------------------------------------------------------------------------------------------------

    def scores(self) -> Scores:
        """Totals and their parts for the candidates."""
        feasible = self.feasible
        parts = {part.plugin.name: part.weighted[feasible] for part in self._scores if part.active}
        return Scores(self.total[feasible], parts)

    def best_rows(self) -> RowVector:
        """The rows with the highest total."""
        return np.flatnonzero(self.total == self.total.max())

    def ranking(self, first: int, count: int) -> list[tuple[int, int, list[tuple[str, int]]]]:
        """The chosen row and the best others: row, total, and what each plugin gave."""
        total = self.total
        rows, held = [first], [int(total[first])]
        total[first] = -1
        while len(rows) < min(count, self.candidates):
            row = int(total.argmax())
            rows.append(row)
            held.append(int(total[row]))
            total[row] = -1
        for row, value in zip(rows, held, strict=True):
            total[row] = value
        parts = [(part.plugin.name, part.weighted) for part in self._scores if part.active]
        return [
            (row, value, [(name, int(weighted[row])) for name, weighted in parts])
            for row, value in zip(rows, held, strict=True)
        ]

    def rejections(self) -> tuple[RejectionCount, ...]:
        """Who rejects how many rows, and why."""
        if self._reasons is None:
            self._reasons = tuple(
                RejectionCount(reason.plugin, reason.text, int(np.count_nonzero(reason.mask)))
                for reason in self.diagnosis().verdicts.reasons
            )
        return self._reasons

    def diagnosis(self) -> Diagnosis:
        """The same diagnosis that a full attempt would have made."""
        diagnosis = Diagnosis(self.snapshot.nodes.names)
        verdicts = Verdicts.none_yet(len(self.feasible))
        for number, part in enumerate(self._filters):
            mine = self.owner == number
            if not mine.any():
                continue
            verdicts.codes[mine] = part.codes[mine]
            verdicts.plugins[part.plugin.name] = mine
            for text, mask in part.reasons.items():
                if mask is not None and (held := mask & mine).any():
                    verdicts.reasons.append(Reason(part.plugin.name, text, held))
            diagnosis.unschedulable_plugins.add(part.plugin.name)
            if (part.codes[mine] == Code.PENDING).any():
                diagnosis.pending_plugins.add(part.plugin.name)
        diagnosis.verdicts = verdicts
        return diagnosis


def _names(plugins: Sequence[Any]) -> set[str]:
    return {plugin.name for plugin in plugins}


def _is_row_alone(plugin: Any) -> bool:
    return getattr(type(plugin), "depends_on", None) is row_alone


def _vector(answer: object) -> IntVector:
    if not isinstance(answer, np.ndarray):
        raise CannotStand
    return answer.astype(np.int64, copy=False)


def _checked(score: int) -> int:
    if not 0 <= score <= MAX_SCORE:
        raise CannotStand
    return score


def _checked_all(scores: IntVector, where: BoolVector | None = None) -> IntVector:
    """Scores that are in range where it matters: on candidates."""
    judged = scores if where is None else scores[where]
    if len(judged) and (judged.min() < 0 or judged.max() > MAX_SCORE):
        raise CannotStand
    return scores
