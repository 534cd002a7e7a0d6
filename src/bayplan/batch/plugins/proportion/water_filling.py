"""Water filling for the proportion plugin: divides the cluster among queues by weight, up to request and limit.

Called once per session. Each round divides the remaining amounts by the weights of the queues that want more. What they
cannot use remains for the next round. Cost: some vector operations per round over queues and resources. There are few
rounds, because a queue leaves when it is satisfied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayplan.batch.model.amounts import TOLERANCE, Amounts
from bayplan.objects.resources import CPU, MEMORY, PODS

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueueShareRequest:
    """Input of the division for one queue."""

    weight: int
    request: Amounts
    limit: Amounts  # a scalar that is not named is unlimited
    guarantee: Amounts


def divide_by_weight(total: Amounts, requests: Sequence[QueueShareRequest]) -> list[Amounts]:
    """Return what each queue deserves of the total, in the given order; nothing if the sum of weights is 0."""
    names = _names(total, requests)
    division = _WaterFilling(names, total, requests)
    while division.run_round():
        pass
    return [
        _amounts(names, row, {*(total.scalars or ()), *(claim.guarantee.scalars or ())})
        for row, claim in zip(division.deserved.tolist(), requests, strict=True)
    ]


class _WaterFilling:
    """State of the division. Rows are queues, columns are resources: cpu, memory, then scalars."""

    def __init__(self, names: list[str], total: Amounts, requests: Sequence[QueueShareRequest]) -> None:
        self.request = _matrix(names, [claim.request for claim in requests])
        self.limit = _matrix(names, [claim.limit for claim in requests], missing=np.inf)
        self.guarantee = _matrix(names, [claim.guarantee for claim in requests])
        self.weights = np.array([claim.weight for claim in requests], dtype=np.int64)
        self.deserved = np.zeros_like(self.request)
        self.wanting = np.ones(len(requests), dtype=np.bool_)
        self.remaining: Vector = _matrix(names, [total])[0]
        # Upstream compares dictionaries: a scalar that is named with 0 differs from one that is not named. So a queue
        # whose share stays 0 counts as changed in the first round, in which its scalars get their names.
        self.named = np.array([name in (total.scalars or {}) for name in names], dtype=np.bool_)
        self.named[:2] = True
        self.unnamed_yet = np.array([bool(total.scalars or claim.guarantee.scalars) for claim in requests])
        self.counts = np.array([name != PODS for name in names])

    def run_round(self) -> bool:
        """Divide the remaining amounts; False after the last round."""
        weights = np.where(self.wanting, self.weights, 0)
        total_weight = int(weights.sum())
        if total_weight == 0:
            return False
        before = self.deserved
        after = self._next(weights / total_weight)
        satisfied = ((self.request - after) < TOLERANCE).all(axis=1)
        unchanged = (after == before).all(axis=1) & ~self.unnamed_yet
        self.unnamed_yet[:] = False
        self.wanting &= ~(satisfied | unchanged)
        self.deserved = after
        return self._subtract_shares(after - before)

    def _next(self, ratios: Vector) -> Matrix:
        after = self.deserved + self.remaining * ratios[:, None]
        after = np.minimum(np.minimum(after, self.limit), self.request)
        after = np.maximum(after, self.guarantee)
        return np.where(self.wanting[:, None], after, self.deserved)

    def _subtract_shares(self, change: Matrix) -> bool:
        """Subtract what was given from the remaining amounts; False if nothing remains or nothing changed."""
        available = self.remaining + np.maximum(-change, 0.0).sum(axis=0)
        taken = np.maximum(change, 0.0).sum(axis=0)
        before, named_before = self.remaining, self.named
        self.remaining = np.where(available > taken, available - taken, 0.0)
        self.named = available > taken
        self.named[:2] = True
        if not (self.remaining[self.counts] >= TOLERANCE).any():
            return False
        return not (np.array_equal(self.remaining, before) and np.array_equal(self.named, named_before))


def _names(total: Amounts, requests: Sequence[QueueShareRequest]) -> list[str]:
    scalars = set(total.scalars or ())
    for claim in requests:
        scalars.update(claim.request.scalars or (), claim.guarantee.scalars or ())
    return [CPU, MEMORY, *sorted(scalars)]


def _matrix(names: list[str], rows: Sequence[Amounts], missing: float = 0.0) -> Matrix:
    return np.array(
        [[row.milli_cpu, row.memory, *((row.scalars or {}).get(name, missing) for name in names[2:])] for row in rows],
        dtype=np.float64,
    ).reshape(len(rows), len(names))


def _amounts(names: list[str], row: list[float], named: set[str]) -> Amounts:
    scalars = {name: amount for name, amount in zip(names[2:], row[2:], strict=True) if name in named}
    return Amounts(row[0], row[1], scalars if named else None)
