"""The examples of `examples/binder`, pairs of an engine plugin and a binder plugin, on both clusters."""

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


def deciding(harness: BinderHarness, engine: str) -> Any:
    """An engine with the plugins that write annotations for the binder."""
    if engine == "pods":
        return harness.run_scheduler(*FLAGS, config=short_backoff_config(PROFILES))
    return harness.run_batch_with_requests(*FLAGS, conf=TIERS)


def one_for(harness: BinderHarness, engine: str) -> Tree:
    """The manifest of a pod that this engine schedules."""
    if engine == "pods":
        return harness.pod("web")
    harness.group("web", 1)
    return harness.member("web", 0)


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    mine.add_nodes(2, labels={"example.com/rack": "r7", "example.com/block": "b2"})
    yield mine
    mine.close()


@on_both_engines
def test_each_pair_of_plugins_works(harness: BinderHarness, engine: str) -> None:
    with deciding(harness, engine), harness.binder(*FLAGS):
        (made,) = harness.api.create(one_for(harness, engine))
        name = made["metadata"]["name"]
        harness.wait_bound([name])
        request = harness.wait_for_end(name, "Succeeded")
    handed, pod = request["metadata"]["annotations"], harness.api.pod(name)
    node = harness.api.get("Node", node_name(pod))
    assert handed["nodestate.kai.scheduler/handler"] == "nodestate"
    assert int(handed["nodestate.kai.scheduler/resource-version"]) <= int(node["metadata"]["resourceVersion"])
    assert handed["nodestate.kai.scheduler/cordoned"] == "false"
    assert handed["topologyhint.kai.scheduler/rack"] == "r7"
    assert not any(key.startswith("gpuenv.") for key in handed)
    assert pod["metadata"]["annotations"]["example.com/rack"] == "r7"
    assert pod["metadata"]["annotations"]["example.com/block"] == "b2"
    assert "example.com/gpu-environment" not in pod["metadata"]["annotations"]


@on_both_engines
def test_device_parameters_come_with_the_pod(harness: BinderHarness, engine: str) -> None:
    for name in harness.nodes:
        amounts = {"nvidia.com/gpu": "8"}
        harness.api.patch("Node", name, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    asking = one_for(harness, engine)
    asking["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    with deciding(harness, engine), harness.binder(*FLAGS):
        (made,) = harness.api.create(asking)
        harness.wait_bound([made["metadata"]["name"]])
    pod = harness.api.pod(made["metadata"]["name"])
    assert pod["metadata"]["annotations"]["example.com/gpu-environment"] == f"GPU_COUNT=2,GPU_NODE={node_name(pod)}"


@on_both_engines
def test_a_node_cordoned_meanwhile_is_refused(harness: BinderHarness, engine: str) -> None:
    with deciding(harness, engine):
        (made,) = harness.api.create(one_for(harness, engine))
        name = made["metadata"]["name"]
        wait_until(lambda: bool(harness.find("BindRequest", name)), "there is a request, and no binder yet")
        chosen = harness.find("BindRequest", name)["spec"]["selectedNode"]
        harness.api.patch("Node", chosen, {"spec": {"unschedulable": True}})
        with harness.binder(*FLAGS):
            harness.wait_bound([name])
            request = harness.wait_for_end(name, "Succeeded")
    assert {chosen, request["spec"]["selectedNode"]} == set(harness.nodes)
    sentence = f"node {chosen} is cordoned by now, which the pod does not tolerate"
    assert any(sentence in note for note in harness.event_notes(name)), harness.event_notes(name)


def test_a_stale_node_is_refreshed_once_then_refused(harness: BinderHarness) -> None:
    node = harness.api.get("Node", harness.nodes[0])
    version = int(node["metadata"]["resourceVersion"])
    handler = {"nodestate.kai.scheduler/handler": "nodestate"}
    key = "nodestate.kai.scheduler/resource-version"
    harness.pod_with_request("fresh", harness.nodes[0], annotations={**handler, key: str(version)})
    harness.pod_with_request("future", harness.nodes[0], annotations={**handler, key: str(version + 10**9)})
    harness.pod_with_request("others", harness.nodes[0], annotations={"nodestate.kai.scheduler/handler": "other"})
    with harness.binder(*FLAGS):
        harness.wait_for_end("fresh", "Succeeded")
        harness.wait_for_end("others", "Succeeded")
        refused = harness.wait_for_end("future", "Failed")
    assert "is known in a version before" in refused["status"]["reason"]
    assert node_name(harness.api.pod("future")) == ""


@on_both_engines
def test_a_pod_that_tolerates_cordoned_nodes_is_bound_to_one(harness: BinderHarness, engine: str) -> None:
    for name in harness.nodes:
        harness.api.patch("Node", name, {"spec": {"unschedulable": True}})
    tolerant = one_for(harness, engine)
    tolerant["spec"]["tolerations"] = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    with deciding(harness, engine), harness.binder(*FLAGS):
        (made,) = harness.api.create(tolerant)
        name = made["metadata"]["name"]
        harness.wait_bound([name])
        request = harness.wait_for_end(name, "Succeeded")
    assert request["metadata"]["annotations"]["nodestate.kai.scheduler/cordoned"] == "true"


def test_unmatched_plugins_are_harmless(harness: BinderHarness) -> None:
    """A scheduler with plugins that the binder lacks, and a binder with plugins that the scheduler lacks."""
    with harness.run_scheduler(*FLAGS, config=short_backoff_config(PROFILES)), harness.binder():
        harness.api.create(harness.pod("newer-scheduler"))
        unknown = harness.wait_for_end("newer-scheduler", "Succeeded")["metadata"]["annotations"]
    with harness.run_scheduler_with_requests(), harness.binder(*FLAGS):
        harness.api.create(harness.pod("newer-binder"))
        missing = harness.wait_for_end("newer-binder", "Succeeded")["metadata"].get("annotations", {})
    assert "nodestate.kai.scheduler/handler" in unknown
    assert "nodestate.kai.scheduler/handler" not in missing
    pods = harness.api.pods()
    assert all(node_name(pods[name]) in harness.nodes for name in ("newer-scheduler", "newer-binder"))
    assert not any("example.com/rack" in pod["metadata"].get("annotations", {}) for pod in pods.values())
