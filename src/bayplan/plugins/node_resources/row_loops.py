# cython: boundscheck=False, wraparound=False, cdivision=True
"""What do all rows score, row by row? Plain loops over what `amount_mirror` has at hand.

Asked by the two plugins that score resources, where this module is compiled: then one pass over the rows takes a third
of what NumPy needs for eight of them. Uncompiled it is slow, and asked by nobody but the tests, which hold the loops
against NumPy: every operation is the same, in the same order, so that every bit is.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.plugins.node_resources.float_columns import FloatMatrix, FloatVector
from bayplan.snapshot import IntVector

COMPILED = not __file__.endswith(".py")


def least_allocated(
    left: FloatMatrix, has: FloatMatrix, demand: tuple[int, ...], weights: Sequence[int], scores: FloatVector
) -> None:
    """The weighted average of the share that is left of each resource, from 0 to 100; `scores` is filled."""
    rows, whole = scores.shape[0], sum(weights)
    for row in range(rows):
        scores[row] = 0.0
    for place in range(len(demand)):
        amount, weight = demand[place], weights[place]
        for row in range(rows):
            share = (left[place, row] - amount) * 100.0 / has[place, row] // 1.0
            scores[row] += (share if share > 0.0 else 0.0) * weight
    for row in range(rows):
        scores[row] = scores[row] / whole


def balanced_of_two(
    taken: FloatMatrix, has: FloatMatrix, demand: tuple[int, ...], offset: IntVector, scores: FloatVector
) -> None:
    """By how much the pod improves the balance of two resources, given `offset`, which the balance of now is in."""
    first, second = demand
    for row in range(scores.shape[0]):
        one = (taken[0, row] + first) / has[0, row]
        other = (taken[1, row] + second) / has[1, row]
        one = one if one < 1.0 else 1.0
        other = other if other < 1.0 else 1.0
        distance = (one - other) * 0.5
        distance = distance if distance > 0.0 else -distance
        scores[row] = ((1.0 - distance) * 100.0 // 1.0 + offset[row]) * 0.5 // 1.0
