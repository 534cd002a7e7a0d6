"""Guards for result objects of plugins: contains their faults.

Called by `TaskClassEvaluation` for registrations by `make(task)`. A plugin whose object cannot be created, raises or
returns invalid results is reported. From then on it is ignored for that class of tasks. Cost: some comparisons per
refresh, none per row.
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
    def __init__(self, fn: NodeFunction, task: Task, count: int, record_fault: FaultRecorder) -> None:
        self._plugin = fn.plugin
        self._record_fault = record_fault
        self._none: BoolVector = np.zeros(count, dtype=np.bool_)
        self.rejected = self.unresolvable = self._none
        self.instance: Any = _call_factory(fn, task, ("refresh", "statuses", "rejected", "unresolvable"), record_fault)

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        instance = self.instance
        if instance is None:
            return False
        try:
            changed = bool(instance.refresh(task, touched))
            self.rejected, self.unresolvable = self._mask(instance.rejected), self._mask(instance.unresolvable)
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._plugin, fault)
            self.instance, self.rejected, self.unresolvable = None, self._none, self._none
            return True
        return changed

    def _mask(self, mask: Any) -> BoolVector:
        found: BoolVector = _check_column(
            mask, self._none.shape, "b", f"a mask of {len(self._none)} booleans, one per node,"
        )
        return found

    def statuses(self, row: int) -> tuple[Status, ...]:
        try:
            return _check_statuses(self.instance.statuses(row))
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._plugin, fault)
            return (self._no_reason_status(),)

    def rejections(self, rows: RowVector) -> list[RejectedRows]:
        if not len(rows):
            return []
        try:
            found = group_rows_by_answer(rows, self.instance)
            for statuses, _ in found:
                _check_statuses(statuses)
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._plugin, fault)
            return [RejectedRows((self._no_reason_status(),), rows)]
        return found

    def _no_reason_status(self) -> Status:
        """The rejection happened before the fault and stays in force, but its reason is unknown."""
        return unschedulable(f"plugin {self._plugin} does not say why")


class GuardedScores:
    def __init__(self, fn: NodeFunction, task: Task, count: int, record_fault: FaultRecorder) -> None:
        self._plugin = fn.plugin
        self._record_fault = record_fault
        self.values: FloatVector = np.zeros(count)
        self.failed: BoolVector | None = None
        self._instance: Any = _call_factory(fn, task, ("refresh", "values", "failed"), record_fault)

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        instance = self._instance
        if instance is None:
            return False
        try:
            changed = instance.refresh(task, candidates, touched)
            if isinstance(changed, Status):
                return changed
            count = len(candidates)
            self.values = _check_column(instance.values, (count,), "fiu", f"a vector of {count} numbers, one per node,")
            if instance.failed is not None:
                _check_column(instance.failed, (count,), "b", f"a mask of {count} booleans, one per node, or None")
            self.failed = instance.failed
            return bool(changed)
        except PLUGIN_EXCEPTIONS as fault:
            self._record_fault(self._plugin, fault)
            self._instance, self.values, self.failed = None, np.zeros(len(candidates)), None
            return True


def _call_factory(fn: NodeFunction, task: Task, members: tuple[str, ...], record_fault: FaultRecorder) -> Any:
    """The plugin's object; None if it is not usable."""
    assert fn.factory is not None
    try:
        instance = fn.factory(task)
        if not all(hasattr(instance, member) for member in members):
            raise InvalidAnswer(instance, f"an object with {', '.join(members)}")
    except PLUGIN_EXCEPTIONS as fault:
        record_fault(fn.plugin, fault)
        return None
    return instance


def _check_column(answer: Any, shape: tuple[int, ...], kinds: str, wanted: str) -> Any:
    if not isinstance(answer, np.ndarray) or answer.shape != shape or answer.dtype.kind not in kinds:
        raise InvalidAnswer(answer, wanted)
    return answer


def _check_statuses(statuses: Any) -> tuple[Status, ...]:
    if not isinstance(statuses, tuple) or not all(isinstance(each, Status) for each in statuses):
        raise InvalidAnswer(statuses, "a tuple of Statuses")
    return statuses
