"""Gangs on a cluster: either all of their pods run or none, with restarts, topology, volumes and best-effort pods."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.batch_harness import GANGS, GROUP_NAME_ANNOTATION, BatchSchedulerHarness
from support.e2e.scheduler_process import condition, wait_until
from support.e2e.volumes_and_devices import bind_claim, claim, pod_with_claim, volume, wait_for_first_consumer_class
from support.e2e.workload_cluster import controllers


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_a_gang_starts_completely_and_one_that_does_not_fit_not_at_all(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(2, cpu="4")
    fits = harness.gang("fits", 4)
    large = harness.gang("large", 6)
    with harness.run_batch(conf=GANGS.replace("  - name: proportion\n", "")):
        harness.wait_bound(fits)
        harness.start(*fits)
        harness.wait_for_phase("fits", "Running")
        wait_until(lambda: any("Insufficient cpu" in each for each in harness.reasons(large)), "the gang knows why")
        assert set(harness.nodes_of(large)) == {""}
        said = harness.group_condition("large", "Unschedulable")
        assert said["status"] == "True"
        assert "6/6 tasks in gang unschedulable: pod group is not ready" in said["message"]
        assert any("tasks in gang unschedulable" in each for each in harness.event_notes("large"))
        assert any("Successfully assigned" in each for each in harness.event_notes(fits[0]))
        harness.add_nodes(1, cpu="4")
        harness.api.delete_all("Pod", fits)
        harness.wait_bound(large)
    harness.check_no_overcommit()
    harness.check_bound_once()


def test_a_partly_bound_gang_is_completed_after_a_kill(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(4, cpu="8")
    names = harness.gang("job", 24)
    with harness.run_batch() as process:
        wait_until(lambda: any(harness.nodes_of(names)), "the first of them has a node")
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = dict(zip(names, harness.nodes_of(names), strict=True))
    with harness.run_batch():
        harness.wait_bound(names)
        after = dict(zip(names, harness.nodes_of(names), strict=True))
        assert all(after[name] == node for name, node in before.items() if node)  # a bound pod keeps its node
        harness.start(*names)
        harness.wait_for_phase("job", "Running")
        assert all(after.values())
    harness.check_no_overcommit()


def test_pods_of_other_schedulers_take_room_and_are_ignored(harness: BatchSchedulerHarness) -> None:
    (node,) = harness.add_nodes(1, cpu="4")
    alone = harness.pod("alone", cpu="2", nodeName=node, schedulerName="elsewhere")
    other = harness.pod("other", cpu="100m", schedulerName="elsewhere")
    harness.api.create(alone, other)
    small, large = harness.gang("small", 2), harness.gang("large", 3)
    with harness.run_batch():
        harness.wait_bound(small)
        wait_until(lambda: bool(condition(harness.api.pod(large[0])).get("message")), "the larger gang has a reason")
        assert harness.nodes_of(["other", *large]) == ["", "", "", ""]
        assert condition(harness.api.pod("other")) == {}


def test_hypernodes_keep_a_job_together(harness: BatchSchedulerHarness) -> None:
    conf = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: network-topology-aware
"""
    nodes = harness.add_nodes(4, cpu="2")
    left, right = harness.hyper_node("left", 1, nodes[:2]), harness.hyper_node("right", 1, nodes[2:])
    harness.hyper_node("top", 2, [left, right], kind="HyperNode")
    together = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    names = harness.gang("close", 4, group=together)
    apart = harness.gang("wide", 5, group=together)
    with harness.run_batch(conf=conf):
        harness.wait_bound(names)
        used = set(harness.nodes_of(names))
        assert used in ({*nodes[:2]}, {*nodes[2:]})
        wait_until(lambda: bool(harness.group_condition("wide", "Unschedulable")), "the wide one knows that it cannot")
        assert set(harness.nodes_of(apart)) == {""}


def test_pods_that_ask_for_nothing_fill_the_gaps(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(1, cpu="1")
    full = harness.gang("full", 1)
    harness.group("idle", 1)
    idle = harness.member("idle", 0)
    idle["spec"]["containers"][0]["resources"] = {}
    harness.api.create(idle)
    with harness.run_batch():
        harness.wait_bound([*full, "idle-w-0"])
        assert harness.nodes_of([*full, "idle-w-0"]) == harness.nodes * 2


def test_volumes_that_wait_for_their_pod_are_promised_first(harness: BatchSchedulerHarness) -> None:
    nodes = harness.add_nodes(2, cpu="4")
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    made = volume(harness, "v", nodes[1], kind)
    name = made["metadata"]["name"]
    harness.api.create(made, claim("data", kind))
    harness.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    with harness.run_batch("--ignored-provisioners=kubernetes.io/no-provisioner"):
        harness.group("job", 1)
        pod = pod_with_claim(harness, "job-w-0", "data")
        pod["metadata"]["annotations"] = {GROUP_NAME_ANNOTATION: "job"}
        pod["spec"]["schedulerName"] = "volcano"
        harness.api.create(pod)
        wait_until(
            lambda: "claimRef" in harness.api.get("PersistentVolume", name)["spec"],
            "the volume is promised",
            why=lambda: f"{harness.reasons(['job-w-0'])} {harness.log()[-3000:]}",
        )
        bind_claim(harness, "data", name)
        harness.wait_bound(["job-w-0"])
        assert harness.nodes_of(["job-w-0"]) == [nodes[1]]


def test_a_claim_of_the_default_class_is_no_hindrance(harness: BatchSchedulerHarness) -> None:
    """No node reports a driver for the default provisioner, so its volumes must not count as requested capacity."""
    nodes = harness.add_nodes(2, cpu="4")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    only = ("--controllers", "persistentvolume-binder-controller", "--default-storage-class")
    with controllers(harness.folder, harness.cluster.kubeconfig(), *only), harness.run_batch():
        wait_until(lambda: "standard" in names(harness, "StorageClass"), "the default class is there")
        wanted = claim("data", "")
        del wanted["spec"]["storageClassName"]
        harness.api.create(wanted)
        (name,) = harness.gang("job", 1, volumes=volumes)
        harness.wait_bound([name])
        assert harness.nodes_of([name])[0] in nodes
        bound = harness.api.get("PersistentVolumeClaim", "data")
        assert (bound["spec"]["storageClassName"], bound["status"]["phase"]) == ("standard", "Bound")


def names(harness: BatchSchedulerHarness, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in harness.api.list(kind)]
