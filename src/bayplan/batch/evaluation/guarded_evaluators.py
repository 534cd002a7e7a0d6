"""What plugins make themselves to answer for all rows, kept from harming others.

Asked by prospects, for registrations by `make(task)`. A plugin whose object cannot be made, breaks, or shows nonsense
is named, and has no opinion about that class of tasks from then on. Cost: some comparisons a refresh, none a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.batch.evaluation.node_points import FaultRecorder, NodeFunction
from bayplan.batch.evaluation.rejected_rows import RejectedRows, group_rows_by_answer
from bayplan.batch.model.nodes import FloatVector
from bayplan.batch.model.tasks import Task
from bayplan.framework.api.status import Status, unschedulable
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.snapshot import BoolVector, RowVector


class GuardedPredicateResults:
    """A plugin's own `RowPredicateResults`, guarded."""

    def __init__(self, fn: NodeFunction, task: Task, count: int, blame: FaultRecorder) -> None:
        self._plugin = fn.plugin
        self._blame = blame
        self._none: BoolVector = np.zeros(count, dtype=np.bool_)
        self.rejected = self.unresolvable = self._none
        self.instance: Any = _call_factory(fn, task, ("refresh", "statuses", "rejected", "unresolvable"), blame)

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        made = self.instance
        if made is None:
            return False
        try:
            moved = bool(made.refresh(task, touched))
            self.rejected, self.unresolvable = self._mask(made.rejected), self._mask(made.unresolvable)
        except PLUGIN_EXCEPTIONS as fault:
            self._blame(self._plugin, fault)
            self.instance, self.rejected, self.unresolvable = None, self._none, self._none
            return True
        return moved

    def _mask(self, mask: Any) -> BoolVector:
        found: BoolVector = _check_column(
            mask, self._none.shape, "b", f"a mask of {len(self._none)} truths, one a node,"
        )
        return found

    def statuses(self, row: int) -> tuple[Status, ...]:
        try:
            return _check_statuses(self.instance.statuses(row))
        except PLUGIN_EXCEPTIONS as fault:
            self._blame(self._plugin, fault)
            return (self._no_reason_status(),)

    def rejections(self, rows: RowVector) -> list[RejectedRows]:
        """Why these rows, which it rejects, do not want the task."""
        if not len(rows):
            return []
        try:
            found = group_rows_by_answer(rows, self.instance)
            for statuses, _ in found:
                _check_statuses(statuses)
        except PLUGIN_EXCEPTIONS as fault:
            self._blame(self._plugin, fault)
            return [RejectedRows((self._no_reason_status(),), rows)]
        return found

    def _no_reason_status(self) -> Status:
        """It had said no before it broke: others have acted on that."""
        return unschedulable(f"plugin {self._plugin} does not say why")


class GuardedScores:
    """A plugin's own `RowScores`, guarded."""

    def __init__(self, fn: NodeFunction, task: Task, count: int, blame: FaultRecorder) -> None:
        self._plugin = fn.plugin
        self._blame = blame
        self.values: FloatVector = np.zeros(count)
        self.failed: BoolVector | None = None
        self._made: Any = _call_factory(fn, task, ("refresh", "values", "failed"), blame)

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        made = self._made
        if made is None:
            return False
        try:
            moved = made.refresh(task, candidates, touched)
            if isinstance(moved, Status):
                return moved
            count = len(candidates)
            self.values = _check_column(made.values, (count,), "fiu", f"a vector of {count} numbers, one a node,")
            if made.failed is not None:
                _check_column(made.failed, (count,), "b", f"a mask of {count} truths, one a node, or None")
            self.failed = made.failed
            return bool(moved)
        except PLUGIN_EXCEPTIONS as fault:
            self._blame(self._plugin, fault)
            self._made, self.values, self.failed = None, np.zeros(len(candidates)), None
            return True


def _call_factory(fn: NodeFunction, task: Task, members: tuple[str, ...], blame: FaultRecorder) -> Any:
    """The plugin's object; None where it has none that could be asked."""
    assert fn.factory is not None
    try:
        made = fn.factory(task)
        if not all(hasattr(made, member) for member in members):
            raise InvalidAnswer(made, f"an object with {', '.join(members)}")
    except PLUGIN_EXCEPTIONS as fault:
        blame(fn.plugin, fault)
        return None
    return made


def _check_column(answer: Any, shape: tuple[int, ...], kinds: str, wanted: str) -> Any:
    if not isinstance(answer, np.ndarray) or answer.shape != shape or answer.dtype.kind not in kinds:
        raise InvalidAnswer(answer, wanted)
    return answer


def _check_statuses(statuses: Any) -> tuple[Status, ...]:
    if not isinstance(statuses, tuple) or not all(isinstance(each, Status) for each in statuses):
        raise InvalidAnswer(statuses, "a tuple of Statuses")
    return statuses
