"""Sampling of nodes: limits how many feasible nodes a search looks for."""

from __future__ import annotations

import numpy as np

from bayplan.snapshot import BoolVector


class FeasibleNodeSampling:
    """The number of feasible nodes to find for one task: a percentage of all nodes, with a minimum.

    Volcano's way to save time: a search ends after this many feasible nodes, and the next one begins where it ended.
    """

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
        """The first feasible rows in search order, up to the limit.

        The search begins where the last one ended or, for a task that had a row before, at that row. Otherwise a
        pending task would get other rows in every session.
        """
        rows = np.arange(len(feasible)) if among is None else np.flatnonzero(among)
        wanted = self.num_feasible_nodes_to_find(len(rows))
        if wanted >= len(rows):
            return feasible
        again = first is not None and bool(feasible[first])
        start = int(np.searchsorted(rows, first or 0)) if again else self._next % len(rows)
        order = np.concatenate((rows[start:], rows[:start]))
        chosen = np.flatnonzero(feasible[order])[:wanted]
        if not again:
            examined = int(chosen[-1]) + 1 if len(chosen) == wanted else len(rows)
            self._next = (start + examined) % len(rows)
        found: BoolVector = np.zeros(len(feasible), dtype=np.bool_)
        found[order[chosen]] = True
        return found
