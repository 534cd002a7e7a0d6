"""Gangs on a cluster: all of their pods or none, whole life long, whatever happens in between."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_a_gang_starts_whole_and_one_that_does_not_fit_not_at_all(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(2, cpu="4")
    fits = corner.gang("fits", 4)
    large = corner.gang("large", 6)
    with corner.run_batch(conf=GANGS.replace("  - name: proportion\n", "")):
        corner.wait_bound(fits)
        corner.start(*fits)
        corner.wait_for_phase("fits", "Running")
        wait_until(lambda: any("Insufficient cpu" in each for each in corner.reasons(large)), "the gang knows why")
        assert set(corner.nodes_of(large)) == {""}
        said = corner.group_condition("large", "Unschedulable")
        assert said["status"] == "True"
        assert "6/6 tasks in gang unschedulable: pod group is not ready" in said["message"]
        assert any("tasks in gang unschedulable" in each for each in corner.event_notes("large"))
        assert any("Successfully assigned" in each for each in corner.event_notes(fits[0]))
        corner.add_nodes(1, cpu="4")
        corner.api.delete_all("Pod", fits)
        corner.wait_bound(large)
    corner.check_no_overcommit()
    corner.check_bound_once()


def test_a_gang_goes_on_after_a_kill_in_its_middle(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(4, cpu="8")
    names = corner.gang("job", 24)
    with corner.run_batch() as process:
        wait_until(lambda: any(corner.nodes_of(names)), "the first of them has a node")
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = dict(zip(names, corner.nodes_of(names), strict=True))
    with corner.run_batch():
        corner.wait_bound(names)
        after = dict(zip(names, corner.nodes_of(names), strict=True))
        assert all(after[name] == node for name, node in before.items() if node)  # who has a node keeps it
        corner.start(*names)
        corner.wait_for_phase("job", "Running")
        assert all(after.values())
    corner.check_no_overcommit()


def test_pods_of_nobody_take_room_and_are_left_alone(corner: BatchSchedulerHarness) -> None:
    (node,) = corner.add_nodes(1, cpu="4")
    alone = corner.pod("alone", cpu="2", nodeName=node, schedulerName="elsewhere")
    other = corner.pod("other", cpu="100m", schedulerName="elsewhere")
    corner.api.create(alone, other)
    small, large = corner.gang("small", 2), corner.gang("large", 3)
    with corner.run_batch():
        corner.wait_bound(small)
        wait_until(lambda: bool(condition(corner.api.pod(large[0])).get("message")), "the larger gang is told why")
        assert corner.nodes_of(["other", *large]) == ["", "", "", ""]
        assert condition(corner.api.pod("other")) == {}


def test_hypernodes_keep_a_job_together(corner: BatchSchedulerHarness) -> None:
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
    nodes = corner.add_nodes(4, cpu="2")
    left, right = corner.hyper_node("left", 1, nodes[:2]), corner.hyper_node("right", 1, nodes[2:])
    corner.hyper_node("top", 2, [left, right], kind="HyperNode")
    together = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    names = corner.gang("close", 4, group=together)
    apart = corner.gang("wide", 5, group=together)
    with corner.run_batch(conf=conf):
        corner.wait_bound(names)
        used = set(corner.nodes_of(names))
        assert used in ({*nodes[:2]}, {*nodes[2:]})
        wait_until(lambda: bool(corner.group_condition("wide", "Unschedulable")), "the wide one knows that it cannot")
        assert set(corner.nodes_of(apart)) == {""}


def test_pods_that_ask_for_nothing_fill_the_gaps(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(1, cpu="1")
    full = corner.gang("full", 1)
    corner.group("idle", 1)
    idle = corner.member("idle", 0)
    idle["spec"]["containers"][0]["resources"] = {}
    corner.api.create(idle)
    with corner.run_batch():
        corner.wait_bound([*full, "idle-w-0"])
        assert corner.nodes_of([*full, "idle-w-0"]) == corner.nodes * 2


def test_volumes_that_wait_for_their_pod_are_promised_first(corner: BatchSchedulerHarness) -> None:
    nodes = corner.add_nodes(2, cpu="4")
    kind = wait_for_first_consumer_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", nodes[1], kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    with corner.run_batch("--ignored-provisioners=kubernetes.io/no-provisioner"):
        corner.group("job", 1)
        pod = pod_with_claim(corner, "job-w-0", "data")
        pod["metadata"]["annotations"] = {GROUP_NAME_ANNOTATION: "job"}
        pod["spec"]["schedulerName"] = "volcano"
        corner.api.create(pod)
        wait_until(
            lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"],
            "the volume is promised",
            why=lambda: f"{corner.reasons(['job-w-0'])} {corner.log()[-3000:]}",
        )
        bind_claim(corner, "data", name)
        corner.wait_bound(["job-w-0"])
        assert corner.nodes_of(["job-w-0"]) == [nodes[1]]


def test_a_claim_of_the_default_class_is_no_hindrance(corner: BatchSchedulerHarness) -> None:
    """No node offers our own provisioner as a driver, so its volumes must not count as room that is asked for."""
    nodes = corner.add_nodes(2, cpu="4")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    only = ("--controllers", "persistentvolume-binder-controller", "--default-storage-class")
    with controllers(corner.folder, corner.cluster.kubeconfig(), *only), corner.run_batch():
        wait_until(lambda: "standard" in names(corner, "StorageClass"), "the default class is there")
        wanted = claim("data", "")
        del wanted["spec"]["storageClassName"]
        corner.api.create(wanted)
        (name,) = corner.gang("job", 1, volumes=volumes)
        corner.wait_bound([name])
        assert corner.nodes_of([name])[0] in nodes
        bound = corner.api.get("PersistentVolumeClaim", "data")
        assert (bound["spec"]["storageClassName"], bound["status"]["phase"]) == ("standard", "Bound")


def names(corner: BatchSchedulerHarness, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in corner.api.list(kind)]
