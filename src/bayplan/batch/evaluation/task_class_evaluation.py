"""Evaluation of a class of tasks on all rows: where the tasks fit, how good each node is, and why nodes reject them.

Called by every action that places tasks. A `TaskClassEvaluation` holds the rejections and the scores of every row. It
is created by one full evaluation; afterwards only changed rows are evaluated again (the session's journal lists them).
Tasks belong to one class if they have equal requests and all plugins with node functions declare that they treat them
alike. So a gang of 1,000 costs one full evaluation and 1,000 single rows.

Totals are floats summed in Volcano's order: per-node scores tier by tier, then batch scores.
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
    """The sums of all node scores for one class of tasks."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session = session
        nodes = session.nodes
        self._order = [self._scorer(fn, task, nodes, by_batch=False) for fn in session.node_fns("node_order")]
        self._batch = [self._scorer(fn, task, nodes, by_batch=True) for fn in session.node_fns("batch_node_order")]
        self._values: FloatVector = np.zeros(nodes.accounts.count)
        self._is_current = False
        self.plugins = tuple(dict.fromkeys(plugin for plugin, _ in (*self._order, *self._batch)))

    def _scorer(self, fn: NodeFunction, task: Task, nodes: Nodes, *, by_batch: bool) -> tuple[str, RowScores]:
        record_fault = self._session.fault_recorder("batch_node_order" if by_batch else "node_order")
        if fn.factory is not None:
            return fn.plugin, GuardedScores(fn, task, nodes.accounts.count, record_fault)
        if fn.for_nodes is not None:
            return fn.plugin, TableScores(fn, nodes, record_fault, compares=by_batch)
        return fn.plugin, BatchScores(fn, nodes, record_fault) if by_batch else NodeScores(fn, nodes, record_fault)

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> FloatVector | None:
        """The total of every candidate; None if scoring failed as a whole."""
        full = not self._is_current
        self._is_current = False
        for plugin, scorer in self._order:
            changed = scorer.refresh(task, candidates, touched)
            if isinstance(changed, Status):  # as if it had failed on every node
                self._session.log_plugin_message(plugin, changed.message)
                scorer.failed, changed = candidates, True
            full |= changed
        reduced = self._session.reduced_scores(task, candidates)
        if isinstance(reduced, Status):
            self._session.log_plugin_message("node_reduce", reduced.message)
            return None
        for plugin, scorer in self._batch:
            changed = scorer.refresh(task, candidates, touched)
            if isinstance(changed, Status):
                self._session.log_plugin_message(plugin, changed.message)
                return None
            full |= changed
        if full or touched is None:
            self._values = self._sums(len(candidates))
        else:
            for row in touched:
                self._values[row] = self._sum(row)
        self._is_current = True
        return self._values if reduced is None else reduced + self._values

    def scores_by_plugin(self, row: int) -> list[float]:
        """The score of each plugin on a row, per node plus batch."""
        failed = any(scorer.failed is not None and scorer.failed[row] for _, scorer in self._order)
        scores = dict.fromkeys(self.plugins, 0.0)
        for plugin, scorer in self._batch if failed else (*self._order, *self._batch):
            scores[plugin] += scorer.values.item(row)
        return list(scores.values())

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
    """One class of tasks on all rows of a session."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session = session
        self._nodes: Nodes = session.nodes
        self._accounts = session.nodes.accounts
        self._record_fault = session.fault_recorder("predicate")
        self.demand = self._accounts.demand(task)
        self.predicates: list[tuple[NodeFunction, RowPredicateResults | None]] = []  # None: called node by node
        for fn in session.node_fns("predicate"):
            self.predicates.append((fn, self._predicate_results(fn, task)))
        self._simple = [fn for fn, results in self.predicates if results is None]
        self._tables = [results for _, results in self.predicates if results is not None]
        self._totals: NodeScoreTotals | None = None
        count = self._accounts.count
        self._accepted_rows: BoolVector = np.ones(count, dtype=np.bool_)  # no table or object rejects
        self._idle: BoolVector = np.zeros(count, dtype=np.bool_)
        self._future: BoolVector = np.zeros(count, dtype=np.bool_)
        self._cursor = -1
        self._unscored: set[int] | None = None  # rows touched since the last scores; None: never scored
        self.refresh(task)

    def _predicate_results(self, fn: NodeFunction, task: Task) -> RowPredicateResults | None:
        if fn.factory is not None:
            return GuardedPredicateResults(fn, task, self._accounts.count, self._record_fault)
        return TablePredicateResults(fn, self._nodes, self._record_fault) if fn.for_nodes is not None else None

    def predicate_object(self, plugin: str) -> Any:
        """The object that a plugin's factory created for its predicate."""
        for fn, results in self.predicates:
            if fn.plugin == plugin and isinstance(results, GuardedPredicateResults):
                return results.instance
        return None

    # Refresh

    def refresh(self, task: Task) -> None:
        """Evaluate changed rows again. Every change is recorded as a touched row."""
        journal = self._session.changed_rows
        if self._cursor == journal.end:
            return
        touched = journal.since(self._cursor) if self._cursor >= 0 else None
        self._cursor = journal.end
        rows = None if touched is None else sorted(touched)
        full = False
        for results in self._tables:
            full |= results.refresh(task, rows)
        if rows is None or full:
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
        return any(results.rejected.item(row) for results in self._tables)

    def _combine_predicates(self) -> None:
        self._accepted_rows = np.ones(self._accounts.count, dtype=np.bool_)
        for results in self._tables:
            self._accepted_rows &= ~results.rejected

    def _update_fit(self, rows: Sequence[int] | None) -> None:
        accounts, demand = self._accounts, self.demand
        if rows is None:
            self._idle = accounts.fits(accounts.idle, demand)
            self._future = accounts.fits(accounts.future_idle(), demand)
            return
        for row in rows:
            self._idle[row], self._future[row] = accounts.fits_row(row, demand)

    # Candidates

    @property
    def fits_idle(self) -> BoolVector:
        """Rows with enough idle resources. Read-only."""
        return self._idle

    @property
    def fits_future(self) -> BoolVector:
        """Rows with enough resources once all releasing tasks are gone. Read-only."""
        return self._future

    def rows_to_allocate(self, task: Task, among: BoolVector | None = None) -> BoolVector:
        """Rows that no predicate rejects, for immediate placement."""
        found = self._accepted_rows.copy() if among is None else self._accepted_rows & among
        for fn in self._simple:
            undecided = self._nodes.select_rows(np.flatnonzero(found))
            for row, statuses in call_predicate_per_node(fn, task, undecided, self._record_fault):
                if rejects(statuses, REJECTING_ALLOCATE):
                    found[row] = False
        return found

    def rows_to_preempt(self, task: Task, among: BoolVector | None = None) -> BoolVector:
        """Rows without an unresolvable rejection. The first plugin that rejects a row decides whether eviction can
        help."""
        undecided = np.ones(self._accounts.count, dtype=np.bool_) if among is None else among.copy()
        found = undecided.copy()
        for fn, results in self.predicates:
            if results is not None:
                hit = results.rejected & undecided
                found &= ~(hit & results.unresolvable)
                undecided &= ~hit
                continue
            remaining = self._nodes.select_rows(np.flatnonzero(undecided))
            for row, statuses in call_predicate_per_node(fn, task, remaining, self._record_fault):
                undecided[row] = False
                if rejects(statuses, REJECTING_PREEMPT):
                    found[row] = False
        return found

    # Rejections

    def statuses(self, task: Task, row: int) -> tuple[Status, ...]:
        """The predicates' answer on one row: the rejections of the first plugin that has any."""
        for fn, results in self.predicates:
            if results is not None:
                if results.rejected[row]:
                    return results.statuses(row)
                continue
            node = self._nodes.select_rows(np.array([row], dtype=np.intp))
            for _, statuses in call_predicate_per_node(fn, task, node, self._record_fault):
                return statuses
        return ()

    def rejections(self, task: Task, rows: RowVector, *, with_room: bool) -> list[RejectedRows]:
        """The rejections of the task on these rows, which reject it, grouped by answer."""
        found: list[RejectedRows] = []
        if with_room:
            fits = self._future[rows]
            found += self._insufficient_rows(rows[~fits])
            rows = rows[fits]
        for fn, results in self.predicates:
            if not len(rows):
                break
            if results is not None:
                is_rejected = results.rejected[rows]
                hit = rows[is_rejected]
                found += (
                    results.rejections(hit)
                    if isinstance(results, GuardedPredicateResults)
                    else group_rows_by_answer(hit, results)
                )
                rows = rows[~is_rejected]
                continue
            statuses_by_row = call_predicate_per_node(fn, task, self._nodes.select_rows(rows), self._record_fault)
            found += group_rows_by_statuses(statuses_by_row)
            rows = np.setdiff1d(rows, np.array([row for row, _ in statuses_by_row], dtype=np.intp))
        return found

    def _insufficient_rows(self, rows: RowVector) -> list[RejectedRows]:
        """Rows without enough resources, by the first resource that they lack."""
        accounts = self._accounts

        def have(column: int) -> FloatVector:
            future_idle: FloatVector = (
                accounts.idle[column, rows] + accounts.releasing[column, rows]
            ) - accounts.pipelined[column, rows]
            return future_idle

        return [
            RejectedRows((unschedulable(insufficient_reason([accounts.dimensions.names[column]])),), rows[short])
            for column, short in first_insufficient(self.demand, have)
        ]

    def explain(self, task: Task, rows: RowVector, *, with_room: bool) -> FitErrors:
        return fit_errors_of(self.rejections(task, rows, with_room=with_room), self._accounts.count)

    # Scores

    def scores(self, task: Task, candidates: BoolVector) -> FloatVector | None:
        """The total of every candidate; other rows are undefined. None if scoring failed as a whole."""
        if self._totals is None:
            self._totals = NodeScoreTotals(self._session, task)
        touched = None if self._unscored is None else sorted(self._unscored)
        self._unscored = None
        found = self._totals.refresh(task, candidates, touched)
        if found is not None:
            self._unscored = set()
        return found

    def ranking(self, rows: Sequence[int], totals: FloatVector) -> Ranking:
        """These rows with each plugin's latest scores; `totals` are their sums."""
        assert self._totals is not None
        scores: list[float] = []
        for row in rows:
            scores.append(totals.item(row))
            scores += self._totals.scores_by_plugin(row)
        names = self._session.snapshot.nodes.names
        return make_ranking(tuple([names[row] for row in rows]), self._totals.plugins, scores)


class TaskClassEvaluations:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_class: OrderedDict[Hashable, TaskClassEvaluation] = OrderedDict()
        self._class_of: dict[str, Hashable] = {}  # by uid
        self._keys: dict[Hashable, Hashable] = {}
        self._last: tuple[str, TaskClassEvaluation] | None = None

    def of(self, task: Task) -> TaskClassEvaluation:
        if self._last is not None and self._last[0] == task.uid:
            evaluation = self._last[1]
            evaluation.refresh(task)
            return evaluation
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
        """One key object per class, because there are thousands of tasks."""
        return self._keys.setdefault(key, key)

    def of_without_refresh(self, task: Task) -> TaskClassEvaluation:
        """The last evaluation of the class, perhaps out of date; created if there is none."""
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
