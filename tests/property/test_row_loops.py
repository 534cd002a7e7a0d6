"""The loops of the kernel against NumPy, bit by bit: with amounts up to the limits of floats, full and empty rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.plugins.node_resources import row_loops
from bayplan.plugins.node_resources.allocation_strategies import AllocationScorer, least_allocated_floats
from bayplan.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from bayplan.plugins.node_resources.float_columns import FloatColumns
from bayplan.snapshot import FLOAT_EXACT_LIMIT
from support.builders.framework import make_plugin

amounts = st.one_of(st.integers(0, 40), st.integers(0, 10**6), st.integers(0, FLOAT_EXACT_LIMIT - 1))
rows = st.lists(st.tuples(*[st.tuples(amounts.map(lambda has: has + 1), amounts) for _ in range(2)]), min_size=1)
demands = st.tuples(amounts, amounts)


def mirror_of(cells: list[Any]) -> FloatColumns:
    """Float columns of rows without a snapshot."""
    mirror = FloatColumns((0, 1), (False, False))
    has, taken = (
        np.array([[row[place][of] for row in cells] for place in range(2)], dtype=np.float64) for of in (0, 1)
    )
    mirror.allocatable, mirror.requested, mirror.free, mirror.buffer = has, taken, has - taken, np.empty_like(has)
    mirror._minimum = [None, None]
    return mirror


@given(rows, demands, st.tuples(st.integers(1, 100), st.integers(1, 100)))
def test_least_allocated(cells: list[Any], demand: tuple[int, int], weights: tuple[int, int]) -> None:
    mirror = mirror_of(cells)
    plain = AllocationScorer(_unused, _unused, float_share=least_allocated_floats).score_floats(mirror, demand, weights)
    scores = np.empty(len(cells))
    row_loops.least_allocated(mirror.free, mirror.allocatable, demand, weights, scores)
    assert plain is not None
    assert scores.astype(np.int64).tolist() == plain.tolist()


@given(rows, demands)
def test_balanced_of_two(cells: list[Any], demand: tuple[int, int]) -> None:
    mirror, offset = mirror_of(cells), np.arange(len(cells), dtype=np.int64) % 51 + 50
    plugin = make_plugin(NodeResourcesBalancedAllocation)
    plugin._offset = offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayplan.plugins.node_resources.balanced_allocation.row_loops.COMPILED", False)
        plain = plugin._score_floats(mirror, demand)
    scores = np.empty(len(cells))
    row_loops.balanced_of_two(mirror.requested, mirror.allocatable, demand, offset, scores)
    assert scores.astype(np.int64).tolist() == plain.tolist()


def _unused(*_: Any) -> Any:
    raise AssertionError
