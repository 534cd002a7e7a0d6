"""Rows that refuse a task, told together where they give the same answer.

A cluster of thousands of nodes has a handful of reasons. Plugins that answer for all rows say which of them answer
alike (`keys`), so that a reason is made into words once, not once a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bayplan.batch.model.fit_errors import FitErrors
from bayplan.framework.api.status import Code, Status
from bayplan.snapshot import BoolVector, IntVector, RowVector

_MOST_BITS = 62


class RejectedRows(NamedTuple):
    """One answer, and the rows that give it."""

    statuses: tuple[Status, ...]
    rows: RowVector


def fit_errors_of(refusals: Iterable[RejectedRows], rows: int) -> FitErrors:
    """What a search found that was refused by all of these; `rows` is how many rows there are at all."""
    reasons: Counter[str] = Counter()
    unresolvable: BoolVector | None = None
    count = 0
    for statuses, where in refusals:
        count += len(where)
        for status in statuses:
            if status.message:
                reasons[status.message] += len(where)
        if any(status.code is Code.UNRESOLVABLE for status in statuses):
            if unresolvable is None:
                unresolvable = np.zeros(rows, dtype=np.bool_)
            unresolvable[where] = True
    return FitErrors(count, reasons, unresolvable)


def group_rows_by_answer(rows: RowVector, verdicts: Any) -> list[RejectedRows]:
    """What one plugin says of rows that it rejects; rows that answer alike together."""
    if not len(rows):
        return []
    keys = getattr(verdicts, "keys", None)
    if keys is None:
        return group_rows_by_statuses((row, verdicts.statuses(row)) for row in rows.tolist())
    found = []
    values = keys()[rows]
    for value in np.unique(values):
        alike = rows[values == value]
        found.append(RejectedRows(verdicts.statuses(int(alike[0])), alike))
    return found


def group_rows_by_statuses(told: Iterable[tuple[int, tuple[Status, ...]]]) -> list[RejectedRows]:
    """The same of rows that were asked one by one."""
    groups: dict[tuple[Status, ...], list[int]] = {}
    for row, statuses in told:
        groups.setdefault(statuses, []).append(row)
    return [RejectedRows(statuses, np.array(rows, dtype=np.intp)) for statuses, rows in groups.items()]


def combination_numbers(masks: Sequence[BoolVector], count: int) -> IntVector:
    """A number for each row, equal where the row is in the same masks."""
    keys = np.zeros(count, dtype=np.int64)
    if len(masks) > _MOST_BITS:
        _, keys = np.unique(np.stack(masks), axis=1, return_inverse=True)
        return keys.astype(np.int64)
    for number, mask in enumerate(masks):
        keys |= mask.astype(np.int64) << number
    return keys
