"""Scoring strategies of NodeResourcesFit: score of a node by its allocation with the pod.

The strategies are LeastAllocated, MostAllocated and RequestedToCapacityRatio. They get one column for each resource.
Cost: a few integer operations for each resource over all rows. The arithmetic is Go's int64, including overflow and
truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from bayplan.codec.quantity import int64
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.go_division import one_quotient, quotient
from bayplan.plugins.node_resources import row_loops
from bayplan.plugins.node_resources.fit_args import LEAST_ALLOCATED, MOST_ALLOCATED, ScoringStrategy
from bayplan.plugins.node_resources.float_columns import FloatColumns, FloatMatrix, FloatVector
from bayplan.plugins.node_resources.resource_columns import Demand, ResourceCell, ResourceColumn
from bayplan.plugins.node_resources.resource_specs import MAX_CUSTOM_SCORE, MAX_UTILIZATION, UtilizationShapePoint
from bayplan.snapshot import FLOAT_EXACT_LIMIT, BoolVector, IntVector

_FLOAT_MAX_SCORE = float(MAX_SCORE)

ShareFunction = Callable[[IntVector, IntVector], IntVector]
"""`share(requested, capacity)`: 0 to 100 for one resource. The capacity is never 0."""

FloatShareFunction = Callable[[FloatColumns, Demand], FloatMatrix]
"""The same in floats, for all resources and rows at once.

Exact for amounts below `FLOAT_EXACT_LIMIT`: a share that is not whole is further from the next whole number than the
float precision of that size.
"""

RowLoop = Callable[[FloatMatrix, FloatMatrix, Demand, Sequence[int], FloatVector], None]
"""Computes the whole score in one loop over the rows."""

ScalarShareFunction = Callable[[int, int], int]
"""The same for one row."""


class AllocationScorer:
    """The weighted average of a strategy's scores for each resource."""

    def __init__(
        self,
        share: ShareFunction,
        scalar_share: ScalarShareFunction,
        *,
        float_share: FloatShareFunction | None = None,
        loop: RowLoop | None = None,
        ignore_zero: bool = False,
    ) -> None:
        self._share = share
        self._loop = loop if row_loops.COMPILED else None
        self._float_share = float_share
        self._scalar_share = scalar_share
        self._ignore_zero = ignore_zero

    def score_floats(self, columns: FloatColumns, demand: Demand, weights: Sequence[int]) -> IntVector | None:
        """Score each row of float columns; None if the strategy has no float version, or a request is too large."""
        if self._float_share is None or not demand or not all(0 <= amount < FLOAT_EXACT_LIMIT for amount in demand):
            return None
        if self._loop is not None:
            scores: FloatVector = columns.buffer[0]
            self._loop(columns.free, columns.allocatable, demand, weights, scores)
            return scores.astype(np.int64)
        shares = self._float_share(columns, demand)
        total: FloatVector = shares[0]
        if weights[0] != 1:
            total *= weights[0]
        for share, weight in zip(shares[1:], weights[1:], strict=True):
            total += share if weight == 1 else share * weight
        weight_sum = sum(weights)
        if weight_sum & (weight_sum - 1):
            total /= weight_sum
        elif weight_sum > 1:  # a power of two: its inverse is exact, and multiplication is faster
            total *= 1 / weight_sum
        return total.astype(np.int64)

    def score(self, columns: Iterable[ResourceColumn], rows: int) -> IntVector:
        """Score each row. A resource that a row does not have does not count there."""
        total = np.zeros(rows, dtype=np.int64)
        weights: IntVector | int = 0  # one number while every resource counts on every row
        for column in columns:
            counts: BoolVector = column.allocatable != 0
            all_rows = bool(counts.all())
            capacity = column.allocatable if all_rows else np.where(counts, column.allocatable, 1)
            share = self._share(column.requested, capacity)
            if all_rows and not self._ignore_zero:
                total += share * column.weight
                weights = weights + column.weight
                continue
            if self._ignore_zero:
                counts = counts & (share > 0)
            weight = np.where(counts, column.weight, 0)
            total += share * weight
            weights = weights + weight
        divisor = np.maximum(weights, 1)  # if no resource counts, the total is 0 as well
        return round_half_up(total, divisor) if self._ignore_zero else quotient(total, divisor)

    def score_one(self, cells: Iterable[ResourceCell]) -> int:
        total = weights = 0
        scalar_share = self._scalar_share
        for weight, allocatable, allocated, demand in cells:
            if allocatable == 0:
                continue
            share = scalar_share(allocated + demand, allocatable)
            if self._ignore_zero and share <= 0:
                continue
            total += share * weight
            weights += weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if self._ignore_zero else one_quotient(total, weights)


def allocation_scorer(strategy: ScoringStrategy) -> AllocationScorer:
    if strategy.type == LEAST_ALLOCATED:
        return AllocationScorer(
            least_allocated, least_allocated_one, float_share=least_allocated_floats, loop=row_loops.least_allocated
        )
    if strategy.type == MOST_ALLOCATED:
        return most_allocated_scorer()
    assert strategy.requested_to_capacity_ratio is not None
    shape = strategy.requested_to_capacity_ratio.shape
    return AllocationScorer(shape_function(shape), scalar_shape_function(shape), ignore_zero=True)


def most_allocated_scorer() -> AllocationScorer:
    return AllocationScorer(most_allocated, most_allocated_one, float_share=most_allocated_floats)


@lru_cache(maxsize=256)
def demand_column(demand: Demand) -> FloatMatrix:
    return np.array(demand, dtype=np.float64)[:, np.newaxis]


def least_allocated(requested: IntVector, capacity: IntVector) -> IntVector:
    free = quotient((capacity - requested) * MAX_SCORE, capacity)
    return np.where(requested > capacity, 0, free)


def least_allocated_floats(columns: FloatColumns, demand: Demand) -> FloatMatrix:
    share: FloatMatrix = np.subtract(columns.free, demand_column(demand), out=columns.buffer)
    share *= _FLOAT_MAX_SCORE
    share /= columns.allocatable
    if not columns.fits_everywhere(demand):
        np.maximum(share, 0.0, out=share)
    return np.floor(share, out=share)


def least_allocated_one(requested: int, capacity: int) -> int:
    if requested > capacity:
        return 0
    if requested >= 0 and capacity < FLOAT_EXACT_LIMIT:
        return (capacity - requested) * MAX_SCORE // capacity
    return one_quotient(int64(int64(capacity - requested) * MAX_SCORE), capacity)


def most_allocated(requested: IntVector, capacity: IntVector) -> IntVector:
    return quotient(np.minimum(requested, capacity) * MAX_SCORE, capacity)


def most_allocated_floats(columns: FloatColumns, demand: Demand) -> FloatMatrix:
    share: FloatMatrix = np.add(columns.requested, demand_column(demand), out=columns.buffer)
    if not columns.fits_everywhere(demand):
        np.minimum(share, columns.allocatable, out=share)
    share *= _FLOAT_MAX_SCORE
    share /= columns.allocatable
    return np.floor(share, out=share)


def most_allocated_one(requested: int, capacity: int) -> int:
    return one_quotient(int64(min(requested, capacity) * MAX_SCORE), capacity)


def shape_function(shape: Sequence[UtilizationShapePoint]) -> ShareFunction:
    """Return a curve through the points of a shape. Utilizations are whole percents, so the curve is a table."""
    curve = np.array([_interpolate(shape, utilization) for utilization in range(MAX_UTILIZATION + 1)], dtype=np.int64)

    def share(requested: IntVector, capacity: IntVector) -> IntVector:
        utilization = quotient(requested * MAX_UTILIZATION, capacity)
        full = requested > capacity
        return curve[np.where(full, MAX_UTILIZATION, np.clip(utilization, 0, MAX_UTILIZATION))]

    return share


def scalar_shape_function(shape: Sequence[UtilizationShapePoint]) -> ScalarShareFunction:
    """Return the same curve for one number."""
    curve = [_interpolate(shape, utilization) for utilization in range(MAX_UTILIZATION + 1)]

    def share(requested: int, capacity: int) -> int:
        if requested > capacity:
            return curve[MAX_UTILIZATION]
        utilization = one_quotient(int64(requested * MAX_UTILIZATION), capacity)
        return curve[min(max(utilization, 0), MAX_UTILIZATION)]

    return share


def round_half_up(dividend: IntVector, divisor: IntVector | int) -> IntVector:
    """Round halves up. For numbers that are not negative this equals Go's `math.Round`."""
    nearest: IntVector = (2 * dividend + divisor) // (2 * divisor)
    return nearest


def _interpolate(shape: Sequence[UtilizationShapePoint], utilization: int) -> int:
    """Interpolate the score at one utilization linearly, truncated towards zero."""
    scale = MAX_SCORE // MAX_CUSTOM_SCORE
    if utilization <= shape[0].utilization:
        return shape[0].score * scale
    for before, after in pairwise(shape):
        if utilization <= after.utilization:
            rise = (after.score - before.score) * scale * (utilization - before.utilization)
            run = after.utilization - before.utilization
            return before.score * scale + (rise // run if rise >= 0 else -(-rise // run))
    return shape[-1].score * scale
