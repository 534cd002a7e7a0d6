"""Scores nodes by how much the pod balances the allocation of their resources.

Runs at Score for pods that request any configured resource. The balance of a node is 1 minus the standard deviation of
the allocated shares; the score is its improvement by the pod. Cost: some float operations for each resource over all
rows, in Go's order, so that every bit is equal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np

from bayplan.devices.classes import ExtendedResourceClasses
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_traits import PluginTraits, amounts_local
from bayplan.framework.api.status import SKIP, Status
from bayplan.objects.core import Pod
from bayplan.objects.resources import balanced_requests
from bayplan.plugins.go_division import one_quotient, quotient
from bayplan.plugins.node_resources import balanced_allocation_args, row_loops
from bayplan.plugins.node_resources.allocation_strategies import demand_column
from bayplan.plugins.node_resources.balanced_allocation_args import NodeResourcesBalancedAllocationArgs
from bayplan.plugins.node_resources.float_columns import FloatColumns, FloatVector
from bayplan.plugins.node_resources.resource_columns import Demand, ResourceColumns
from bayplan.snapshot import BoolVector, IntVector, NodeColumns, NodeInfo, NodeTable

_THRICE_HALF = 3 * (MAX_SCORE // 2)

SCORED_REQUESTS: StateKey[Demand] = StateKey("PreScoreNodeResourcesBalancedAllocation")


class NodeResourcesBalancedAllocation:
    """Prefers nodes whose resource allocation the pod balances."""

    name = "NodeResourcesBalancedAllocation"
    traits = PluginTraits(depends_on=amounts_local)
    scores_improvement = True  # score the improvement; False: the balance with the pod, as before 1.36
    ARGS = balanced_allocation_args.ARGS

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        self._columns = ResourceColumns(args.resources, handle, use_default_requests=False)
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._float_columns = self._columns.float_columns(self._update_offsets)
        # For each row the contribution of its current balance: half + (half + after - before) / 2 is
        # (after + 3 * half - before) / 2.
        self._offset: IntVector = np.zeros(0, dtype=np.int64)

    @classmethod
    def factory(cls, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> NodeResourcesBalancedAllocation:
        return cls(args, handle)

    def signature(self, pod: Pod) -> Hashable | None:
        requests = balanced_requests(pod)
        classes = self._classes.get()
        if any(amount and name in classes for name, amount in requests.items()):
            return None
        return self._columns.demand(requests)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        demand = self._demand(cycle)
        if not any(demand):  # such pods would all be placed on one node
            return SKIP
        cycle.put(SCORED_REQUESTS, demand)
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:  # PreScore is disabled in this profile
            demand = self._demand(cycle)
        if not any(demand):
            return np.zeros(len(nodes), dtype=np.int64)
        float_columns = self._float_columns
        if float_columns is not None and nodes.is_all_of(cycle.snapshot) and float_columns.follow(cycle.snapshot):
            return self._score_floats(float_columns, demand)
        columns = list(self._columns.of(nodes, demand))
        capacities = [_Capacity.of(column.allocatable) for column in columns]
        after = balance(
            [each.share(column.requested) for each, column in zip(capacities, columns, strict=True)], len(nodes)
        )
        if not self.scores_improvement:
            return after
        before = balance(
            [each.share(column.allocated) for each, column in zip(capacities, columns, strict=True)], len(nodes)
        )
        half = MAX_SCORE // 2
        return half + quotient(half + after - before, 2)

    def _score_floats(self, float_columns: FloatColumns, demand: Demand) -> IntVector:
        """Score all rows with float columns and the cached current balance."""
        if row_loops.COMPILED and self.scores_improvement and len(demand) == 2:
            scores: FloatVector = float_columns.buffer[0]
            row_loops.balanced_of_two(float_columns.requested, float_columns.allocatable, demand, self._offset, scores)
            return scores.astype(np.int64)
        values = np.add(float_columns.requested, demand_column(demand), out=float_columns.buffer)
        values /= float_columns.allocatable
        if not float_columns.fits_everywhere(demand):
            np.minimum(values, 1.0, out=values)
        if len(values) == 2:
            gain = _balance(_half_distance(values[0], values[1], out=values[0]))
        else:
            gain = balance([_UsageShare(value, None) for value in values], values.shape[1])
        if not self.scores_improvement:
            return gain
        gain += self._offset  # the value is at least 0, because both balances are between 50 and 100
        gain >>= 1
        return gain

    def _update_offsets(self, columns: NodeColumns, rows: Collection[int] | None) -> None:
        """Update the current balance of changed rows."""
        float_columns = self._float_columns
        assert float_columns is not None
        if rows is None:
            shares = [
                _UsageShare(np.minimum(t / h, 1.0), None)
                for h, t in zip(float_columns.allocatable, float_columns.requested, strict=True)
            ]
            self._offset = _THRICE_HALF - balance(shares, columns.count)
            return
        for row in rows:
            pairs = zip(
                float_columns.allocatable[:, row].tolist(), float_columns.requested[:, row].tolist(), strict=True
            )
            self._offset[row] = _THRICE_HALF - balance_of_row(
                [min(requested / allocatable, 1.0) for allocatable, requested in pairs]
            )

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        """Score one node, to update a few rows."""
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:
            demand = self._demand(cycle)
        if not any(demand):
            return 0
        cells = self._columns.at(node, demand)
        if cells is None:
            return int(self.score_nodes(cycle, node.single_row_table)[0])
        after = balance_of_row(
            [
                min((allocated + demand_amount) / allocatable, 1.0)
                for _, allocatable, allocated, demand_amount in cells
                if allocatable
            ]
        )
        if not self.scores_improvement:
            return after
        before = balance_of_row(
            [min(allocated / allocatable, 1.0) for _, allocatable, allocated, _ in cells if allocatable]
        )
        half = MAX_SCORE // 2
        return half + one_quotient(half + after - before, 2)

    def _demand(self, cycle: Cycle) -> Demand:
        return self._columns.demand(cycle.info.cached(balanced_requests))


@dataclass(frozen=True, slots=True)
class _UsageShare:
    """The allocated share of one resource, at most 1; 0 for a row without it. `has_resource` None: all rows have it."""

    value: FloatVector
    has_resource: BoolVector | None


@dataclass(frozen=True, slots=True)
class _Capacity:
    """The capacity of one resource on all rows, as a divisor."""

    amount: FloatVector
    has_resource: BoolVector | None

    @classmethod
    def of(cls, allocatable: IntVector) -> _Capacity:
        if allocatable.all():
            return cls(allocatable.astype(np.float64), None)
        has_resource: BoolVector = allocatable != 0
        return cls(np.where(has_resource, allocatable, 1).astype(np.float64), has_resource)

    def share(self, allocated: IntVector) -> _UsageShare:
        value = allocated / self.amount
        np.minimum(value, 1.0, out=value)
        return _UsageShare(
            value if self.has_resource is None else np.where(self.has_resource, value, 0.0), self.has_resource
        )


def balance_of_row(shares: list[float]) -> int:
    """Return the balance of one row from the allocated shares of its resources."""
    deviation = 0.0
    if len(shares) == 2:
        deviation = abs((shares[0] - shares[1]) / 2)
    elif len(shares) > 2:
        total = 0.0
        for share in shares:
            total = total + share
        mean = total / len(shares)
        squares = 0.0
        for share in shares:
            squares = squares + (share - mean) * (share - mean)
        deviation = math.sqrt(squares / len(shares))
    return int((1.0 - deviation) * MAX_SCORE)


def balance(shares: list[_UsageShare], rows: int) -> IntVector:
    """Return 50 to 100 for each row; 100 if fewer than two resources count."""
    all_rows = all(share.has_resource is None for share in shares)
    return _balance(_deviation(shares, rows) if all_rows else _deviation_by_row(shares))


def _balance(deviation: FloatVector) -> IntVector:
    """Return the balance from the deviation. Overwrites the deviation."""
    np.subtract(1.0, deviation, out=deviation)
    deviation *= float(MAX_SCORE)
    return deviation.astype(np.int64)


def _deviation(shares: list[_UsageShare], rows: int) -> FloatVector:
    """Return the standard deviation on rows with all resources. For two resources it is half of their difference."""
    if len(shares) < 2:
        return np.zeros(rows)
    if len(shares) == 2:
        return _half_distance(shares[0].value, shares[1].value)
    return _standard_deviation(shares, np.float64(len(shares)))


def _half_distance(one: FloatVector, other: FloatVector, out: FloatVector | None = None) -> FloatVector:
    distance: FloatVector = np.subtract(one, other, out=out)
    distance *= 0.5
    return np.abs(distance, out=distance)


def _deviation_by_row(shares: list[_UsageShare]) -> FloatVector:
    """Return the standard deviation if the number of resources differs by row."""
    count = np.zeros(len(shares[0].value))
    difference = np.zeros(len(count))  # of the first two resources that count
    for share in shares:
        has_resource = share.has_resource if share.has_resource is not None else np.ones(len(count), dtype=np.bool_)
        next_difference = np.where(count == 0, share.value, difference - share.value)
        difference = np.where(has_resource & (count < 2), next_difference, difference)
        count += has_resource
    two_resources = np.where(count == 2, np.abs(difference / 2), 0.0)
    if not (count > 2).any():
        return two_resources
    return np.where(count > 2, _standard_deviation(shares, np.maximum(count, 1.0)), two_resources)


def _standard_deviation(shares: list[_UsageShare], count: FloatVector | np.float64) -> FloatVector:
    """Population standard deviation. Adding 0 for a missing resource changes no bit of a sum."""
    total = np.zeros(len(shares[0].value))
    for share in shares:
        total = total + share.value
    mean = total / count
    squares = np.zeros(len(total))
    for share in shares:
        distance = share.value - mean
        square = distance * distance
        squares = squares + (square if share.has_resource is None else np.where(share.has_resource, square, 0.0))
    deviation: FloatVector = np.sqrt(squares / count)
    return deviation
