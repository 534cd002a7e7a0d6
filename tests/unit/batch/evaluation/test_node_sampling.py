"""Sampling of feasible nodes: how many nodes a search looks for."""

from __future__ import annotations

import numpy as np
import pytest

from bayplan.batch.evaluation.node_sampling import FeasibleNodeSampling


@pytest.mark.parametrize(
    ("percentage", "least", "nodes", "wanted"),
    [
        pytest.param(10, 100, 5000, 500, id="a share"),
        pytest.param(1, 100, 5000, 100, id="never fewer than the least"),
        pytest.param(10, 100, 100, 100, id="all of few"),
        pytest.param(100, 1, 5000, 5000, id="all"),
    ],
)
def test_num_feasible_nodes_to_find(percentage: int, least: int, nodes: int, wanted: int) -> None:
    assert FeasibleNodeSampling(percentage, least).num_feasible_nodes_to_find(nodes) == wanted


def test_a_search_begins_where_the_last_one_ended() -> None:
    share = FeasibleNodeSampling(20, 1)
    feasible = np.array([True, False] * 5)
    found = [np.flatnonzero(share.sample(feasible, None)).tolist() for _ in range(4)]
    assert found == [[0, 2], [4, 6], [0, 8], [2, 4]]


def test_only_the_given_rows_are_sampled() -> None:
    share = FeasibleNodeSampling(50, 1)
    among = np.array([False, False, True, True, True, True])
    sampled = share.sample(np.ones(6, dtype=np.bool_) & among, among)
    assert np.flatnonzero(sampled).tolist() == [2, 3]
