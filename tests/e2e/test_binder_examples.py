"""The examples of `examples/binder`, a plugin of each engine and one of the binder, at work on both clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from docs.fences import ROOT
from support.e2e.batch_harness import GANGS
from support.e2e.binder_harness import BinderHarness
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import node_name, wait_until

PROFILES = """
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: NodeStateSeen}, {name: TopologyPosition}, {name: GpuParameters}, {name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
TIERS = f"""{GANGS}
- plugins:
  - name: node-state-seen
  - name: topology-position
  - name: gpu-parameters
"""
FLAGS = (f"--plugins-dir={ROOT / 'examples' / 'binder'}", "--trust-writable-plugins")
on_both_engines = pytest.mark.parametrize("engine", ["pods", "gangs"])


def deciding(corner: BinderHarness, engine: str) -> Any:
    """An engine whose plugins have something to say to the binder."""
    if engine == "pods":
        return corner.run_scheduler(*FLAGS, config=short_backoff_config(PROFILES))
    return corner.run_batch_with_requests(*FLAGS, conf=TIERS)


def one_for(corner: BinderHarness, engine: str) -> Tree:
    """A pod, not yet created, that this engine looks after."""
    if engine == "pods":
        return corner.pod("web")
    corner.group("web", 1)
    return corner.member("web", 0)


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    mine.add_nodes(2, labels={"example.com/rack": "r7", "example.com/block": "b2"})
    yield mine
    mine.close()


@on_both_engines
def test_each_pair_does_what_it_says(corner: BinderHarness, engine: str) -> None:
    with deciding(corner, engine), corner.binder(*FLAGS):
        (made,) = corner.api.create(one_for(corner, engine))
        name = made["metadata"]["name"]
        corner.wait_bound([name])
        request = corner.wait_for_end(name, "Succeeded")
    handed, pod = request["metadata"]["annotations"], corner.api.pod(name)
    node = corner.api.get("Node", node_name(pod))
    assert handed["nodestate.kai.scheduler/handler"] == "nodestate"
    assert int(handed["nodestate.kai.scheduler/resource-version"]) <= int(node["metadata"]["resourceVersion"])
    assert handed["nodestate.kai.scheduler/cordoned"] == "false"
    assert handed["topologyhint.kai.scheduler/rack"] == "r7"
    assert not any(key.startswith("gpuenv.") for key in handed)
    assert pod["metadata"]["annotations"]["example.com/rack"] == "r7"
    assert pod["metadata"]["annotations"]["example.com/block"] == "b2"
    assert "example.com/gpu-environment" not in pod["metadata"]["annotations"]


@on_both_engines
def test_device_parameters_come_with_the_pod(corner: BinderHarness, engine: str) -> None:
    for name in corner.nodes:
        amounts = {"nvidia.com/gpu": "8"}
        corner.api.patch("Node", name, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    asking = one_for(corner, engine)
    asking["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    with deciding(corner, engine), corner.binder(*FLAGS):
        (made,) = corner.api.create(asking)
        corner.wait_bound([made["metadata"]["name"]])
    pod = corner.api.pod(made["metadata"]["name"])
    assert pod["metadata"]["annotations"]["example.com/gpu-environment"] == f"GPU_COUNT=2,GPU_NODE={node_name(pod)}"


@on_both_engines
def test_a_node_cordoned_meanwhile_is_refused(corner: BinderHarness, engine: str) -> None:
    with deciding(corner, engine):
        (made,) = corner.api.create(one_for(corner, engine))
        name = made["metadata"]["name"]
        wait_until(lambda: bool(corner.find("BindRequest", name)), "there is a request, and no binder yet")
        chosen = corner.find("BindRequest", name)["spec"]["selectedNode"]
        corner.api.patch("Node", chosen, {"spec": {"unschedulable": True}})
        with corner.binder(*FLAGS):
            corner.wait_bound([name])
            request = corner.wait_for_end(name, "Succeeded")
    assert {chosen, request["spec"]["selectedNode"]} == set(corner.nodes)
    sentence = f"node {chosen} is cordoned by now, which the pod does not tolerate"
    assert any(sentence in note for note in corner.event_notes(name)), corner.event_notes(name)


def test_a_stale_node_is_refreshed_once_then_refused(corner: BinderHarness) -> None:
    node = corner.api.get("Node", corner.nodes[0])
    version = int(node["metadata"]["resourceVersion"])
    handler = {"nodestate.kai.scheduler/handler": "nodestate"}
    key = "nodestate.kai.scheduler/resource-version"
    corner.pod_with_request("fresh", corner.nodes[0], annotations={**handler, key: str(version)})
    corner.pod_with_request("future", corner.nodes[0], annotations={**handler, key: str(version + 10**9)})
    corner.pod_with_request("others", corner.nodes[0], annotations={"nodestate.kai.scheduler/handler": "somebody"})
    with corner.binder(*FLAGS):
        corner.wait_for_end("fresh", "Succeeded")
        corner.wait_for_end("others", "Succeeded")
        refused = corner.wait_for_end("future", "Failed")
    assert "is known in a version before" in refused["status"]["reason"]
    assert node_name(corner.api.pod("future")) == ""


@on_both_engines
def test_a_pod_that_tolerates_cordoned_nodes_is_bound_to_one(corner: BinderHarness, engine: str) -> None:
    for name in corner.nodes:
        corner.api.patch("Node", name, {"spec": {"unschedulable": True}})
    tolerant = one_for(corner, engine)
    tolerant["spec"]["tolerations"] = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    with deciding(corner, engine), corner.binder(*FLAGS):
        (made,) = corner.api.create(tolerant)
        name = made["metadata"]["name"]
        corner.wait_bound([name])
        request = corner.wait_for_end(name, "Succeeded")
    assert request["metadata"]["annotations"]["nodestate.kai.scheduler/cordoned"] == "true"


def test_other_versions_do_no_harm(corner: BinderHarness) -> None:
    """A scheduler with plugins that the binder lacks, and a binder with plugins that the scheduler lacks."""
    with corner.run_scheduler(*FLAGS, config=short_backoff_config(PROFILES)), corner.binder():
        corner.api.create(corner.pod("newer-scheduler"))
        unknown = corner.wait_for_end("newer-scheduler", "Succeeded")["metadata"]["annotations"]
    with corner.run_scheduler_with_requests(), corner.binder(*FLAGS):
        corner.api.create(corner.pod("newer-binder"))
        missing = corner.wait_for_end("newer-binder", "Succeeded")["metadata"].get("annotations", {})
    assert "nodestate.kai.scheduler/handler" in unknown
    assert "nodestate.kai.scheduler/handler" not in missing
    pods = corner.api.pods()
    assert all(node_name(pods[name]) in corner.nodes for name in ("newer-scheduler", "newer-binder"))
    assert not any("example.com/rack" in pod["metadata"].get("annotations", {}) for pod in pods.values())
