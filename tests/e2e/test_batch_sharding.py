"""Several schedulers on one cluster, with nodes divided by NodeShard, by a hash ring, or by a label."""

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
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


@pytest.fixture
def shard(harness: BatchSchedulerHarness) -> Iterator[str]:
    """A NodeShard with a name for the test."""
    name = f"{harness.label[:40]}-shard"
    yield name
    harness.api.delete_all("NodeShard", [name])


def test_a_scheduler_keeps_to_its_node_shard(harness: BatchSchedulerHarness, shard: str) -> None:
    first, second = harness.add_nodes(2, cpu="2")
    meta = {"apiVersion": "shard.volcano.sh/v1alpha1", "kind": "NodeShard", "metadata": {"name": shard}}
    harness.api.create({**meta, "spec": {"nodesDesired": [second]}})
    with harness.run_batch("--scheduler-sharding-mode=hard", f"--scheduler-sharding-name={shard}"):
        names = harness.gang("inside", 2)
        harness.wait_bound(names)
        assert harness.nodes_of(names) == [second, second]
        late = harness.gang("late", 1)
        wait_until(
            lambda: any("node isn't in scheduler node shard" in each for each in harness.reasons(late)),
            "the pod says that the other node is not ours",
            why=lambda: str(harness.reasons(late)),
        )
        wait_until(
            lambda: harness.api.get("NodeShard", shard).get("status", {}).get("nodesInUse") == [second],
            "the shard says which nodes are in use",
        )
        harness.api.patch("NodeShard", shard, {"spec": {"nodesDesired": [first, second]}})
        harness.wait_bound(late)
        assert harness.nodes_of(late) == [first]
    harness.check_no_overcommit()


def divided(name: str) -> dict[str, str]:
    """The environment of two replicas of a StatefulSet."""
    return {"MULTI_SCHEDULER_ENABLE": "true", "SCHEDULER_NUM": "2", "SCHEDULER_POD_NAME": name}


def test_two_schedulers_of_one_name_divide_jobs_and_nodes(harness: BatchSchedulerHarness) -> None:
    """Each has its jobs and nodes by the hash ring, and ignores the other's while that one does not run."""
    parts = {name: MultiScheduler(name, 2) for name in ("scheduler-0", "scheduler-1")}
    nodes: dict[str, list[str]] = {name: [] for name in parts}
    while not all(nodes.values()):
        (node,) = harness.add_nodes(1, cpu="4")
        nodes[next(name for name, part in parts.items() if part.owns_key(node))].append(node)
    jobs = {name: next(word for word in WORDS if part.owns_key(word)) for name, part in parts.items()}
    pods = {name: owned_gang(harness, job, 2) for name, job in jobs.items()}
    with harness.run_batch(env=divided("scheduler-0")):
        harness.wait_bound(pods["scheduler-0"])
        assert set(harness.nodes_of(pods["scheduler-0"])) <= set(nodes["scheduler-0"])
        assert harness.nodes_of(pods["scheduler-1"]) == ["", ""]
        with harness.run_batch(env=divided("scheduler-1")):
            harness.wait_bound(pods["scheduler-1"])
            assert set(harness.nodes_of(pods["scheduler-1"])) <= set(nodes["scheduler-1"])
    harness.check_no_overcommit()
    harness.check_bound_once()


WORDS = [f"owner-{number}" for number in range(1000)]


def owned_gang(harness: BatchSchedulerHarness, owner: str, size: int) -> list[str]:
    """A gang whose pod group and pods have the same owner, whose name is the key of the ring."""
    made = harness.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": owner}})[0]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": made["metadata"]["uid"]}

    def of_owner(tree: Tree) -> Tree:
        tree["metadata"]["ownerReferences"] = [reference]
        return tree

    group = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": owner, "namespace": harness.namespace}}
    harness.api.create(of_owner({**group, "spec": {"minMember": size, "queue": "default"}}))
    harness.api.create(*(of_owner(harness.member(owner, number)) for number in range(size)))
    return [f"{owner}-w-{number}" for number in range(size)]


@pytest.mark.parametrize("verb", ["batch", "run"])
def test_sessions_keep_to_labelled_nodes(harness: BatchSchedulerHarness, verb: str) -> None:
    """The selector applies to sessions only: the pod engine may use any node."""
    (mine,) = harness.add_nodes(1, cpu="2", labels={"pool": "batch"})
    (other,) = harness.add_nodes(1, cpu="2")
    start = harness.run_combined if verb == "run" else harness.run_batch
    with start("--node-selector=pool:batch"):
        first, late = harness.gang("first", 2), harness.gang("late", 2)
        harness.wait_bound(first)
        assert set(harness.nodes_of(first)) == {mine}
        wait_until(lambda: any(harness.reasons(late)), "the late gang has a reason")
        assert harness.nodes_of(late) == ["", ""]
        if verb == "run":
            harness.api.create(harness.pod("alone", cpu="2"))
            harness.wait_bound(["alone"])
            assert harness.nodes_of(["alone"]) == [other]
            harness.api.delete_all("Pod", ["alone"])
        harness.api.patch("Node", other, {"metadata": {"labels": {"pool": "batch"}}})
        harness.wait_bound(late)
        assert set(harness.nodes_of(late)) == {other}
    harness.check_no_overcommit()
