"""Rows that reject a task, grouped by equal answers.

A cluster of thousands of nodes has a handful of reasons. Results for all rows identify equal answers by `keys`, so a
reason is formatted once, not once per node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bayplan.batch.model.fit_errors import FitErrors
from bayplan.framework.api.status import Code, Status
from bayplan.snapshot import BoolVector, RowVector


class RejectedRows(NamedTuple):
    """One answer and the rows that gave it."""

    statuses: tuple[Status, ...]
    rows: RowVector


def fit_errors_of(rejections: Iterable[RejectedRows], rows: int) -> FitErrors:
    """Combine the rejections of a search; `rows` is the total number of rows."""
    reasons: Counter[str] = Counter()
    unresolvable: BoolVector | None = None
    count = 0
    for statuses, where in rejections:
        count += len(where)
        for status in statuses:
            if status.message:
                reasons[status.message] += len(where)
        if any(status.code is Code.UNRESOLVABLE for status in statuses):
            if unresolvable is None:
                unresolvable = np.zeros(rows, dtype=np.bool_)
            unresolvable[where] = True
    return FitErrors(count, reasons, unresolvable)


def group_rows_by_answer(rows: RowVector, results: Any) -> list[RejectedRows]:
    if not len(rows):
        return []
    keys = getattr(results, "keys", None)
    if keys is None:
        return group_rows_by_statuses((row, results.statuses(row)) for row in rows.tolist())
    found = []
    values = keys()[rows]
    for value in np.unique(values):
        same_answer = rows[values == value]
        found.append(RejectedRows(results.statuses(int(same_answer[0])), same_answer))
    return found


def group_rows_by_statuses(statuses_by_row: Iterable[tuple[int, tuple[Status, ...]]]) -> list[RejectedRows]:
    """Group rows that were evaluated one by one."""
    groups: dict[tuple[Status, ...], list[int]] = {}
    for row, statuses in statuses_by_row:
        groups.setdefault(statuses, []).append(row)
    return [RejectedRows(statuses, np.array(rows, dtype=np.intp)) for statuses, rows in groups.items()]
