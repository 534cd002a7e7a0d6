"""On which nodes would the pod even out how much of each resource is taken?

Asked at Score by pods that ask for any of the configured resources. A node's balance is 1 minus the standard deviation
of the taken shares; the score is by how much the pod improves it. Cost: some float operations a resource over all rows,
in Go's order, so that every bit is Go's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan.devices.classes import ResourceClasses
from bayplan.framework.cycle import Cycle, Key
from bayplan.framework.handle import Handle
from bayplan.framework.plugin import MAX_SCORE
from bayplan.framework.status import SKIP, Status
from bayplan.objects.core import Pod
from bayplan.objects.resources import balanced_requests
from bayplan.plugins import node_resources_balanced_allocation_args
from bayplan.plugins.go_division import quotient
from bayplan.plugins.node_resources_balanced_allocation_args import NodeResourcesBalancedAllocationArgs
from bayplan.plugins.resource_columns import Demand, ResourceColumns
from bayplan.snapshot import BoolVector, IntVector, NodeTable

FloatVector = npt.NDArray[np.float64]

SCORED_REQUESTS: Key[Demand] = Key("PreScoreNodeResourcesBalancedAllocation")


class NodeResourcesBalancedAllocation:
    """Prefers nodes whose resources the pod brings into balance."""

    name = "NodeResourcesBalancedAllocation"
    ARGS = node_resources_balanced_allocation_args.ARGS

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        self._columns = ResourceColumns(args.resources, handle, guess=False)
        self._classes = ResourceClasses(handle.catalog)

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
        demand = self._demand(cycle.pod)
        if not any(demand):  # such pods would all be sent to one node
            return SKIP
        cycle.put(SCORED_REQUESTS, demand)
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:  # PreScore is off in this profile
            demand = self._demand(cycle.pod)
        if not any(demand):
            return np.zeros(len(nodes), dtype=np.int64)
        columns = list(self._columns.of(nodes, demand))
        before = balance(((column.allocated, column.allocatable) for column in columns), len(nodes))
        after = balance(((column.requested, column.allocatable) for column in columns), len(nodes))
        half = MAX_SCORE // 2
        return half + quotient(half + after - before, 2)

    def _demand(self, pod: Pod) -> Demand:
        return self._columns.demand(balanced_requests(pod))


def balance(columns: Iterable[tuple[IntVector, IntVector]], rows: int) -> IntVector:
    """50 to 100 for each row from the (taken, allocatable) columns of its resources; 100 where fewer than two count."""
    shares = [_Shares.of(taken, allocatable) for taken, allocatable in columns]
    count = np.zeros(rows, dtype=np.int64)
    for share in shares:
        count += share.known
    deviation = np.zeros(rows)
    two: BoolVector = count == 2
    if two.any():
        deviation = np.where(two, np.abs(_first_minus_second(shares, rows) / 2), deviation)
    many: BoolVector = count > 2
    if many.any():
        deviation = np.where(many, _standard_deviation(shares, np.maximum(count, 1)), deviation)
    balanced: IntVector = ((1 - deviation) * float(MAX_SCORE)).astype(np.int64)
    return balanced


@dataclass(frozen=True, slots=True)
class _Shares:
    """The taken share of one resource, at most 1; 0 where the row does not have the resource."""

    known: BoolVector
    value: FloatVector

    @classmethod
    def of(cls, taken: IntVector, allocatable: IntVector) -> _Shares:
        known: BoolVector = allocatable != 0
        share = taken.astype(np.float64) / np.where(known, allocatable, 1).astype(np.float64)
        return cls(known, np.where(known, np.minimum(share, 1.0), 0.0))


def _first_minus_second(shares: list[_Shares], rows: int) -> FloatVector:
    """For rows where exactly two resources count: the one minus the other, in the configured order."""
    difference = np.zeros(rows)
    seen = np.zeros(rows, dtype=np.bool_)
    for share in shares:
        signed = np.where(seen, difference - share.value, share.value)
        difference = np.where(share.known, signed, difference)
        seen = seen | share.known
    return difference


def _standard_deviation(shares: list[_Shares], count: IntVector) -> FloatVector:
    """Of the population. Adding the 0 of an unknown share changes no bit of a sum."""
    divisor = count.astype(np.float64)
    total = np.zeros(len(count))
    for share in shares:
        total = total + share.value
    mean = total / divisor
    squares = np.zeros(len(count))
    for share in shares:
        distance = share.value - mean
        squares = squares + np.where(share.known, distance * distance, 0.0)
    deviation: FloatVector = np.sqrt(squares / divisor)
    return deviation
