"""Predicates and node scores: the forms of registration, and their evaluation for a class of tasks on all rows.

A plugin registers one of three forms; the first is the simplest:

- for one node: `fn(task, node)`, called for the rows that no other predicate rejects;
- for many nodes at once: `fn(task, nodes)`, with columns as input and output;
- an object per class of tasks (`factory(task)`) that updates itself incrementally, as the framework adapter does.

Tasks share results if every plugin declares its dependencies: `signature(task)` (equal values: tasks are treated alike;
None: never shared) and `depends_on(task)` (a value that changes when answers on untouched rows may change; `ROW_LOCAL`:
never; `NODE_STATIC`: not on touched rows either). A plugin without both is evaluated in full for every task.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np

from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.batch.model.fit_errors import UNRESOLVABLE_CODES, FitAnswer, statuses_of
from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.framework.api.diagnosis import combination_numbers
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.snapshot import BoolVector, IntVector

_SCORES = (float, Status, Real)

Signature = Callable[[Task], Hashable | None]
DependsOn = Callable[[Task], Hashable]
FaultRecorder = Callable[[str, BaseException], None]

NodePredicate = Callable[[Task, Node], FitAnswer]
NodesPredicate = Callable[[Task, Nodes], Iterable[Rejection]]
NodeScore = Callable[[Task, Node], "float | Status"]
NodesScore = Callable[[Task, Nodes], "FloatVector | ScoredRows | Status"]


def no_signature(task: Task) -> Hashable | None:  # noqa: ARG001
    return None


def same_for_all(task: Task) -> Hashable:  # noqa: ARG001
    """`signature=same_for_all`: the answer does not depend on the task."""
    return ()


def NODE_STATIC(task: Task) -> Hashable:  # noqa: ARG001, N802
    """`depends_on=NODE_STATIC`: the answer does not even depend on the pods of the row; it is valid for the whole
    session."""
    return ()


def ROW_LOCAL(task: Task) -> Hashable:  # noqa: ARG001, N802
    """`depends_on=ROW_LOCAL`: the answer for a row depends only on that row and the task."""
    return ()


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Scores of a table, with the rows on which scoring failed. A failed row gets 0 from all per-node scorers."""

    values: FloatVector
    failed: BoolVector


class RowPredicateResults(Protocol):
    """One plugin's answer on every row, for one class of tasks.

    With `keys()`, a number per row that is equal for rows with equal answers, thousands of rows are explained at the
    cost of a few.
    """

    rejected: BoolVector  # rows with any rejection
    unresolvable: BoolVector  # rows with a rejection that eviction does not resolve

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        """Update; None: everything may have changed. True if more than the touched rows was evaluated."""
        ...

    def statuses(self, row: int) -> tuple[Status, ...]: ...


class RowScores(Protocol):
    """One plugin's scores of every row, for one class of tasks."""

    values: FloatVector  # valid for candidates only
    failed: BoolVector | None  # candidates on which scoring failed

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        """Update; None: everything may have changed. True if more than the touched rows may have new values.

        A Status: scoring failed for all rows.
        """
        ...


@dataclass(frozen=True, slots=True)
class NodeFunction:
    """A registered function of a point about nodes."""

    plugin: str
    per_node: Callable[..., Any] | None = None
    for_nodes: Callable[..., Any] | None = None
    factory: Callable[[Task], Any] | None = None
    signature: Signature = no_signature
    depends_on: DependsOn | None = None

    @property
    def callables(self) -> tuple[object, ...]:
        """The members that must be callable."""
        fns = tuple(each for each in (self.per_node, self.for_nodes, self.factory) if each is not None) or (None,)
        return (*fns, self.signature) if self.depends_on is None else (*fns, self.signature, self.depends_on)


class TablePredicateResults:
    """Incrementally updated results of `fn(task, nodes)`."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, record_fault: FaultRecorder) -> None:
        self._fn = fn
        self._nodes = nodes
        self._record_fault = record_fault
        self._last_dependency: Hashable = None
        self._evaluated = False
        self._reasons: dict[tuple[str, Code], BoolVector] = {}
        self.rejected: BoolVector = np.zeros(nodes.accounts.count, dtype=np.bool_)
        self.unresolvable: BoolVector = np.zeros(nodes.accounts.count, dtype=np.bool_)

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        depends = self._fn.depends_on
        dependency = _dependency_value(self._fn, task, self._record_fault)
        if touched is None or not self._evaluated or dependency != self._last_dependency:
            self._last_dependency, self._evaluated = dependency, True
            self._reasons.clear()
            self.rejected[:] = False
            self.unresolvable[:] = False
            self._call_plugin(task, self._nodes)
            return True
        if touched and depends is not NODE_STATIC:
            where = np.array(touched, dtype=np.intp)
            self.rejected[where] = False
            self.unresolvable[where] = False
            for mask in self._reasons.values():
                mask[where] = False
            self._call_plugin(task, self._nodes.select_rows(where))
        return False

    def _call_plugin(self, task: Task, nodes: Nodes) -> None:
        assert self._fn.for_nodes is not None
        rows = nodes.rows
        try:
            for rejection in _check_rejections(self._fn.for_nodes(task, nodes), len(rows)):
                if not rejection.mask.any():
                    continue
                code = rejection.status_code
                hit = rows[rejection.mask]
                self.rejected[hit] = True
                if code in UNRESOLVABLE_CODES:
                    self.unresolvable[hit] = True
                mask = self._reasons.get((rejection.reason, code))
                if mask is None:
                    mask = np.zeros(len(self.rejected), dtype=np.bool_)
                    self._reasons[rejection.reason, code] = mask
                mask[hit] = True
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._fn.plugin, fault)
            self.rejected[rows] = False
            self.unresolvable[rows] = False
            for mask in self._reasons.values():
                mask[rows] = False

    def keys(self) -> IntVector:
        """Equal for rows with equal answers."""
        return combination_numbers(list(self._reasons.values()), len(self.rejected))

    def statuses(self, row: int) -> tuple[Status, ...]:
        return tuple(Status(code, (text,)) for (text, code), mask in self._reasons.items() if mask[row])


class TableScores:
    """Incrementally updated scores of `fn(task, nodes)`."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, record_fault: FaultRecorder, *, compares: bool) -> None:
        self._fn = fn
        self._nodes = nodes
        self._record_fault = record_fault
        self._compares = compares  # the scores depend on which nodes are candidates
        self._last_dependency: Hashable = None
        self._evaluated = False
        self.values: FloatVector = np.zeros(nodes.accounts.count)
        self.failed: BoolVector | None = None

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        depends = self._fn.depends_on
        dependency = _dependency_value(self._fn, task, self._record_fault)
        if self._compares or touched is None or not self._evaluated or dependency != self._last_dependency:
            self._last_dependency, self._evaluated = dependency, True
            self.values = np.zeros(self._nodes.accounts.count)
            self.failed = None
            nodes = self._nodes.select_rows(np.flatnonzero(candidates)) if self._compares else self._nodes
            return self._call_plugin(task, nodes) or True
        if touched and depends is not NODE_STATIC:
            return self._call_plugin(task, self._nodes.select_rows(np.array(touched, dtype=np.intp))) or False
        return False

    def _call_plugin(self, task: Task, nodes: Nodes) -> Status | None:
        assert self._fn.for_nodes is not None
        rows = nodes.rows
        try:
            answer = self._fn.for_nodes(task, nodes)
            if isinstance(answer, Status):
                self._evaluated = False
                return answer
            if isinstance(answer, ScoredRows):
                if self.failed is None:
                    self.failed = np.zeros(len(self.values), dtype=np.bool_)
                self.failed[rows] = answer.failed
                answer = answer.values
            if not isinstance(answer, np.ndarray) or answer.shape != rows.shape or answer.dtype.kind not in "fiu":
                raise InvalidAnswer(answer, f"a vector of {len(rows)} numbers, one per node,")
            self.values[rows] = answer
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._fn.plugin, fault)
            self.values[rows] = 0.0
        return None


class NodeScores:
    """Scores of `fn(task, node)`, computed for every candidate at each refresh."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, record_fault: FaultRecorder) -> None:
        self._fn = fn
        self._nodes = nodes
        self._record_fault = record_fault
        self.values: FloatVector = np.zeros(nodes.accounts.count)
        self.failed: BoolVector | None = None

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:  # noqa: ARG002
        assert self._fn.per_node is not None
        self.failed = None
        for node in self._nodes.select_rows(np.flatnonzero(candidates)):
            try:
                score = self._fn.per_node(task, node)
                if not isinstance(score, _SCORES):
                    raise InvalidAnswer(score, "a number")
                if isinstance(score, Status):
                    self.failed = np.zeros(len(candidates), dtype=np.bool_) if self.failed is None else self.failed
                    self.failed[node.row] = True
                    score = 0.0
                self.values[node.row] = float(score)
            except PLUGIN_EXCEPTIONS as fault:
                self._record_fault(self._fn.plugin, fault)
                self.values[node.row] = 0.0
        return True


class BatchScores:
    """Scores by name of `fn(task, nodes)`, computed at each refresh."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, record_fault: FaultRecorder) -> None:
        self._fn = fn
        self._nodes = nodes
        self._record_fault = record_fault
        self.values: FloatVector = np.zeros(nodes.accounts.count)
        self.failed: BoolVector | None = None

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:  # noqa: ARG002
        assert self._fn.per_node is not None
        self.values = np.zeros(len(candidates))
        try:
            answer = self._fn.per_node(task, self._nodes.select_rows(np.flatnonzero(candidates)))
            if isinstance(answer, Status):
                return answer
            self.values = scores_by_row(answer, self._nodes)
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._fn.plugin, fault)
        return True


def scores_by_row(answer: Mapping[str, float], nodes: Nodes) -> FloatVector:
    """Scores by node name as a column of all rows. Unknown names and non-numbers raise `InvalidAnswer`."""
    if not isinstance(answer, Mapping) or not all(isinstance(score, Real) for score in answer.values()):
        raise InvalidAnswer(answer, "a number for each node by its name")
    index = nodes.snapshot.nodes.index
    unknown = [name for name in answer if name not in index]
    if unknown:
        raise InvalidAnswer(unknown[0], "the name of a node")
    values: FloatVector = np.zeros(nodes.accounts.count)
    for name, score in answer.items():
        values[index[name]] = float(score)
    return values


def _dependency_value(fn: NodeFunction, task: Task, record_fault: FaultRecorder) -> Hashable:
    """The plugin's current dependency value; a new object each time if it declares none."""
    if fn.depends_on is None:
        return object()
    try:
        return fn.depends_on(task)
    except PLUGIN_EXCEPTIONS as fault:
        record_fault(fn.plugin, fault)
        return object()


def _check_rejections(answer: Iterable[Rejection], count: int) -> Iterator[Rejection]:
    if not isinstance(answer, Iterable):
        raise InvalidAnswer(answer, "an iterable of Rejections")
    for each in answer:
        check_rejection(each, count)
        yield each


def check_rejection(each: Rejection, count: int) -> None:
    """Raise `InvalidAnswer` unless the rejection is valid for this number of rows."""
    if not isinstance(each, Rejection):
        raise InvalidAnswer(each, "a Rejection")
    mask = each.mask
    if not isinstance(mask, np.ndarray) or mask.shape != (count,) or mask.dtype != np.bool_:
        raise InvalidAnswer(mask, f"a mask of {count} booleans, one per node,")


def call_predicate_per_node(
    fn: NodeFunction, task: Task, nodes: Nodes, record_fault: FaultRecorder
) -> list[tuple[int, tuple[Status, ...]]]:
    """Call a predicate for one node at a time. Returns the rejected rows with their statuses."""
    assert fn.per_node is not None
    found = []
    for node in nodes:
        try:
            answer = fn.per_node(task, node)
            if not isinstance(answer, Status | list | tuple | None):
                raise InvalidAnswer(answer, "a Status, several, or None to accept,")
            statuses = statuses_of(answer)
            if not all(isinstance(status, Status) for status in statuses):
                raise InvalidAnswer(answer, "a Status, several, or None to accept,")
        except PLUGIN_EXCEPTIONS as fault:
            record_fault(fn.plugin, fault)
            continue
        if any(not status.ok for status in statuses):
            found.append((node.row, tuple(status for status in statuses if not status.ok)))
    return found
