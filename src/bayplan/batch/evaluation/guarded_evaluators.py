"""What plugins make themselves to answer for all rows, kept from harming others.

Asked by prospects, for registrations by `make(task)`. A plugin whose object cannot be made, breaks, or shows nonsense
is named, and has no opinion about that class of tasks from then on. Cost: some comparisons a refresh, none a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayplan.batch.diagnostics.plugin_faults import Nonsense
from bayplan.batch.evaluation.node_points import Blame, NodeFn
from bayplan.batch.evaluation.rejected_rows import Refusal, by_answer
from bayplan.batch.model.nodes import FloatVector
from bayplan.batch.model.tasks import Task
from bayplan.framework.api.status import Status, unschedulable
from bayplan.framework.runtime.plugin_call import FAULTS
from bayplan.snapshot import BoolVector, RowVector


class MadeVerdicts:
    """A plugin's own `RowVerdicts`, guarded."""

    def __init__(self, fn: NodeFn, task: Task, count: int, blame: Blame) -> None:
        self._plugin = fn.plugin
        self._blame = blame
        self._none: BoolVector = np.zeros(count, dtype=np.bool_)
        self.says_no = self.grave = self._none
        self.made: Any = _made(fn, task, ("refresh", "statuses", "says_no", "grave"), blame)

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        made = self.made
        if made is None:
            return False
        try:
            moved = bool(made.refresh(task, touched))
            self.says_no, self.grave = self._mask(made.says_no), self._mask(made.grave)
        except FAULTS as fault:
            self._blame(self._plugin, fault)
            self.made, self.says_no, self.grave = None, self._none, self._none
            return True
        return moved

    def _mask(self, mask: Any) -> BoolVector:
        found: BoolVector = _column(mask, self._none.shape, "b", f"a mask of {len(self._none)} truths, one a node,")
        return found

    def statuses(self, row: int) -> tuple[Status, ...]:
        try:
            return _told(self.made.statuses(row))
        except FAULTS as fault:
            self._blame(self._plugin, fault)
            return (self._speechless(),)

    def refusals(self, rows: RowVector) -> list[Refusal]:
        """Why these rows, which it rejects, do not want the task."""
        if not len(rows):
            return []
        try:
            found = by_answer(rows, self.made)
            for statuses, _ in found:
                _told(statuses)
        except FAULTS as fault:
            self._blame(self._plugin, fault)
            return [Refusal((self._speechless(),), rows)]
        return found

    def _speechless(self) -> Status:
        """It had said no before it broke: others have acted on that."""
        return unschedulable(f"plugin {self._plugin} does not say why")


class MadeScores:
    """A plugin's own `RowScores`, guarded."""

    def __init__(self, fn: NodeFn, task: Task, count: int, blame: Blame) -> None:
        self._plugin = fn.plugin
        self._blame = blame
        self.values: FloatVector = np.zeros(count)
        self.failed: BoolVector | None = None
        self._made: Any = _made(fn, task, ("refresh", "values", "failed"), blame)

    def refresh(self, task: Task, candidates: BoolVector, touched: Sequence[int] | None) -> bool | Status:
        made = self._made
        if made is None:
            return False
        try:
            moved = made.refresh(task, candidates, touched)
            if isinstance(moved, Status):
                return moved
            count = len(candidates)
            self.values = _column(made.values, (count,), "fiu", f"a vector of {count} numbers, one a node,")
            if made.failed is not None:
                _column(made.failed, (count,), "b", f"a mask of {count} truths, one a node, or None")
            self.failed = made.failed
            return bool(moved)
        except FAULTS as fault:
            self._blame(self._plugin, fault)
            self._made, self.values, self.failed = None, np.zeros(len(candidates)), None
            return True


def _made(fn: NodeFn, task: Task, members: tuple[str, ...], blame: Blame) -> Any:
    """The plugin's object; None where it has none that could be asked."""
    assert fn.make is not None
    try:
        made = fn.make(task)
        if not all(hasattr(made, member) for member in members):
            raise Nonsense(made, f"an object with {', '.join(members)}")
    except FAULTS as fault:
        blame(fn.plugin, fault)
        return None
    return made


def _column(answer: Any, shape: tuple[int, ...], kinds: str, wanted: str) -> Any:
    if not isinstance(answer, np.ndarray) or answer.shape != shape or answer.dtype.kind not in kinds:
        raise Nonsense(answer, wanted)
    return answer


def _told(statuses: Any) -> tuple[Status, ...]:
    if not isinstance(statuses, tuple) or not all(isinstance(each, Status) for each in statuses):
        raise Nonsense(statuses, "a tuple of Statuses")
    return statuses
