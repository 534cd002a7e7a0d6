"""Why a task fits no node, as its conditions and its group's events will say it.

A predicate answers with a `Status` of the framework, or several: `unschedulable(...)` where evicting may help,
`unresolvable(...)` where nothing on that node helps, `error(...)` where the plugin cannot say. What a whole search
found is kept as counts by reason and a mask of hopeless rows, not as one object a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bayplan.framework.api.status import Code, Status
from bayplan.snapshot import BoolVector

POD_NUMBER_EXCEEDED = "node(s) pod number exceeded"
ALL_NODES_UNAVAILABLE = "all nodes are unavailable"

FitAnswer = Status | Sequence[Status] | None
"""What a predicate returns: nothing where the task fits."""

REJECTING_ALLOCATE = frozenset({Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.ERROR, Code.SKIP, Code.WAIT})
REJECTING_PREEMPT = REJECTING_ALLOCATE - {Code.UNSCHEDULABLE}
"""Preempting may cure what is plainly unschedulable, so only the graver codes count there."""

UNRESOLVABLE_CODES = REJECTING_PREEMPT
"""Codes after which a node is not looked at any further."""


def insufficient_reason(names: Sequence[str]) -> str:
    """The reason of a node that lacks these resources: the first is named."""
    return f"Insufficient {names[0]}" if names else ""


def statuses_of(answer: FitAnswer) -> tuple[Status, ...]:
    """A predicate's answer as the statuses that say no."""
    if answer is None:
        return ()
    return (answer,) if isinstance(answer, Status) else tuple(answer)


def rejects(statuses: Iterable[Status], codes: frozenset[Code]) -> bool:
    return any(status.code in codes for status in statuses)


class FitErrors:
    """What one search for a node found, for one task."""

    __slots__ = ("count", "hyper_node", "reasons", "summary", "unresolvable")

    def __init__(
        self,
        count: int = 0,
        reasons: Mapping[str, int] | None = None,
        unresolvable: BoolVector | None = None,
        *,
        head: str = "",
    ) -> None:
        self.count = count  # nodes that said no
        self.reasons: Mapping[str, int] = reasons if reasons is not None else {}
        self.unresolvable = unresolvable  # rows on which evicting is no use; None: no row
        self.summary = head
        self.hyper_node = ""

    @classmethod
    def on_all_rows(cls, status: Status, rows: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.intp]]) -> FitErrors:
        """The same answer on all of these rows: something was wrong before any node was looked at."""
        count = len(rows)
        return cls(count, {status.message: count} if status.message and count else {})

    def text(self) -> str:
        """The sentence for people."""
        head = self.summary or f"0/{self.count} nodes are unavailable"
        if not self.count:
            return head
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in self.reasons.items()))
        prefix = f"In hyperNode {self.hyper_node}: " if self.hyper_node else ""
        return f"{prefix}{head}: {listed}."
