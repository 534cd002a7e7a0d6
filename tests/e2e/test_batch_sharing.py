"""Several schedulers on one cluster: each keeps to the nodes of its NodeShard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_corner import BatchCorner
from cluster.run import Cluster
from scheduling import until


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchCorner]:
    mine = BatchCorner(cluster, namespace, tmp_path)
    yield mine
    mine.close()


@pytest.fixture
def shard(corner: BatchCorner) -> Iterator[str]:
    """The name of a NodeShard that goes with the test."""
    name = f"{corner.label[:40]}-shard"
    yield name
    corner.api.delete_all("NodeShard", [name])


def test_a_scheduler_keeps_to_its_node_shard(corner: BatchCorner, shard: str) -> None:
    first, second = corner.add_nodes(2, cpu="2")
    meta = {"apiVersion": "shard.volcano.sh/v1alpha1", "kind": "NodeShard", "metadata": {"name": shard}}
    corner.api.create({**meta, "spec": {"nodesDesired": [second]}})
    with corner.scheduling("--scheduler-sharding-mode=hard", f"--scheduler-sharding-name={shard}"):
        names = corner.gang("inside", 2)
        corner.bound(names)
        assert corner.nodes_of(names) == [second, second]
        late = corner.gang("late", 1)
        until(
            lambda: any("node isn't in scheduler node shard" in each for each in corner.reasons(late)),
            "the pod says that the other node is not ours",
            why=lambda: str(corner.reasons(late)),
        )
        until(
            lambda: corner.api.get("NodeShard", shard).get("status", {}).get("nodesInUse") == [second],
            "the shard says which nodes are in use",
        )
        corner.api.patch("NodeShard", shard, {"spec": {"nodesDesired": [first, second]}})
        corner.bound(late)
        assert corner.nodes_of(late) == [first]
    corner.fits()
