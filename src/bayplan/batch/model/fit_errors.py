"""Fit errors: why a task fits no node. Conditions and pod group events quote them.

A predicate returns one or several `Status` values of the framework: `unschedulable(...)` when eviction may help,
`unresolvable(...)` when nothing on that node helps, `error(...)` when the plugin failed. A whole search is stored as
counts by reason and a mask of unresolvable rows, not as one object per node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bayplan.framework.api.status import Code, Status
from bayplan.snapshot import BoolVector

POD_NUMBER_EXCEEDED = "node(s) pod number exceeded"
ALL_NODES_UNAVAILABLE = "all nodes are unavailable"

FitAnswer = Status | Sequence[Status] | None
"""Return type of a predicate: None when the task fits."""

REJECTING_ALLOCATE = frozenset({Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.ERROR, Code.SKIP, Code.WAIT})
REJECTING_PREEMPT = REJECTING_ALLOCATE - {Code.UNSCHEDULABLE}
"""Preemption can resolve plain unschedulability, so only the other codes reject a node there."""

UNRESOLVABLE_CODES = REJECTING_PREEMPT
"""Codes after which a node is not examined further."""


def insufficient_reason(names: Sequence[str]) -> str:
    """The reason for a node that lacks these resources. It names the first."""
    return f"Insufficient {names[0]}" if names else ""


def statuses_of(answer: FitAnswer) -> tuple[Status, ...]:
    """A predicate's answer as a tuple of rejecting statuses."""
    if answer is None:
        return ()
    return (answer,) if isinstance(answer, Status) else tuple(answer)


def rejects(statuses: Iterable[Status], codes: frozenset[Code]) -> bool:
    return any(status.code in codes for status in statuses)


class FitErrors:
    """Result of one failed search for a node, for one task."""

    __slots__ = ("count", "hyper_node", "reasons", "summary", "unresolvable")

    def __init__(
        self,
        count: int = 0,
        reasons: Mapping[str, int] | None = None,
        unresolvable: BoolVector | None = None,
        *,
        head: str = "",
    ) -> None:
        self.count = count  # number of nodes that rejected the task
        self.reasons: Mapping[str, int] = reasons if reasons is not None else {}
        self.unresolvable = unresolvable  # rows on which eviction does not help; None: no row
        self.summary = head
        self.hyper_node = ""

    @classmethod
    def on_all_rows(cls, status: Status, rows: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.intp]]) -> FitErrors:
        """The same status on all of these rows: the search failed before it looked at any node."""
        count = len(rows)
        return cls(count, {status.message: count} if status.message and count else {})

    def text(self) -> str:
        """The message shown to users."""
        head = self.summary or f"0/{self.count} nodes are unavailable"
        if not self.count:
            return head
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in self.reasons.items()))
        prefix = f"In hyperNode {self.hyper_node}: " if self.hyper_node else ""
        return f"{prefix}{head}: {listed}."
