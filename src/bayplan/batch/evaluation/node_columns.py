"""What several scorers ask about all nodes at once: how full would they be with a task on them?

Amounts are matrices here, a line a resource and a column a node, so that a question costs the same few operations
for one node and for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan.batch.model.node_accounts import FloatMatrix
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.snapshot import BoolVector


@dataclass(frozen=True, slots=True)
class WeightedDemand:
    """What tasks of one kind ask for, of the resources that somebody has given a weight; one line each."""

    columns: npt.NDArray[np.intp]
    asked: FloatMatrix
    weights: FloatMatrix

    @classmethod
    def of(cls, task: Task, nodes: Nodes, weights: Iterable[tuple[str, int]]) -> WeightedDemand:
        """`weights`: resources of the task, in the order in which they are added up."""
        nodes.accounts.demand(task)  # from here on the room has a line for each of them
        named = list(weights)
        index = nodes.accounts.dimensions.index
        return cls(
            np.array([index[name] for name, _ in named], dtype=np.intp),
            np.array([[task.resreq.get(name)] for name, _ in named], dtype=np.float64).reshape(-1, 1),
            np.array([[weight] for _, weight in named], dtype=np.float64).reshape(-1, 1),
        )

    def used_with_task(self, nodes: Nodes) -> FloatMatrix:
        """What would be used of each with the task there."""
        return self.asked + self._lines(nodes, nodes.accounts.used)

    def capacity(self, nodes: Nodes) -> FloatMatrix:
        return self._lines(nodes, nodes.accounts.allocatable)

    def _lines(self, nodes: Nodes, matrix: FloatMatrix) -> FloatMatrix:
        lines: FloatMatrix = matrix[self.columns] if nodes.is_whole else matrix[self.columns[:, None], nodes.rows]
        return lines

    def weighted_mean(self, parts: FloatMatrix, capacity: FloatMatrix, total_weight: int) -> FloatVector:
        """The weighted mean of parts of a capacity. None of a resource counts as an empty part of it."""
        known = capacity != 0
        shares = np.where(known, parts * self.weights / np.where(known, capacity, 1.0), 0.0)
        total = np.zeros(shares.shape[1])
        for line in shares:  # one after the other, as floats must be added to come out the same everywhere
            total += line
        if total_weight > 0:
            total /= total_weight
        return total


def exceeds_capacity(taken: FloatMatrix, capacity: FloatMatrix) -> BoolVector:
    """Nodes on which anything would be more than there is; what a node has none of is not looked at."""
    found: BoolVector = ((taken > capacity) & (capacity != 0)).any(axis=0)
    return found


def rows_with_resource(nodes: Nodes, resource: str) -> BoolVector:
    """The rows of a session whose nodes speak of a resource, be it of none of it, which columns do not tell."""
    offers = nodes.accounts.allocatables
    return np.fromiter((resource in (offer.scalars or {}) for offer in offers), np.bool_, len(offers))
