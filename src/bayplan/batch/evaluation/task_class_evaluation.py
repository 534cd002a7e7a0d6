"""Where can this task go, where is it best, and why not elsewhere? Asked by every action that places tasks.

A `TaskClassEvaluation` is what one class of tasks knows about every row: who rejects it and what each scorer gives it.
It is made by one full evaluation and then caught up: rows that changed since are asked again (the session's journal has
them). Tasks are of one class where they ask for the same amounts and every plugin that speaks about nodes says that it
treats them alike, so a gang of 1,000 is evaluated once and 1,000 single rows after that.

Totals are floats added in Volcano's order: what plugins give by node, tier by tier, then what they give by batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayplan.batch.evaluation.guarded_evaluators import GuardedPredicateResults, GuardedScores
from bayplan.batch.evaluation.node_points import (
    BatchScores,
    NodeFunction,
    NodeScores,
    RowPredicateResults,
    RowScores,
    TablePredicateResults,
    TableScores,
    call_predicate_per_node,
)
from bayplan.batch.evaluation.rejected_rows import (
    RejectedRows,
    fit_errors_of,
    group_rows_by_answer,
    group_rows_by_statuses,
)
from bayplan.batch.model.fit_errors import (
    REJECTING_ALLOCATE,
    REJECTING_PREEMPT,
    FitErrors,
    insufficient_reason,
    rejects,
)
from bayplan.batch.model.node_accounts import first_insufficient
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.decision_recorder import make_ranking
from bayplan.framework.api.status import Status, unschedulable
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.snapshot import BoolVector, RowVector
from bayplan.telemetry.decisions import Ranking

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session

_MAX_EVALUATIONS = 512


class NodeScoreTotals:
    """The sums of all node scorers for one class of tasks."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session = session
        nodes = session.nodes
        self._order = [self._scorer(fn, task, nodes, by_batch=False) for fn in session.node_fns("node_order")]
        self._batch = [self._scorer(fn, task, nodes, by_batch=True) for fn in session.node_fns("batch_node_order")]
        self._values: FloatVector = np.zeros(nodes.accounts.count)
        self._fresh = False
        self.plugins = tuple(dict.fromkeys(plugin for plugin, _ in (*self._order, *self._batch)))

    def _scorer(self, fn: NodeFunction, task: Task, nodes: Nodes, *, by_batch: bool) -> tuple[str, RowScores]:
        blame = self._session.fault_recorder("batch_node_order" if by_batch else "node_order")
        if fn.factory is not None:
            return fn.plugin, GuardedScores(fn, task, nodes.accounts.count, blame)
        if fn.for_nodes is not None:
            return fn.plugin, TableScores(fn, nodes, blame, compares=by_batch)
        return fn.plugin, BatchScores(fn, nodes, blame) if by_batch else NodeScores(fn, nodes, blame)

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> FloatVector | None:
        """The total of every candidate; None where scoring failed as a whole."""
        anew = not self._fresh
        self._fresh = False
        for plugin, scorer in self._order:
            moved = scorer.refresh(task, candidates, touched)
            if isinstance(moved, Status):  # as if it had failed on every node
                self._session.log_plugin_message(plugin, moved.message)
                scorer.failed, moved = candidates, True
            anew |= moved
        reduced = self._session.reduced_scores(task, candidates)
        if isinstance(reduced, Status):
            self._session.log_plugin_message("node_reduce", reduced.message)
            return None
        for plugin, scorer in self._batch:
            moved = scorer.refresh(task, candidates, touched)
            if isinstance(moved, Status):
                self._session.log_plugin_message(plugin, moved.message)
                return None
            anew |= moved
        if anew or touched is None:
            self._values = self._sums(len(candidates))
        else:
            for row in touched:
                self._values[row] = self._sum(row)
        self._fresh = True
        return self._values if reduced is None else reduced + self._values

    def scores_by_plugin(self, row: int) -> list[float]:
        """What each of the plugins gave to a row, by node and by batch."""
        failed = any(scorer.failed is not None and scorer.failed[row] for _, scorer in self._order)
        given = dict.fromkeys(self.plugins, 0.0)
        for plugin, scorer in self._batch if failed else (*self._order, *self._batch):
            given[plugin] += scorer.values.item(row)
        return list(given.values())

    def _sums(self, count: int) -> FloatVector:
        order = np.zeros(count)
        for _, scorer in self._order:
            order = order + scorer.values
        for _, scorer in self._order:
            if scorer.failed is not None:
                order = np.where(scorer.failed, 0.0, order)
        if not self._batch:
            return order
        batch = np.zeros(count)
        for _, scorer in self._batch:
            batch = batch + scorer.values
        return order + batch

    def _sum(self, row: int) -> float:
        order = batch = 0.0
        failed = False
        for _, scorer in self._order:
            order += scorer.values.item(row)
            failed |= scorer.failed is not None and bool(scorer.failed[row])
        for _, scorer in self._batch:
            batch += scorer.values.item(row)
        return (0.0 if failed else order) + batch


class TaskClassEvaluation:
    """One class of tasks against all rows of a session."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session = session
        self._nodes: Nodes = session.nodes
        self._room = session.nodes.accounts
        self._record_fault = session.fault_recorder("predicate")
        self.demand = self._room.demand(task)
        self.predicates: list[tuple[NodeFunction, RowPredicateResults | None]] = []  # None: asked node by node
        for fn in session.node_fns("predicate"):
            self.predicates.append((fn, self._predicate_results(fn, task)))
        self._simple = [fn for fn, verdicts in self.predicates if verdicts is None]
        self._tables = [verdicts for _, verdicts in self.predicates if verdicts is not None]
        self._totals: NodeScoreTotals | None = None
        count = self._room.count
        self._accepted_rows: BoolVector = np.ones(count, dtype=np.bool_)  # no table test objects
        self._idle: BoolVector = np.zeros(count, dtype=np.bool_)
        self._future: BoolVector = np.zeros(count, dtype=np.bool_)
        self._cursor = -1
        self._unscored: set[int] | None = None  # rows touched since the last scores; None: never scored
        self.refresh(task)

    def _predicate_results(self, fn: NodeFunction, task: Task) -> RowPredicateResults | None:
        if fn.factory is not None:
            return GuardedPredicateResults(fn, task, self._room.count, self._record_fault)
        return TablePredicateResults(fn, self._nodes, self._record_fault) if fn.for_nodes is not None else None

    def predicate_object(self, plugin: str) -> Any:
        """The object that a plugin's `make` gave for its predicate."""
        for fn, verdicts in self.predicates:
            if fn.plugin == plugin and isinstance(verdicts, GuardedPredicateResults):
                return verdicts.instance
        return None

    # keeping up -------------------------------------------------------------------------------------------------

    def refresh(self, task: Task) -> None:
        """Ask again about what changed since the last time: nothing changes without a row being touched."""
        journal = self._session.changed_rows
        if self._cursor == journal.end:
            return
        touched = journal.since(self._cursor) if self._cursor >= 0 else None
        self._cursor = journal.end
        rows = None if touched is None else sorted(touched)
        anew = False
        for verdicts in self._tables:
            anew |= verdicts.refresh(task, rows)
        if rows is None or anew:
            self._combine_predicates()
        else:
            for row in rows:
                self._accepted_rows[row] = not self._is_rejected(row)
        self._update_fit(rows)
        if rows is None:
            self._unscored = None
        elif self._unscored is not None:
            self._unscored.update(rows)

    def _is_rejected(self, row: int) -> bool:
        return any(verdicts.rejected.item(row) for verdicts in self._tables)

    def _combine_predicates(self) -> None:
        self._accepted_rows = np.ones(self._room.count, dtype=np.bool_)
        for verdicts in self._tables:
            self._accepted_rows &= ~verdicts.rejected

    def _update_fit(self, rows: Sequence[int] | None) -> None:
        room, demand = self._room, self.demand
        if rows is None:
            self._idle = room.fits(room.idle, demand)
            self._future = room.fits(room.future_idle(), demand)
            return
        for row in rows:
            self._idle[row], self._future[row] = room.fits_row(row, demand)

    # where ------------------------------------------------------------------------------------------------------

    @property
    def fits_idle(self) -> BoolVector:
        """Rows with enough idle room. Not to be written."""
        return self._idle

    @property
    def fits_future(self) -> BoolVector:
        """Rows with enough room once everybody who goes is gone. Not to be written."""
        return self._future

    def rows_to_allocate(self, task: Task, among: BoolVector | None = None) -> BoolVector:
        """Rows that no predicate rejects, for placing at once."""
        found = self._accepted_rows.copy() if among is None else self._accepted_rows & among
        for fn in self._simple:
            asked = self._nodes.select_rows(np.flatnonzero(found))
            for row, statuses in call_predicate_per_node(fn, task, asked, self._record_fault):
                if rejects(statuses, REJECTING_ALLOCATE):
                    found[row] = False
        return found

    def rows_to_preempt(self, task: Task, among: BoolVector | None = None) -> BoolVector:
        """Rows that no predicate rejects for good: the first plugin with an objection decides how grave it is."""
        undecided = np.ones(self._room.count, dtype=np.bool_) if among is None else among.copy()
        found = undecided.copy()
        for fn, verdicts in self.predicates:
            if verdicts is not None:
                hit = verdicts.rejected & undecided
                found &= ~(hit & verdicts.unresolvable)
                undecided &= ~hit
                continue
            asked = self._nodes.select_rows(np.flatnonzero(undecided))
            for row, statuses in call_predicate_per_node(fn, task, asked, self._record_fault):
                undecided[row] = False
                if rejects(statuses, REJECTING_PREEMPT):
                    found[row] = False
        return found

    # why not ----------------------------------------------------------------------------------------------------

    def statuses(self, task: Task, row: int) -> tuple[Status, ...]:
        """What the predicates say of one row: the objections of the first plugin that has any."""
        for fn, verdicts in self.predicates:
            if verdicts is not None:
                if verdicts.rejected[row]:
                    return verdicts.statuses(row)
                continue
            node = self._nodes.select_rows(np.array([row], dtype=np.intp))
            for _, statuses in call_predicate_per_node(fn, task, node, self._record_fault):
                return statuses
        return ()

    def rejections(self, task: Task, rows: RowVector, *, with_room: bool) -> list[RejectedRows]:
        """Why the task does not go to these rows, which do not want it: by answer."""
        found: list[RejectedRows] = []
        if with_room:
            fits = self._future[rows]
            found += self._insufficient_rows(rows[~fits])
            rows = rows[fits]
        for fn, verdicts in self.predicates:
            if not len(rows):
                break
            if verdicts is not None:
                said_no = verdicts.rejected[rows]
                hit = rows[said_no]
                found += (
                    verdicts.rejections(hit)
                    if isinstance(verdicts, GuardedPredicateResults)
                    else group_rows_by_answer(hit, verdicts)
                )
                rows = rows[~said_no]
                continue
            told = call_predicate_per_node(fn, task, self._nodes.select_rows(rows), self._record_fault)
            found += group_rows_by_statuses(told)
            rows = np.setdiff1d(rows, np.array([row for row, _ in told], dtype=np.intp))
        return found

    def _insufficient_rows(self, rows: RowVector) -> list[RejectedRows]:
        """Rows without enough room, by the first resource that they lack."""
        room = self._room

        def have(column: int) -> FloatVector:
            left: FloatVector = (room.idle[column, rows] + room.releasing[column, rows]) - room.pipelined[column, rows]
            return left

        return [
            RejectedRows((unschedulable(insufficient_reason([room.dimensions.names[column]])),), rows[short])
            for column, short in first_insufficient(self.demand, have)
        ]

    def explain(self, task: Task, rows: RowVector, *, with_room: bool) -> FitErrors:
        """Why the task goes to none of these rows."""
        return fit_errors_of(self.rejections(task, rows, with_room=with_room), self._room.count)

    # how good ---------------------------------------------------------------------------------------------------

    def scores(self, task: Task, candidates: BoolVector) -> FloatVector | None:
        """The total of every candidate (other rows mean nothing); None where scoring failed as a whole."""
        if self._totals is None:
            self._totals = NodeScoreTotals(self._session, task)
        touched = None if self._unscored is None else sorted(self._unscored)
        self._unscored = None
        found = self._totals.refresh(task, candidates, touched)
        if found is not None:
            self._unscored = set()
        return found

    def ranking(self, rows: Sequence[int], totals: FloatVector) -> Ranking:
        """These rows by what each plugin gave to them when they were last scored; `totals` came of that."""
        assert self._totals is not None
        scores: list[float] = []
        for row in rows:
            scores.append(totals.item(row))
            scores += self._totals.scores_by_plugin(row)
        names = self._session.snapshot.nodes.names
        return make_ranking(tuple([names[row] for row in rows]), self._totals.plugins, scores)


class TaskClassEvaluations:
    """The prospects of a session, by class of task."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_class: OrderedDict[Hashable, TaskClassEvaluation] = OrderedDict()
        self._class_of: dict[str, Hashable] = {}  # by uid
        self._keys: dict[Hashable, Hashable] = {}
        self._last: tuple[str, TaskClassEvaluation] | None = None

    def of(self, task: Task) -> TaskClassEvaluation:
        """What is known about the task's class, up to date."""
        if self._last is not None and self._last[0] == task.uid:
            prospect = self._last[1]
            prospect.refresh(task)
            return prospect
        key = self._class_of.get(task.uid)
        if key is None:
            key = self._class_of[task.uid] = self._intern_key(self._key(task))
        found = self._by_class.get(key)
        if found is None:
            found = self._by_class[key] = TaskClassEvaluation(self._session, task)
            if len(self._by_class) > _MAX_EVALUATIONS:
                self._by_class.popitem(last=False)
        else:
            found.refresh(task)
        self._last = (task.uid, found)
        return found

    def _intern_key(self, key: Hashable) -> Hashable:
        """The key in one object for all tasks of a class: there are thousands."""
        return self._keys.setdefault(key, key)

    def of_without_refresh(self, task: Task) -> TaskClassEvaluation:
        """The same as it was when it was last asked for, be it out of date; made where it never was."""
        if self._last is not None and self._last[0] == task.uid:
            return self._last[1]
        key = self._class_of.get(task.uid)
        return (self._by_class.get(key) if key is not None else None) or self.of(task)

    def _key(self, task: Task) -> Hashable:
        parts: list[Hashable] = [self._session.nodes.accounts.demand(task)]
        for point in ("predicate", "node_order", "batch_node_order"):
            for fn in self._session.node_fns(point):
                try:
                    part = fn.signature(task)
                    hash(part)
                except PLUGIN_EXCEPTIONS as fault:
                    self._session.record_plugin_fault(fn.plugin, fault, point)
                    part = None
                if part is None:
                    return task.uid
                parts.append(part)
        return tuple(parts)
