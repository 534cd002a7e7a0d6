"""Utilization of nodes with a task added, computed for several scorers.

Amounts are matrices with one row per resource and one column per node. A call costs the same few operations for one
node and for all nodes.
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
    """The request of one class of tasks, limited to weighted resources; one row per resource."""

    columns: npt.NDArray[np.intp]
    requests: FloatMatrix
    weights: FloatMatrix

    @classmethod
    def of(cls, task: Task, nodes: Nodes, weights: Iterable[tuple[str, int]]) -> WeightedDemand:
        """Read the request of `task`. `weights` lists its resources in the order of summation."""
        nodes.accounts.demand(task)  # adds missing resources to the accounts
        weighted = list(weights)
        index = nodes.accounts.dimensions.index
        return cls(
            np.array([index[name] for name, _ in weighted], dtype=np.intp),
            np.array([[task.resreq.get(name)] for name, _ in weighted], dtype=np.float64).reshape(-1, 1),
            np.array([[weight] for _, weight in weighted], dtype=np.float64).reshape(-1, 1),
        )

    def used_with_task(self, nodes: Nodes) -> FloatMatrix:
        """The usage of each resource with the task added."""
        return self.requests + self._matrix_rows(nodes, nodes.accounts.used)

    def capacity(self, nodes: Nodes) -> FloatMatrix:
        return self._matrix_rows(nodes, nodes.accounts.allocatable)

    def _matrix_rows(self, nodes: Nodes, matrix: FloatMatrix) -> FloatMatrix:
        selected: FloatMatrix = matrix[self.columns] if nodes.is_whole else matrix[self.columns[:, None], nodes.rows]
        return selected

    def weighted_mean(self, parts: FloatMatrix, capacity: FloatMatrix, total_weight: int) -> FloatVector:
        """The weighted mean of utilizations. A resource without capacity counts as 0."""
        known = capacity != 0
        shares = np.where(known, parts * self.weights / np.where(known, capacity, 1.0), 0.0)
        total = np.zeros(shares.shape[1])
        for row in shares:  # fixed order, so that float sums are equal on all machines
            total += row
        if total_weight > 0:
            total /= total_weight
        return total


def exceeds_capacity(taken: FloatMatrix, capacity: FloatMatrix) -> BoolVector:
    """Nodes on which any usage exceeds the capacity. Resources without capacity are ignored."""
    found: BoolVector = ((taken > capacity) & (capacity != 0)).any(axis=0)
    return found


def rows_with_resource(nodes: Nodes, resource: str) -> BoolVector:
    """The rows whose nodes list the resource, even with amount zero. Columns do not show that difference."""
    offers = nodes.accounts.allocatables
    return np.fromiter((resource in (offer.scalars or {}) for offer in offers), np.bool_, len(offers))
