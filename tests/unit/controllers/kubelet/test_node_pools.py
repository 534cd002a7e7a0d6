"""Parsing of node pools, and invalid ones."""

from __future__ import annotations

from collections import Counter

import pytest

from bayplan.controllers.kubelet.node_pools import POOL_LABEL, ZONE_LABEL, NodePool, nodes_of
from bayplan.errors import UsageError


def test_a_pool_has_a_name_a_count_and_capacities() -> None:
    pool = NodePool.parse("gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8")
    assert pool == NodePool("gpu", 20, (("cpu", "96"), ("memory", "1Ti"), ("nvidia.com/gpu", "8")))
    first = next(pool.nodes())
    assert first["metadata"]["name"] == "gpu-0"
    assert first["status"]["allocatable"] == {**dict(pool.amounts), "ephemeral-storage": "1Ti", "pods": "110"}
    assert first["metadata"]["labels"][POOL_LABEL] == "gpu"


@pytest.mark.parametrize(("text", "name", "count"), [("5", "node", 5), ("cpu=3", "cpu", 3), ("none=0", "none", 0)])
def test_missing_capacities_are_those_of_a_fake_node(text: str, name: str, count: int) -> None:
    pool = NodePool.parse(text)
    assert (pool.name, pool.count, pool.amounts) == (name, count, ())
    assert len(list(pool.nodes())) == count


def test_zones_continue_from_pool_to_pool() -> None:
    found = nodes_of([NodePool("a", 4), NodePool("b", 5)], zones=3)
    assert Counter(each["metadata"]["labels"][ZONE_LABEL] for each in found) == {f"zone-{n}": 3 for n in range(3)}
    assert ZONE_LABEL not in nodes_of([NodePool("a", 1)])[0]["metadata"]["labels"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu=", "gpu=-1", "gpu=x", "Gpu=1", "gpu=1:", "gpu=1:cpu", "gpu=1:cpu=", "gpu=1:cpu=-3", "gpu=1:=3"),
        *("gpu=1:cpu=3,", "=3", "gpu=1000000", "gpu=²"),
    ],
)
def test_invalid_pools_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"write it as gpu=20:cpu=96,memory=1Ti"):
        NodePool.parse(text)


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two pools of the name a"):
        nodes_of([NodePool("a", 1), NodePool("a", 2)])
