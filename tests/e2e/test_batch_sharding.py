"""Several schedulers on one cluster: each keeps to the nodes of its NodeShard, to its part of a ring, or to a label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.batch.live.multi_scheduler import MultiScheduler
from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.batch_harness import VOLCANO, BatchSchedulerHarness
from support.e2e.scheduler_process import wait_until


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


@pytest.fixture
def shard(corner: BatchSchedulerHarness) -> Iterator[str]:
    """The name of a NodeShard that goes with the test."""
    name = f"{corner.label[:40]}-shard"
    yield name
    corner.api.delete_all("NodeShard", [name])


def test_a_scheduler_keeps_to_its_node_shard(corner: BatchSchedulerHarness, shard: str) -> None:
    first, second = corner.add_nodes(2, cpu="2")
    meta = {"apiVersion": "shard.volcano.sh/v1alpha1", "kind": "NodeShard", "metadata": {"name": shard}}
    corner.api.create({**meta, "spec": {"nodesDesired": [second]}})
    with corner.run_batch("--scheduler-sharding-mode=hard", f"--scheduler-sharding-name={shard}"):
        names = corner.gang("inside", 2)
        corner.wait_bound(names)
        assert corner.nodes_of(names) == [second, second]
        late = corner.gang("late", 1)
        wait_until(
            lambda: any("node isn't in scheduler node shard" in each for each in corner.reasons(late)),
            "the pod says that the other node is not ours",
            why=lambda: str(corner.reasons(late)),
        )
        wait_until(
            lambda: corner.api.get("NodeShard", shard).get("status", {}).get("nodesInUse") == [second],
            "the shard says which nodes are in use",
        )
        corner.api.patch("NodeShard", shard, {"spec": {"nodesDesired": [first, second]}})
        corner.wait_bound(late)
        assert corner.nodes_of(late) == [first]
    corner.check_no_overcommit()


def divided(name: str) -> dict[str, str]:
    """What a StatefulSet tells each of two schedulers."""
    return {"MULTI_SCHEDULER_ENABLE": "true", "SCHEDULER_NUM": "2", "SCHEDULER_POD_NAME": name}


def test_two_schedulers_of_one_name_divide_jobs_and_nodes(corner: BatchSchedulerHarness) -> None:
    """Each has jobs and nodes of its own by the ring, and leaves the other's alone while that one is away."""
    parts = {name: MultiScheduler(name, 2) for name in ("scheduler-0", "scheduler-1")}
    nodes: dict[str, list[str]] = {name: [] for name in parts}
    while not all(nodes.values()):
        (node,) = corner.add_nodes(1, cpu="4")
        nodes[next(name for name, part in parts.items() if part.owns_key(node))].append(node)
    jobs = {name: next(word for word in WORDS if part.owns_key(word)) for name, part in parts.items()}
    pods = {name: owned_gang(corner, job, 2) for name, job in jobs.items()}
    with corner.run_batch(env=divided("scheduler-0")):
        corner.wait_bound(pods["scheduler-0"])
        assert set(corner.nodes_of(pods["scheduler-0"])) <= set(nodes["scheduler-0"])
        assert corner.nodes_of(pods["scheduler-1"]) == ["", ""]
        with corner.run_batch(env=divided("scheduler-1")):
            corner.wait_bound(pods["scheduler-1"])
            assert set(corner.nodes_of(pods["scheduler-1"])) <= set(nodes["scheduler-1"])
    corner.check_no_overcommit()
    corner.check_bound_once()


WORDS = [f"owner-{number}" for number in range(1000)]


def owned_gang(corner: BatchSchedulerHarness, owner: str, size: int) -> list[str]:
    """A gang whose group and pods belong to the same object, by whose name the ring knows them."""
    made = corner.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": owner}})[0]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": made["metadata"]["uid"]}

    def of_owner(tree: Tree) -> Tree:
        tree["metadata"]["ownerReferences"] = [reference]
        return tree

    group = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": owner, "namespace": corner.namespace}}
    corner.api.create(of_owner({**group, "spec": {"minMember": size, "queue": "default"}}))
    corner.api.create(*(of_owner(corner.member(owner, number)) for number in range(size)))
    return [f"{owner}-w-{number}" for number in range(size)]


@pytest.mark.parametrize("verb", ["batch", "run"])
def test_sessions_keep_to_labelled_nodes(corner: BatchSchedulerHarness, verb: str) -> None:
    """The selector is the sessions' own: what the pod engine places may go anywhere."""
    (mine,) = corner.add_nodes(1, cpu="2", labels={"pool": "batch"})
    (other,) = corner.add_nodes(1, cpu="2")
    start = corner.run_combined if verb == "run" else corner.run_batch
    with start("--node-selector=pool:batch"):
        first, late = corner.gang("first", 2), corner.gang("late", 2)
        corner.wait_bound(first)
        assert set(corner.nodes_of(first)) == {mine}
        wait_until(lambda: any(corner.reasons(late)), "the late gang is told that it waits")
        assert corner.nodes_of(late) == ["", ""]
        if verb == "run":
            corner.api.create(corner.pod("alone", cpu="2"))
            corner.wait_bound(["alone"])
            assert corner.nodes_of(["alone"]) == [other]
            corner.api.delete_all("Pod", ["alone"])
        corner.api.patch("Node", other, {"metadata": {"labels": {"pool": "batch"}}})
        corner.wait_bound(late)
        assert set(corner.nodes_of(late)) == {other}
    corner.check_no_overcommit()
