"""On which nodes would the pod even out how much of each resource is taken?

Asked at Score by pods that ask for any of the configured resources. A node's balance is 1 minus the standard deviation
of the taken shares; the score is by how much the pod improves it. Cost: some float operations a resource over all rows,
in Go's order, so that every bit is Go's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np

from bayplan.devices.classes import ExtendedResourceClasses
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import MAX_SCORE, amounts_local
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
    """Prefers nodes whose resources the pod brings into balance."""

    name = "NodeResourcesBalancedAllocation"
    depends_on = amounts_local
    scores_improvement = True  # score what the pod improves; False: how balanced the node is with it, as before 1.36
    ARGS = balanced_allocation_args.ARGS

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        self._columns = ResourceColumns(args.resources, handle, guess=False)
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._mirror = self._columns.float_columns(self._row_changed)
        # For each row of the mirror what its balance of now comes to: half + (half + after - before) / 2 is
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
        if not any(demand):  # such pods would all be sent to one node
            return SKIP
        cycle.put(SCORED_REQUESTS, demand)
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:  # PreScore is off in this profile
            demand = self._demand(cycle)
        if not any(demand):
            return np.zeros(len(nodes), dtype=np.int64)
        mirror = self._mirror
        if mirror is not None and nodes.is_all_of(cycle.snapshot) and mirror.follow(cycle.snapshot):
            return self._in_floats(mirror, demand)
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

    def _in_floats(self, mirror: FloatColumns, demand: Demand) -> IntVector:
        """The same for all rows of a mirror, with the balance as it is now at hand."""
        if row_loops.COMPILED and self.scores_improvement and len(demand) == 2:
            scores: FloatVector = mirror.desk[0]
            row_loops.balanced_of_two(mirror.requested, mirror.allocatable, demand, self._offset, scores)
            return scores.astype(np.int64)
        values = np.add(mirror.requested, demand_column(demand), out=mirror.desk)
        values /= mirror.allocatable
        if not mirror.fits_everywhere(demand):
            np.minimum(values, 1.0, out=values)
        if len(values) == 2:
            gain = _balanced(_half_distance(values[0], values[1], out=values[0]))
        else:
            gain = balance([_UsageShare(value, None) for value in values], values.shape[1])
        if not self.scores_improvement:
            return gain
        gain += self._offset  # what is halved is at least 0, since both balances are between 50 and 100
        gain >>= 1
        return gain

    def _row_changed(self, columns: NodeColumns, rows: Collection[int] | None) -> None:
        """The mirror has changed, and with it the balance of these rows."""
        mirror = self._mirror
        assert mirror is not None
        if rows is None:
            shares = [
                _UsageShare(np.minimum(t / h, 1.0), None)
                for h, t in zip(mirror.allocatable, mirror.requested, strict=True)
            ]
            self._offset = _THRICE_HALF - balance(shares, columns.count)
            return
        for row in rows:
            pairs = zip(mirror.allocatable[:, row].tolist(), mirror.requested[:, row].tolist(), strict=True)
            self._offset[row] = _THRICE_HALF - balance_of_row([min(taken / has, 1.0) for has, taken in pairs])

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        """The same for one node: for bringing what is known of a few rows up to date."""
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:
            demand = self._demand(cycle)
        if not any(demand):
            return 0
        cells = self._columns.at(node, demand)
        if cells is None:
            return int(self.score_nodes(cycle, node.single_row_table)[0])
        after = balance_of_row([min((taken + more) / has, 1.0) for _, has, taken, more in cells if has])
        if not self.scores_improvement:
            return after
        before = balance_of_row([min(taken / has, 1.0) for _, has, taken, _ in cells if has])
        half = MAX_SCORE // 2
        return half + one_quotient(half + after - before, 2)

    def _demand(self, cycle: Cycle) -> Demand:
        return self._columns.demand(cycle.info.cached(balanced_requests))


@dataclass(frozen=True, slots=True)
class _UsageShare:
    """How much of one resource is taken, at most 1; 0 where a row does not have it. `known` None: all rows do."""

    value: FloatVector
    known: BoolVector | None


@dataclass(frozen=True, slots=True)
class _Capacity:
    """What the rows have of one resource, ready to be divided by."""

    amount: FloatVector
    known: BoolVector | None

    @classmethod
    def of(cls, allocatable: IntVector) -> _Capacity:
        if allocatable.all():
            return cls(allocatable.astype(np.float64), None)
        known: BoolVector = allocatable != 0
        return cls(np.where(known, allocatable, 1).astype(np.float64), known)

    def share(self, taken: IntVector) -> _UsageShare:
        value = taken / self.amount
        np.minimum(value, 1.0, out=value)
        return _UsageShare(value if self.known is None else np.where(self.known, value, 0.0), self.known)


def balance_of_row(shares: list[float]) -> int:
    """The balance of one row from the taken shares of the resources that it has."""
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
    """50 to 100 for each row; 100 where fewer than two resources count."""
    everywhere = all(share.known is None for share in shares)
    return _balanced(_deviation(shares, rows) if everywhere else _deviation_by_row(shares))


def _balanced(deviation: FloatVector) -> IntVector:
    """The balance from the deviation, which is used up."""
    np.subtract(1.0, deviation, out=deviation)
    deviation *= float(MAX_SCORE)
    return deviation.astype(np.int64)


def _deviation(shares: list[_UsageShare], rows: int) -> FloatVector:
    """The standard deviation on rows that have every resource; for two, half of their distance is the same."""
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
    """The same where the number of resources differs from row to row."""
    count = np.zeros(len(shares[0].value))
    difference = np.zeros(len(count))  # of the first two that count
    for share in shares:
        known = share.known if share.known is not None else np.ones(len(count), dtype=np.bool_)
        signed = np.where(count == 0, share.value, difference - share.value)
        difference = np.where(known & (count < 2), signed, difference)
        count += known
    of_two = np.where(count == 2, np.abs(difference / 2), 0.0)
    if not (count > 2).any():
        return of_two
    return np.where(count > 2, _standard_deviation(shares, np.maximum(count, 1.0)), of_two)


def _standard_deviation(shares: list[_UsageShare], count: FloatVector | np.float64) -> FloatVector:
    """Of the population. Adding the 0 of a resource that a row lacks changes no bit of a sum."""
    total = np.zeros(len(shares[0].value))
    for share in shares:
        total = total + share.value
    mean = total / count
    squares = np.zeros(len(total))
    for share in shares:
        distance = share.value - mean
        square = distance * distance
        squares = squares + (square if share.known is None else np.where(share.known, square, 0.0))
    deviation: FloatVector = np.sqrt(squares / count)
    return deviation
