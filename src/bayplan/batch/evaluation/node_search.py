"""One task's search for a node, and what earlier tasks of its role have found out.

Within one search for a gang, a node that failed a task fails every later task of the same job and role with the same
words, whatever changed meanwhile; Volcano's "predicate error cache". Asked by the actions that place tasks.
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
    """Rows that failed a role, and what they said."""

    __slots__ = ("count", "refusals", "rows")

    def __init__(self, count: int) -> None:
        self.rows: BoolVector = np.zeros(count, dtype=np.bool_)
        self.count = 0  # of those rows
        self.refusals: list[RejectedRows] = []


class NodeSearch:
    """Searches of one statement: they share what failed."""

    def __init__(self, session: Session, *, remembers: bool) -> None:
        self._session = session
        self._caches_failures = remembers
        self._failed: dict[tuple[str, str], _FailedRows] = {}

    def feasible(self, task: Task, prospect: TaskClassEvaluation, among: BoolVector | None) -> BoolVector:
        """Rows with room, now or soon, that no predicate rejects."""
        fits = prospect.fits_future if among is None else prospect.fits_future & among
        failed = self._failed_rows_of(task)
        allowed = prospect.rows_to_allocate(task, fits if failed is None else fits & ~failed.rows)
        share = self._session.node_sampling
        return allowed if share is None else share.sample(allowed, among, self._session.previous_row(task))

    def note_failures(
        self, task: Task, prospect: TaskClassEvaluation, feasible: BoolVector, among: BoolVector | None
    ) -> None:
        """Remember the rows that failed the task for those of its role that follow."""
        if not self._caches_failures or not task.role:
            return
        failed = self._failed_rows_of(task)
        if among is None and failed is not None and failed.count + np.count_nonzero(feasible) == len(feasible):
            return  # the two have nothing in common, and nobody else is left
        lost = ~feasible if among is None else among & ~feasible
        if failed is not None:
            lost &= ~failed.rows
        fresh = np.flatnonzero(lost)
        if not len(fresh):
            return
        if failed is None:
            failed = self._failed[task.job, task.role] = _FailedRows(len(lost))
        failed.refusals += prospect.rejections(task, fresh, with_room=True)
        failed.rows[fresh] = True
        failed.count += len(fresh)

    def explain(self, task: Task, prospect: TaskClassEvaluation, among: BoolVector | None) -> FitErrors:
        """Why none of the rows will do."""
        wanted = np.ones(len(self._session.nodes), dtype=np.bool_) if among is None else among.copy()
        failed = self._failed_rows_of(task)
        found: list[RejectedRows] = []
        if failed is not None:
            found = [RejectedRows(statuses, rows[wanted[rows]]) for statuses, rows in failed.refusals]
            wanted &= ~failed.rows
        found += prospect.rejections(task, np.flatnonzero(wanted), with_room=True)
        self._session.verbose_log.log_rejections(task, found, self._session.snapshot.nodes.names)
        return fit_errors_of(found, len(wanted))

    def _failed_rows_of(self, task: Task) -> _FailedRows | None:
        return self._failed.get((task.job, task.role)) if self._caches_failures and task.role else None
