"""DaemonSets: a pod on every eligible node, on new nodes too, and updates within their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS, Tree, UntypedObject
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


def complete_on(count: int) -> Any:
    def is_complete(found: Tree) -> bool:
        keys = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
        counters = [found["status"].get(key, 0) for key in (*keys, "numberAvailable")]
        return counters == [count] * 5 and found["status"]["observedGeneration"] == found["metadata"]["generation"]

    return is_complete


@async_test
async def test_every_node_has_a_pod_and_a_new_one_gets_its_own(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=3, only=ONLY) as harness:
        await harness.make(DAEMON_SETS, daemon_set("agent"))
        await harness.when(DAEMON_SETS, "agent", complete_on(3))
        assert {each["spec"]["nodeName"] for each in await harness.pods()} == {"node-0", "node-1", "node-2"}
        await harness.make(NODES, NodeTemplate({"metadata": {"name": "late"}}).node(0))
        await harness.when(DAEMON_SETS, "agent", lambda it: it["status"]["currentNumberScheduled"] == 4)
        node_selector = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}
        await harness.patch(DAEMON_SETS, "agent", {"spec": {"template": {"spec": node_selector}}})
        await harness.when(DAEMON_SETS, "agent", complete_on(1))

        async def elsewhere() -> bool:
            running = [each["spec"].get("nodeName") for each in await harness.pods()]
            return sorted(name for name in running if name != "late-0") == ["node-2"]

        await harness.until(elsewhere)  # the new node has no kubelet, so its pod is not removed


@pytest.mark.parametrize("bounds", [{"maxUnavailable": 1}, {"maxSurge": 1, "maxUnavailable": 0}], ids=["less", "more"])
@async_test
async def test_an_update_respects_max_unavailable_and_max_surge(tmp_path: Path, bounds: Tree) -> None:
    async with run_controllers(tmp_path, nodes=3, only=ONLY) as harness:
        strategy = {"type": "RollingUpdate", "rollingUpdate": bounds}
        await harness.make(DAEMON_SETS, daemon_set("agent", updateStrategy=strategy))
        await harness.when(DAEMON_SETS, "agent", complete_on(3))
        old = {each["metadata"]["uid"] for each in await harness.pods()}
        await harness.patch(
            DAEMON_SETS, "agent", {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}}
        )
        await harness.when(DAEMON_SETS, "agent", complete_on(3))

        async def replaced() -> bool:
            pods = await harness.pods()
            return len(pods) == 3 and not old & {each["metadata"]["uid"] for each in pods}

        await harness.until(replaced)
        assert sorted(each["revision"] for each in await harness.list(CONTROLLER_REVISIONS)) == [1, 2]


@async_test
async def test_a_finished_pod_is_replaced(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=1, only=ONLY) as harness:
        await harness.make(DAEMON_SETS, daemon_set("agent"))
        await harness.when(DAEMON_SETS, "agent", complete_on(1))
        first = (await harness.pods())[0]["metadata"]["name"]
        await harness.patch(PODS, first, {"status": {"phase": "Failed"}}, sub="status")
        await harness.gone(PODS, first)
        (successor,) = await harness.until(harness.pods, "the replacement is created")
        assert successor["metadata"]["name"] != first
        await harness.when(DAEMON_SETS, "agent", complete_on(1))


# Node decisions.


def node(*taints: Taint, **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name="n", labels=labels), spec=NodeSpec(taints=taints))


def decisions(**spec: Any) -> NodeDecisions:
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
def test_decisions_for_nodes(spec: Tree, on: Node, expected: NodeDecision) -> None:
    node_decisions = decisions(**spec)
    assert node_decisions.decide(on) == expected
    assert node_decisions.decide(on) == expected


def test_a_daemon_pod_is_pinned_to_its_node() -> None:
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
