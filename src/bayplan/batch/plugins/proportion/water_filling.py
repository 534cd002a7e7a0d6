"""How much of the cluster does each queue deserve, by weight, no queue getting more than it asks for or may have?

Proportion asks once a session. Each round divides what remains by the weights of the queues that still want more; what
they cannot use remains for the next round. Cost: some vector operations a round over queues and resources; rounds are
few, since a queue leaves as soon as it is satisfied.
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
    """What one queue brings to the division."""

    weight: int
    request: Amounts
    limit: Amounts  # a scalar that it does not name is not limited
    guarantee: Amounts


def divide_by_weight(total: Amounts, claims: Sequence[QueueShareRequest]) -> list[Amounts]:
    """What each queue deserves of the total, in the order given; nothing at all where weights are missing."""
    names = _names(total, claims)
    division = _WaterFilling(names, total, claims)
    while division.run_round():
        pass
    return [
        _amounts(names, row, {*(total.scalars or ()), *(claim.guarantee.scalars or ())})
        for row, claim in zip(division.deserved.tolist(), claims, strict=True)
    ]


class _WaterFilling:
    """Rows are queues, columns are resources: cpu, memory, then scalars."""

    def __init__(self, names: list[str], total: Amounts, claims: Sequence[QueueShareRequest]) -> None:
        self.request = _matrix(names, [claim.request for claim in claims])
        self.limit = _matrix(names, [claim.limit for claim in claims], missing=np.inf)
        self.guarantee = _matrix(names, [claim.guarantee for claim in claims])
        self.weights = np.array([claim.weight for claim in claims], dtype=np.int64)
        self.deserved = np.zeros_like(self.request)
        self.wanting = np.ones(len(claims), dtype=np.bool_)
        self.remaining: Vector = _matrix(names, [total])[0]
        # Upstream compares dictionaries: a scalar that is named with nothing differs from one that is not named. So a
        # queue whose share stays nothing counts as changed in the first round, when its scalars get their names.
        self.named = np.array([name in (total.scalars or {}) for name in names], dtype=np.bool_)
        self.named[:2] = True
        self.unnamed_yet = np.array([bool(total.scalars or claim.guarantee.scalars) for claim in claims])
        self.worth = np.array([name != PODS for name in names])

    def run_round(self) -> bool:
        """Divide what remains; False when that was the last time."""
        weights = np.where(self.wanting, self.weights, 0)
        whole = int(weights.sum())
        if whole == 0:
            return False
        before = self.deserved
        after = self._next(weights / whole)
        met = ((self.request - after) < TOLERANCE).all(axis=1)
        same = (after == before).all(axis=1) & ~self.unnamed_yet
        self.unnamed_yet[:] = False
        self.wanting &= ~(met | same)
        self.deserved = after
        return self._subtract_given(after - before)

    def _next(self, ratios: Vector) -> Matrix:
        after = self.deserved + self.remaining * ratios[:, None]
        after = np.minimum(np.minimum(after, self.limit), self.request)
        after = np.maximum(after, self.guarantee)
        return np.where(self.wanting[:, None], after, self.deserved)

    def _subtract_given(self, change: Matrix) -> bool:
        """Take what was given from what remains; False when nothing remains, or nothing of it was taken."""
        left = self.remaining + np.maximum(-change, 0.0).sum(axis=0)
        taken = np.maximum(change, 0.0).sum(axis=0)
        before, named_before = self.remaining, self.named
        self.remaining = np.where(left > taken, left - taken, 0.0)
        self.named = left > taken
        self.named[:2] = True
        if not (self.remaining[self.worth] >= TOLERANCE).any():
            return False
        return not (np.array_equal(self.remaining, before) and np.array_equal(self.named, named_before))


def _names(total: Amounts, claims: Sequence[QueueShareRequest]) -> list[str]:
    scalars = set(total.scalars or ())
    for claim in claims:
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
