"""Of how many nodes does one task's search look at, where people want it to look at fewer than all?"""

from __future__ import annotations

import numpy as np

from bayplan.snapshot import BoolVector


class FeasibleNodeSampling:
    """How many nodes are looked at for one task: a percentage, but never fewer than a number.

    Volcano's way to save time: a search ends when it has found so many, and the next one begins where it ended."""

    __slots__ = ("_least", "_next", "_percentage")

    def __init__(self, percentage: int, least: int) -> None:
        self._percentage = percentage
        self._least = least
        self._next = 0

    def num_feasible_nodes_to_find(self, nodes: int) -> int:
        if nodes <= self._least or self._percentage >= 100:
            return nodes
        return max(nodes * self._percentage // 100, self._least)

    def sample(self, feasible: BoolVector, among: BoolVector | None, first: int | None = None) -> BoolVector:
        """The first of the feasible rows, as many as are wanted: from where the last search ended or, for a task that
        had a row before, from that row on. Else a task that waits would see other rows in every session."""
        rows = np.arange(len(feasible)) if among is None else np.flatnonzero(among)
        wanted = self.num_feasible_nodes_to_find(len(rows))
        if wanted >= len(rows):
            return feasible
        again = first is not None and bool(feasible[first])
        start = int(np.searchsorted(rows, first or 0)) if again else self._next % len(rows)
        order = np.concatenate((rows[start:], rows[:start]))
        good = np.flatnonzero(feasible[order])[:wanted]
        if not again:
            looked_at = int(good[-1]) + 1 if len(good) == wanted else len(rows)
            self._next = (start + looked_at) % len(rows)
        found: BoolVector = np.zeros(len(feasible), dtype=np.bool_)
        found[order[good]] = True
        return found
