"""How good is a node that will be this full?

Three ways to say it: the emptier the better, the fuller the better, or a curve of one's own. Asked by NodeResourcesFit
with one column a resource. Cost: a few integer operations a resource over all rows; the arithmetic is Go's int64,
overflow and truncation included.
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
"""`share(requested, capacity)`: 0 to 100 for one resource, where the capacity is never 0."""

FloatShareFunction = Callable[[FloatColumns, Demand], FloatMatrix]
"""The same in floats, for all resources and rows at once. Exact where amounts are below `SMALL`: a share that is no
whole number is further from the next one than floats of that size are apart."""

RowLoop = Callable[[FloatMatrix, FloatMatrix, Demand, Sequence[int], FloatVector], None]
"""The whole score as one loop over the rows."""

ScalarShareFunction = Callable[[int, int], int]
"""The same for one row."""


class AllocationScorer:
    """The weighted average of what a strategy says of each resource."""

    def __init__(
        self,
        share: ShareFunction,
        share_of_one: ScalarShareFunction,
        *,
        of_floats: FloatShareFunction | None = None,
        loop: RowLoop | None = None,
        ignore_zero: bool = False,
    ) -> None:
        self._share = share
        self._loop = loop if row_loops.COMPILED else None
        self._share_of_floats = of_floats
        self._share_of_one = share_of_one
        self._ignore_zero = ignore_zero

    def score_floats(self, mirror: FloatColumns, demand: Demand, weights: Sequence[int]) -> IntVector | None:
        """One score a row of the mirror; None where the strategy has no way with floats, or the pod asks too much."""
        if self._share_of_floats is None or not demand or not all(0 <= amount < FLOAT_EXACT_LIMIT for amount in demand):
            return None
        if self._loop is not None:
            scores: FloatVector = mirror.desk[0]
            self._loop(mirror.free, mirror.allocatable, demand, weights, scores)
            return scores.astype(np.int64)
        shares = self._share_of_floats(mirror, demand)
        total: FloatVector = shares[0]
        if weights[0] != 1:
            total *= weights[0]
        for share, weight in zip(shares[1:], weights[1:], strict=True):
            total += share if weight == 1 else share * weight
        whole = sum(weights)
        if whole & (whole - 1):
            total /= whole
        elif whole > 1:  # a power of two: its inverse is exact, and multiplying is faster
            total *= 1 / whole
        return total.astype(np.int64)

    def score(self, columns: Iterable[ResourceColumn], rows: int) -> IntVector:
        """One score a row. A resource that a row does not have counts for nothing there."""
        total = np.zeros(rows, dtype=np.int64)
        weights: IntVector | int = 0  # one number as long as every resource counts on every row
        for column in columns:
            counts: BoolVector = column.allocatable != 0
            everywhere = bool(counts.all())
            capacity = column.allocatable if everywhere else np.where(counts, column.allocatable, 1)
            share = self._share(column.requested, capacity)
            if everywhere and not self._ignore_zero:
                total += share * column.weight
                weights = weights + column.weight
                continue
            if self._ignore_zero:
                counts = counts & (share > 0)
            weight = np.where(counts, column.weight, 0)
            total += share * weight
            weights = weights + weight
        divisor = np.maximum(weights, 1)  # where no resource counts the total is 0 as well
        return round_half_up(total, divisor) if self._ignore_zero else quotient(total, divisor)

    def score_one(self, cells: Iterable[ResourceCell]) -> int:
        """The same for one row."""
        total = weights = 0
        share_of_one = self._share_of_one
        for weight, allocatable, allocated, demand in cells:
            if allocatable == 0:
                continue
            share = share_of_one(allocated + demand, allocatable)
            if self._ignore_zero and share <= 0:
                continue
            total += share * weight
            weights += weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if self._ignore_zero else one_quotient(total, weights)


def allocation_scorer(strategy: ScoringStrategy) -> AllocationScorer:
    """The scorer that valid arguments ask for."""
    if strategy.type == LEAST_ALLOCATED:
        return AllocationScorer(
            least_allocated, least_allocated_one, of_floats=least_allocated_floats, loop=row_loops.least_allocated
        )
    if strategy.type == MOST_ALLOCATED:
        return most_allocated_scorer()
    assert strategy.requested_to_capacity_ratio is not None
    shape = strategy.requested_to_capacity_ratio.shape
    return AllocationScorer(shape_function(shape), scalar_shape_function(shape), ignore_zero=True)


def most_allocated_scorer() -> AllocationScorer:
    return AllocationScorer(most_allocated, most_allocated_one, of_floats=most_allocated_floats)


@lru_cache(maxsize=256)
def demand_column(demand: Demand) -> FloatMatrix:
    """A demand as what is added to columns of amounts."""
    return np.array(demand, dtype=np.float64)[:, np.newaxis]


def least_allocated(requested: IntVector, capacity: IntVector) -> IntVector:
    free = quotient((capacity - requested) * MAX_SCORE, capacity)
    return np.where(requested > capacity, 0, free)


def least_allocated_floats(mirror: FloatColumns, demand: Demand) -> FloatMatrix:
    share: FloatMatrix = np.subtract(mirror.free, demand_column(demand), out=mirror.desk)
    share *= _FLOAT_MAX_SCORE
    share /= mirror.allocatable
    if not mirror.fits_everywhere(demand):
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


def most_allocated_floats(mirror: FloatColumns, demand: Demand) -> FloatMatrix:
    share: FloatMatrix = np.add(mirror.requested, demand_column(demand), out=mirror.desk)
    if not mirror.fits_everywhere(demand):
        np.minimum(share, mirror.allocatable, out=share)
    share *= _FLOAT_MAX_SCORE
    share /= mirror.allocatable
    return np.floor(share, out=share)


def most_allocated_one(requested: int, capacity: int) -> int:
    return one_quotient(int64(min(requested, capacity) * MAX_SCORE), capacity)


def shape_function(shape: Sequence[UtilizationShapePoint]) -> ShareFunction:
    """A curve through the points of a shape. Utilizations are whole percents, so the curve is a table."""
    curve = np.array([_interpolate(shape, utilization) for utilization in range(MAX_UTILIZATION + 1)], dtype=np.int64)

    def share(requested: IntVector, capacity: IntVector) -> IntVector:
        utilization = quotient(requested * MAX_UTILIZATION, capacity)
        full = requested > capacity
        return curve[np.where(full, MAX_UTILIZATION, np.clip(utilization, 0, MAX_UTILIZATION))]

    return share


def scalar_shape_function(shape: Sequence[UtilizationShapePoint]) -> ScalarShareFunction:
    """The same curve for one number."""
    curve = [_interpolate(shape, utilization) for utilization in range(MAX_UTILIZATION + 1)]

    def share(requested: int, capacity: int) -> int:
        if requested > capacity:
            return curve[MAX_UTILIZATION]
        utilization = one_quotient(int64(requested * MAX_UTILIZATION), capacity)
        return curve[min(max(utilization, 0), MAX_UTILIZATION)]

    return share


def round_half_up(dividend: IntVector, divisor: IntVector | int) -> IntVector:
    """The nearest whole number, halves up: for numbers that are not negative, what Go's `math.Round` gives."""
    nearest: IntVector = (2 * dividend + divisor) // (2 * divisor)
    return nearest


def _interpolate(shape: Sequence[UtilizationShapePoint], utilization: int) -> int:
    """The score at one utilization, on a straight line between its neighbours, cut towards zero."""
    scale = MAX_SCORE // MAX_CUSTOM_SCORE
    if utilization <= shape[0].utilization:
        return shape[0].score * scale
    for before, after in pairwise(shape):
        if utilization <= after.utilization:
            rise = (after.score - before.score) * scale * (utilization - before.utilization)
            run = after.utilization - before.utilization
            return before.score * scale + (rise // run if rise >= 0 else -(-rise // run))
    return shape[-1].score * scale
