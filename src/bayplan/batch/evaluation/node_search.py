"""One task's search for a node, and the failures of earlier tasks of its role.

Within one search for a gang, a node that rejected a task rejects every later task of the same job and role with the
same reasons, whatever changed meanwhile. This is Volcano's "predicate error cache". Called by the actions that place
tasks.
"""

from __future__ import annotations

import numpy as np

from bayplan.batch.evaluation.rejected_rows import RejectedRows, fit_errors_of
from bayplan.batch.evaluation.task_class_evaluation import TaskClassEvaluation
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.snapshot import BoolVector


class _FailedRows:
    __slots__ = ("count", "rejections", "rows")

    def __init__(self, count: int) -> None:
        self.rows: BoolVector = np.zeros(count, dtype=np.bool_)
        self.count = 0  # number of these rows
        self.rejections: list[RejectedRows] = []


class NodeSearch:
    """The searches of one statement, which share failures."""

    def __init__(self, session: Session, *, caches_failures: bool) -> None:
        self._session = session
        self._caches_failures = caches_failures
        self._failed: dict[tuple[str, str], _FailedRows] = {}

    def feasible(self, task: Task, evaluation: TaskClassEvaluation, among: BoolVector | None) -> BoolVector:
        """Rows with enough resources, now or after evictions, that no predicate rejects."""
        fits = evaluation.fits_future if among is None else evaluation.fits_future & among
        failed = self._failed_rows_of(task)
        allowed = evaluation.rows_to_allocate(task, fits if failed is None else fits & ~failed.rows)
        sampling = self._session.node_sampling
        return allowed if sampling is None else sampling.sample(allowed, among, self._session.previous_row(task))

    def note_failures(
        self, task: Task, evaluation: TaskClassEvaluation, feasible: BoolVector, among: BoolVector | None
    ) -> None:
        """Remember the rows that rejected the task for later tasks of its role."""
        if not self._caches_failures or not task.role:
            return
        failed = self._failed_rows_of(task)
        if among is None and failed is not None and failed.count + np.count_nonzero(feasible) == len(feasible):
            return  # the failed and the feasible rows are disjoint and cover all rows
        rejected = ~feasible if among is None else among & ~feasible
        if failed is not None:
            rejected &= ~failed.rows
        new_rows = np.flatnonzero(rejected)
        if not len(new_rows):
            return
        if failed is None:
            failed = self._failed[task.job, task.role] = _FailedRows(len(rejected))
        failed.rejections += evaluation.rejections(task, new_rows, with_room=True)
        failed.rows[new_rows] = True
        failed.count += len(new_rows)

    def explain(self, task: Task, evaluation: TaskClassEvaluation, among: BoolVector | None) -> FitErrors:
        """The reasons why none of the rows fits."""
        remaining = np.ones(len(self._session.nodes), dtype=np.bool_) if among is None else among.copy()
        failed = self._failed_rows_of(task)
        found: list[RejectedRows] = []
        if failed is not None:
            found = [RejectedRows(statuses, rows[remaining[rows]]) for statuses, rows in failed.rejections]
            remaining &= ~failed.rows
        found += evaluation.rejections(task, np.flatnonzero(remaining), with_room=True)
        self._session.verbose_log.log_rejections(task, found, self._session.snapshot.nodes.names)
        return fit_errors_of(found, len(remaining))

    def _failed_rows_of(self, task: Task) -> _FailedRows | None:
        return self._failed.get((task.job, task.role)) if self._caches_failures and task.role else None
