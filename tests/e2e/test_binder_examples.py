"""The pairs of `examples/binder`, a scheduler plugin and a binder plugin each, at work on both clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from binder_corner import BinderCorner
from cluster.run import Cluster
from docs.fences import ROOT
from scenario import quick
from scheduling import node_of

PROFILES = """
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: NodeStateSeen}, {name: TopologyPosition}, {name: GpuParameters}, {name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
FLAGS = (f"--plugins-dir={ROOT / 'examples' / 'binder'}", "--trust-writable-plugins")


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderCorner]:
    mine = BinderCorner(cluster, namespace, tmp_path)
    mine.add_nodes(2, labels={"example.com/rack": "r7", "example.com/block": "b2"})
    yield mine
    mine.close()


def test_each_pair_does_what_it_says(corner: BinderCorner) -> None:
    with corner.running(*FLAGS, config=quick(PROFILES)), corner.binder(*FLAGS):
        corner.api.create(corner.pod("web"))
        corner.bound(["web"])
        request = corner.ends("web", "Succeeded")
    handed, pod = request["metadata"]["annotations"], corner.api.pod("web")
    node = corner.api.get("Node", node_of(pod))
    assert handed["nodestate.kai.scheduler/handler"] == "nodestate"
    assert int(handed["nodestate.kai.scheduler/resource-version"]) <= int(node["metadata"]["resourceVersion"])
    assert handed["nodestate.kai.scheduler/cordoned"] == "false"
    assert handed["topologyhint.kai.scheduler/rack"] == "r7"
    assert pod["metadata"]["annotations"]["example.com/rack"] == "r7"
    assert pod["metadata"]["annotations"]["example.com/block"] == "b2"
    assert "example.com/gpu-environment" not in pod["metadata"]["annotations"]


def test_device_parameters_come_with_the_pod(corner: BinderCorner) -> None:
    for name in corner.nodes:
        amounts = {"nvidia.com/gpu": "8"}
        corner.api.patch("Node", name, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    asking = corner.pod("train")
    asking["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    with corner.running(*FLAGS, config=quick(PROFILES)), corner.binder(*FLAGS):
        corner.api.create(asking)
        corner.bound(["train"])
    pod = corner.api.pod("train")
    assert pod["metadata"]["annotations"]["example.com/gpu-environment"] == f"GPU_COUNT=2,GPU_NODE={node_of(pod)}"


def test_a_stale_node_is_refreshed_once_then_refused(corner: BinderCorner) -> None:
    node = corner.api.get("Node", corner.nodes[0])
    version = int(node["metadata"]["resourceVersion"])
    handler = {"nodestate.kai.scheduler/handler": "nodestate"}
    key = "nodestate.kai.scheduler/resource-version"
    corner.requested("fresh", corner.nodes[0], annotations={**handler, key: str(version)})
    corner.requested("future", corner.nodes[0], annotations={**handler, key: str(version + 10**9)})
    corner.requested("others", corner.nodes[0], annotations={"nodestate.kai.scheduler/handler": "somebody"})
    with corner.binder(*FLAGS):
        corner.ends("fresh", "Succeeded")
        corner.ends("others", "Succeeded")
        refused = corner.ends("future", "Failed")
    assert "is known in a version before" in refused["status"]["reason"]
    assert node_of(corner.api.pod("future")) == ""


def test_a_pod_that_tolerates_cordoned_nodes_is_bound_to_one(corner: BinderCorner) -> None:
    for name in corner.nodes:
        corner.api.patch("Node", name, {"spec": {"unschedulable": True}})
    tolerant = corner.pod("tolerant")
    tolerant["spec"]["tolerations"] = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    with corner.running(*FLAGS, config=quick(PROFILES)), corner.binder(*FLAGS):
        corner.api.create(tolerant)
        corner.bound(["tolerant"])
        request = corner.ends("tolerant", "Succeeded")
    assert request["metadata"]["annotations"]["nodestate.kai.scheduler/cordoned"] == "true"


def test_other_versions_do_no_harm(corner: BinderCorner) -> None:
    """A scheduler with plugins that the binder lacks, and a binder with plugins that the scheduler lacks."""
    with corner.running(*FLAGS, config=quick(PROFILES)), corner.binder():
        corner.api.create(corner.pod("newer-scheduler"))
        unknown = corner.ends("newer-scheduler", "Succeeded")["metadata"]["annotations"]
    with corner.by_requests(), corner.binder(*FLAGS):
        corner.api.create(corner.pod("newer-binder"))
        missing = corner.ends("newer-binder", "Succeeded")["metadata"].get("annotations", {})
    assert "nodestate.kai.scheduler/handler" in unknown
    assert "nodestate.kai.scheduler/handler" not in missing
    pods = corner.api.pods()
    assert all(node_of(pods[name]) in corner.nodes for name in ("newer-scheduler", "newer-binder"))
    assert not any("example.com/rack" in pod["metadata"].get("annotations", {}) for pod in pods.values())
