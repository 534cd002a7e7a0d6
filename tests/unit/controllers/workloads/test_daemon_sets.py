"""DaemonSets: a pod on every node that should have one, on new nodes too, and updates within their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import (
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    NODES,
    PODS,
    Tree,
    UntypedObject,
)
from bayplan.controllers.kubelet.node_template import NodeTemplate
from bayplan.controllers.workloads.daemon_pods import NodeDecision, NodeDecisions, daemon_pod
from bayplan.objects.core import Node, NodeSpec, Taint
from bayplan.objects.meta import ObjectMeta
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers

ONLY = ("daemonset-controller",)


def daemon_set(name: str, **spec: Any) -> Tree:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


def everywhere(count: int) -> Any:
    def so(found: Tree) -> bool:
        keys = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
        told = [found["status"].get(key, 0) for key in (*keys, "numberAvailable")]
        return told == [count] * 5 and found["status"]["observedGeneration"] == found["metadata"]["generation"]

    return so


@async_test
async def test_every_node_has_a_pod_and_a_new_one_gets_its_own(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=3, only=ONLY) as world:
        await world.make(DAEMON_SETS, daemon_set("agent"))
        await world.when(DAEMON_SETS, "agent", everywhere(3))
        assert {each["spec"]["nodeName"] for each in await world.pods()} == {"node-0", "node-1", "node-2"}
        await world.make(NODES, NodeTemplate({"metadata": {"name": "late"}}).node(0))
        await world.when(DAEMON_SETS, "agent", lambda it: it["status"]["currentNumberScheduled"] == 4)
        selects = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}
        await world.patch(DAEMON_SETS, "agent", {"spec": {"template": {"spec": selects}}})
        await world.when(DAEMON_SETS, "agent", everywhere(1))

        async def elsewhere() -> bool:
            running = [each["spec"].get("nodeName") for each in await world.pods()]
            return sorted(name for name in running if name != "late-0") == ["node-2"]

        await world.until(elsewhere)  # nobody stops pods on the node that came late: no kubelet is there


@pytest.mark.parametrize("bounds", [{"maxUnavailable": 1}, {"maxSurge": 1, "maxUnavailable": 0}], ids=["less", "more"])
@async_test
async def test_an_update_replaces_pods_within_its_bounds(tmp_path: Path, bounds: Tree) -> None:
    async with run_controllers(tmp_path, nodes=3, only=ONLY) as world:
        strategy = {"type": "RollingUpdate", "rollingUpdate": bounds}
        await world.make(DAEMON_SETS, daemon_set("agent", updateStrategy=strategy))
        await world.when(DAEMON_SETS, "agent", everywhere(3))
        old = {each["metadata"]["uid"] for each in await world.pods()}
        await world.patch(
            DAEMON_SETS, "agent", {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}}
        )
        await world.when(DAEMON_SETS, "agent", everywhere(3))

        async def replaced() -> bool:
            pods = await world.pods()
            return len(pods) == 3 and not old & {each["metadata"]["uid"] for each in pods}

        await world.until(replaced)
        assert sorted(each["revision"] for each in await world.list(CONTROLLER_REVISIONS)) == [1, 2]


@async_test
async def test_a_pod_that_has_ended_is_replaced(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=1, only=ONLY) as world:
        await world.make(DAEMON_SETS, daemon_set("agent"))
        await world.when(DAEMON_SETS, "agent", everywhere(1))
        first = (await world.pods())[0]["metadata"]["name"]
        await world.patch(PODS, first, {"status": {"phase": "Failed"}}, sub="status")
        await world.gone(PODS, first)
        (successor,) = await world.until(world.pods, "another one comes")
        assert successor["metadata"]["name"] != first
        await world.when(DAEMON_SETS, "agent", everywhere(1))


# Placing


def node(*taints: Taint, **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name="n", labels=labels), spec=NodeSpec(taints=taints))


def wishes(**spec: Any) -> NodeDecisions:
    return NodeDecisions(UntypedObject(metadata=ObjectMeta(name="d", uid="u"), spec={"template": {"spec": spec}}))


YES, NO, STAY = NodeDecision(True, True), NodeDecision(False, False), NodeDecision(False, True)


@pytest.mark.parametrize(
    ("spec", "on", "expected"),
    [
        pytest.param({}, node(), YES, id="any node"),
        pytest.param({}, node(Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")), YES, id="unreachable"),
        pytest.param({}, node(Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")), YES, id="cordoned"),
        pytest.param({}, node(Taint(key="dedicated", effect="NoSchedule")), STAY, id="tainted, may stay"),
        pytest.param({}, node(Taint(key="dedicated", effect="NoExecute")), NO, id="tainted, must go"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node(), NO, id="other labels"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node(disk="ssd"), YES, id="these labels"),
        pytest.param({"nodeName": "other"}, node(), NO, id="another node by name"),
    ],
)
def test_which_nodes_are_wanted(spec: Tree, on: Node, expected: NodeDecision) -> None:
    asked = wishes(**spec)
    assert asked.decide(on) == expected
    assert asked.decide(on) == expected


def test_the_pod_for_a_node_may_go_nowhere_else() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    found = UntypedObject(metadata=ObjectMeta(name="d", uid="u"), spec={"template": {"spec": {"affinity": affinity}}})
    pod = daemon_pod(found, "node-7", "hash")
    (pinned,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert pinned == {**term, "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]}
    assert len(pod["spec"]["tolerations"]) == 6
    assert pod["metadata"]["labels"]["controller-revision-hash"] == "hash"
