"""Capacity and use of hypernodes: utilization with a request, and whether a request can ever fit.

Kept by `network-topology-aware` for one session. Usage follows every task that is placed or evicted. Idle amounts stay
as they were when the session opened, because Volcano searches by those. Cost: two copies of the session's account
matrices at open; the sums of a hypernode are computed at first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.batch.model.amounts import TOLERANCE, Amounts
from bayplan.batch.model.hypernodes import HyperNodeTree
from bayplan.batch.model.node_accounts import FloatMatrix
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.objects.resources import CPU, MEMORY

Numbers = npt.NDArray[np.intp]


class HyperNodeAccounts:
    def __init__(self, nodes: Nodes, tree: HyperNodeTree, weights: Mapping[str, int]) -> None:
        self._nodes = nodes
        self._tree = tree
        self.names = list(tree)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._weights = dict(weights)  # by resource, in the order of the columns below
        self._columns = {resource: column for column, resource in enumerate(self._weights)}
        accounts = nodes.accounts
        self._matrices = {
            "idle": accounts.idle.copy(),
            "future": accounts.future_idle(),
            "allocatable": accounts.allocatable,
        }
        self._totals: dict[tuple[str, str], FloatVector] = {}  # by matrix and hypernode: the sum of each resource
        self.allocatable = self._sums(nodes.allocatable)
        self.used = self._sums(nodes.used)
        self._above: dict[str, Numbers] = {}  # by node: the hypernodes that contain it
        self._by_tier: dict[int, Numbers] = {}

    def _sums(self, column: object) -> FloatMatrix:
        """One row per hypernode, one column per weighted resource."""
        assert callable(column)
        found = np.zeros((len(self.names), len(self._weights)))
        by_resource = [column(resource) for resource in self._weights]
        for number, name in enumerate(self.names):
            rows = self._tree.nodes_of(name).rows
            for position, amounts in enumerate(by_resource):
                found[number, position] = amounts[rows].sum()
        return found

    # Usage

    def update_usage(self, task: Task, sign: float) -> None:
        """Add the task to its node (1) or remove it (-1)."""
        request = [sign * task.resreq.get(resource) for resource in self._weights]
        self.used[self._hypernodes_of_node(task.node_name)] += request

    def _hypernodes_of_node(self, node_name: str) -> Numbers:
        found = self._above.get(node_name)
        if found is None:
            numbers = [number for number, name in enumerate(self.names) if node_name in self._tree[name].nodes]
            found = self._above[node_name] = np.array(numbers, dtype=np.intp)
        return found

    def hypernode_at_tier(self, tier: int) -> Numbers:
        """For every row, the number of the hypernode of this tier that contains it; -1 for none."""
        found = self._by_tier.get(tier)
        if found is None:
            found = self._by_tier[tier] = np.full(len(self._nodes), -1, dtype=np.intp)
            for name in reversed(self._tree.by_tier.get(tier, ())):
                found[self._tree.nodes_of(name).rows] = self._numbers[name]
        return found

    # Utilization

    def request_of(self, tasks: Sequence[Task]) -> dict[str, float]:
        """The total request of the tasks, limited to weighted resources."""
        total: dict[str, float] = {}
        for task in tasks:
            for resource in task.resreq.names():
                if resource in self._weights:
                    total[resource] = total.get(resource, 0.0) + task.resreq.get(resource)
        return total

    def utilization(self, request: Mapping[str, float]) -> FloatVector:
        """For every hypernode, the weighted mean share in use with the request added; 0 where it does not fit."""
        count = len(self.names)
        total, weights = np.zeros(count), 0
        over = np.zeros(count, dtype=np.bool_)
        for resource, amount in request.items():
            column, weight = self._columns[resource], self._weights[resource]
            taken, capacity = self.used[:, column] + amount, self.allocatable[:, column]
            over |= taken > capacity
            total += weight * np.divide(taken, capacity, out=np.zeros(count), where=capacity > 0)
            weights += weight
        if weights <= 0:
            return np.zeros(count)
        return np.where(over, 0.0, total / weights)

    def utilization_of(self, name: str, scores: FloatVector) -> float:
        return float(scores[self._numbers[name]])

    # Capacity

    def fitted_at_open(self, name: str, least: Amounts) -> bool:
        """Whether the request fitted when the session opened, into idle amounts or into idle plus releasing amounts."""
        return self._covers("idle", name, least) or self._covers("future", name, least)

    def fits_allocatable(self, name: str, least: Amounts) -> bool:
        return self._covers("allocatable", name, least)

    def _covers(self, matrix: str, name: str, least: Amounts) -> bool:
        total, index = self._total(matrix, name), self._nodes.accounts.dimensions.index
        request = {CPU: least.milli_cpu, MEMORY: least.memory, **(least.scalars or {})}
        for resource, amount in request.items():
            column = index.get(resource, len(total))
            have = total[column] if column < len(total) else 0.0
            if not amount - have < TOLERANCE:
                return False
        return True

    def _total(self, matrix: str, name: str) -> FloatVector:
        found = self._totals.get((matrix, name))
        if found is None:
            found = self._matrices[matrix][:, self._tree.nodes_of(name).rows].sum(axis=1)
            self._totals[matrix, name] = found
        return found
