"""Predicates and node scores as plugins register them, and as they are asked: for a class of tasks on all rows.

A plugin answers in one of three forms; the first is the one anybody can write:

- about one node: `fn(task, node)`, asked on the rows that nobody else rejects;
- about many nodes at once: `fn(task, nodes)`, with columns in and columns out;
- by an object a class of tasks (`factory(task)`), which keeps itself up to date: what the bridge to the framework uses.

Tasks share answers where every plugin says of what its answers depend: `signature(task)` (equal: treated alike; None:
never shared) and `depends_on(task)` (a value that changes when answers on untouched rows may; `ROW_LOCAL`: never;
`NODE_STATIC`: not on touched ones either). A plugin that states neither is asked in full for every task.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np

from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.batch.evaluation.rejected_rows import combination_numbers
from bayplan.batch.model.fit_errors import UNRESOLVABLE_CODES, FitAnswer, statuses_of
from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.tasks import Task
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


def unshared(task: Task) -> Hashable | None:  # noqa: ARG001
    return None


def same_for_all(task: Task) -> Hashable:  # noqa: ARG001
    """`signature=same_for_all`: the plugin does not look at the task at all."""
    return ()


def NODE_STATIC(task: Task) -> Hashable:  # noqa: ARG001, N802
    """`depends_on=NODE_STATIC`: not even on who is on the row; such an answer holds for the whole session."""
    return ()


def ROW_LOCAL(task: Task) -> Hashable:  # noqa: ARG001, N802
    """`depends_on=ROW_LOCAL`: what is said of a row depends on that row and on the task, on nothing else."""
    return ()


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Scores of a table with rows on which scoring failed: such a row loses what every plugin gives it by node."""

    values: FloatVector
    failed: BoolVector


class RowPredicateResults(Protocol):
    """What one plugin says of every row, for one class of tasks. With `keys()`, a number a row that is equal where rows
    answer alike, thousands of rows are explained at the cost of a few."""

    rejected: BoolVector  # any objection
    unresolvable: BoolVector  # one that evicting does not cure

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        """Catch up; None: everything may have changed. True when more than the touched rows was asked again."""
        ...

    def statuses(self, row: int) -> tuple[Status, ...]: ...


class RowScores(Protocol):
    """What one plugin gives every row, for one class of tasks."""

    values: FloatVector  # of candidates; other rows mean nothing
    failed: BoolVector | None  # candidates on which scoring failed

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        """Catch up; None: everything may have changed. True when more than the touched rows may have other values.

        A Status: scoring failed for all."""
        ...


@dataclass(frozen=True, slots=True)
class NodeFunction:
    """A registration at a point about nodes."""

    plugin: str
    per_node: Callable[..., Any] | None = None
    for_nodes: Callable[..., Any] | None = None
    factory: Callable[[Task], Any] | None = None
    signature: Signature = unshared
    depends_on: DependsOn | None = None

    @property
    def callables(self) -> tuple[object, ...]:
        """What has to be a function."""
        fns = tuple(each for each in (self.per_node, self.for_nodes, self.factory) if each is not None) or (None,)
        return (*fns, self.signature) if self.depends_on is None else (*fns, self.signature, self.depends_on)


class TablePredicateResults:
    """`fn(task, nodes)` kept up to date."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, blame: FaultRecorder) -> None:
        self._fn = fn
        self._nodes = nodes
        self._blame = blame
        self._stamp: Hashable = None
        self._asked = False
        self._reasons: dict[tuple[str, Code], BoolVector] = {}
        self.rejected: BoolVector = np.zeros(nodes.accounts.count, dtype=np.bool_)
        self.unresolvable: BoolVector = np.zeros(nodes.accounts.count, dtype=np.bool_)

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        depends = self._fn.depends_on
        stamp = _dependency_value(self._fn, task, self._blame)
        if touched is None or not self._asked or stamp != self._stamp:
            self._stamp, self._asked = stamp, True
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
            self._blame(self._fn.plugin, fault)
            self.rejected[rows] = False
            self.unresolvable[rows] = False
            for mask in self._reasons.values():
                mask[rows] = False

    def keys(self) -> IntVector:
        """Equal for rows that answer alike."""
        return combination_numbers(list(self._reasons.values()), len(self.rejected))

    def statuses(self, row: int) -> tuple[Status, ...]:
        return tuple(Status(code, (text,)) for (text, code), mask in self._reasons.items() if mask[row])


class TableScores:
    """`fn(task, nodes)` kept up to date."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, blame: FaultRecorder, *, compares: bool) -> None:
        self._fn = fn
        self._nodes = nodes
        self._blame = blame
        self._compares = compares  # the scores depend on which nodes are candidates
        self._stamp: Hashable = None
        self._asked = False
        self.values: FloatVector = np.zeros(nodes.accounts.count)
        self.failed: BoolVector | None = None

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        depends = self._fn.depends_on
        stamp = _dependency_value(self._fn, task, self._blame)
        if self._compares or touched is None or not self._asked or stamp != self._stamp:
            self._stamp, self._asked = stamp, True
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
                self._asked = False
                return answer
            if isinstance(answer, ScoredRows):
                if self.failed is None:
                    self.failed = np.zeros(len(self.values), dtype=np.bool_)
                self.failed[rows] = answer.failed
                answer = answer.values
            if not isinstance(answer, np.ndarray) or answer.shape != rows.shape or answer.dtype.kind not in "fiu":
                raise InvalidAnswer(answer, f"a vector of {len(rows)} numbers, one a node,")
            self.values[rows] = answer
        except PLUGIN_EXCEPTIONS as fault:
            self._blame(self._fn.plugin, fault)
            self.values[rows] = 0.0
        return None


class NodeScores:
    """`fn(task, node)` asked of every candidate, each time."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, blame: FaultRecorder) -> None:
        self._fn = fn
        self._nodes = nodes
        self._blame = blame
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
                self._blame(self._fn.plugin, fault)
                self.values[node.row] = 0.0
        return True


class BatchScores:
    """`fn(task, nodes)` with scores by name, asked each time."""

    def __init__(self, fn: NodeFunction, nodes: Nodes, blame: FaultRecorder) -> None:
        self._fn = fn
        self._nodes = nodes
        self._blame = blame
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
            self._blame(self._fn.plugin, fault)
        return True


def scores_by_row(answer: Mapping[str, float], nodes: Nodes) -> FloatVector:
    """Scores by the names of nodes as a column of all rows; strange names, and what is no number, are refused."""
    if not isinstance(answer, Mapping) or not all(isinstance(score, Real) for score in answer.values()):
        raise InvalidAnswer(answer, "a number for each node by its name")
    index = nodes.snapshot.nodes.index
    strangers = [name for name in answer if name not in index]
    if strangers:
        raise InvalidAnswer(strangers[0], "the name of a node")
    values: FloatVector = np.zeros(nodes.accounts.count)
    for name, score in answer.items():
        values[index[name]] = float(score)
    return values


def _dependency_value(fn: NodeFunction, task: Task, blame: FaultRecorder) -> Hashable:
    """What the plugin's answers depend on elsewhere; new each time where it does not say."""
    if fn.depends_on is None:
        return object()
    try:
        return fn.depends_on(task)
    except PLUGIN_EXCEPTIONS as fault:
        blame(fn.plugin, fault)
        return object()


def _check_rejections(answer: Iterable[Rejection], count: int) -> Iterator[Rejection]:
    if not isinstance(answer, Iterable):
        raise InvalidAnswer(answer, "an iterable of Rejections")
    for each in answer:
        check_rejection(each, count)
        yield each


def check_rejection(each: Rejection, count: int) -> None:
    """Refuse what is no rejection of some of so many rows."""
    if not isinstance(each, Rejection):
        raise InvalidAnswer(each, "a Rejection")
    mask = each.mask
    if not isinstance(mask, np.ndarray) or mask.shape != (count,) or mask.dtype != np.bool_:
        raise InvalidAnswer(mask, f"a mask of {count} truths, one a node,")


def call_predicate_per_node(
    fn: NodeFunction, task: Task, nodes: Nodes, blame: FaultRecorder
) -> list[tuple[int, tuple[Status, ...]]]:
    """A predicate in the simple form on these nodes: the rows that it rejects, and why."""
    assert fn.per_node is not None
    found = []
    for node in nodes:
        try:
            answer = fn.per_node(task, node)
            if not isinstance(answer, Status | list | tuple | None):
                raise InvalidAnswer(answer, "a Status, several, or None where the task may go there,")
            statuses = statuses_of(answer)
            if not all(isinstance(status, Status) for status in statuses):
                raise InvalidAnswer(answer, "a Status, several, or None where the task may go there,")
        except PLUGIN_EXCEPTIONS as fault:
            blame(fn.plugin, fault)
            continue
        if any(not status.ok for status in statuses):
            found.append((node.row, tuple(status for status in statuses if not status.ok)))
    return found
