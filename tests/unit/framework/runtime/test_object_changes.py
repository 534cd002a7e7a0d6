"""Cluster events of object changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.framework.api.events import ActionType, ClusterEvent, EventResource
from bayplan.framework.runtime.object_changes import cluster_events_of_change
from bayplan.objects.core import ContainerStatus, Node, Pod, PodExtendedResourceClaimStatus, ResourceRequirements, Taint
from bayplan.objects.core import PodResourceClaimStatus as ClaimStatus
from bayplan.objects.meta import Condition, KubeObject, ObjectMeta
from bayplan.objects.storage import CsiDriver, StorageClass
from bayplan.objects.workloads import PodDisruptionBudget
from support.builders.framework import make_container, make_node, make_pod, replace_fields, taint


def node_with(**fields: Any) -> Node:
    return make_node("n", **fields)


def ready(status: str, message: str = "") -> Node:
    return node_with(conditions=(Condition(type="Ready", status=status, message=message),))


def resizing(actual: str) -> Pod:
    status = ContainerStatus(name="c", resources=ResourceRequirements(requests={"cpu": actual}))
    pod = make_pod(node="n", containers=(make_container("c", cpu="1"),))
    return replace_fields(pod, status={"container_statuses": (status,)})


def tainted(when: datetime | None) -> Node:
    return replace_fields(make_node(), spec={"taints": (Taint("gpu", effect="NoSchedule", time_added=when),)})


NODES = [
    pytest.param(None, node_with(), ["Add"], id="came"),
    pytest.param(node_with(), None, ["Delete"], id="went"),
    pytest.param(node_with(), node_with(), [], id="nothing"),
    pytest.param(ready("True", "a"), ready("True", "b"), [], id="heartbeat"),
    pytest.param(ready("True"), ready("False"), ["UpdateNodeCondition"], id="condition"),
    pytest.param(node_with(unschedulable=True), node_with(), ["UpdateNodeTaint"], id="opened"),
    pytest.param(node_with(), node_with(unschedulable=True), [], id="cordoned"),
    pytest.param(node_with(), node_with(taints=[taint("t")]), ["UpdateNodeTaint"], id="taint"),
    pytest.param(
        node_with(unschedulable=True, taints=[taint("t")]),
        node_with(),
        ["UpdateNodeTaint", "UpdateNodeTaint"],
        id="opened-and-taint-gone",
    ),
    pytest.param(node_with(), node_with(labels={"a": "b"}), ["UpdateNodeLabel"], id="label"),
    pytest.param(node_with(cpu="1"), node_with(cpu="1000m"), [], id="same-amount-in-other-words"),
    pytest.param(node_with(cpu="1"), node_with(cpu="999m"), ["UpdateNodeAllocatable"], id="other-amount"),
    pytest.param(node_with(), node_with(capacity={"a.b/c": 1}), ["UpdateNodeAllocatable"], id="other-resource"),
    pytest.param(
        node_with(),
        replace_fields(node_with(), metadata={"annotations": {"a": "b"}}),
        ["UpdateNodeAnnotation"],
        id="note",
    ),
    pytest.param(node_with(), node_with(features=["F"]), ["UpdateNodeDeclaredFeature"], id="feature"),
    pytest.param(
        ready("True"),
        replace_fields(ready("False"), metadata={"labels": {"a": "b"}}, spec={"taints": (taint("t"),)}),
        ["UpdateNodeLabel", "UpdateNodeTaint", "UpdateNodeCondition"],
        id="several-in-order",
    ),
    pytest.param(tainted(None), tainted(datetime(2026, 1, 2, tzinfo=UTC)), ["UpdateNodeTaint"], id="taint-came-anew"),
]

PODS = [
    pytest.param(None, make_pod(), ["Add"], id="came"),
    pytest.param(make_pod(), make_pod(), ["Update"], id="nothing-of-interest-is-a-plain-update"),
    pytest.param(make_pod(cpu="2"), make_pod(cpu="1"), ["UpdatePodScaleDown"], id="asks-for-less"),
    pytest.param(make_pod(cpu="1"), make_pod(cpu="2"), ["Update"], id="asks-for-more"),
    pytest.param(make_pod(cpu="1"), make_pod(cpu="1000m"), ["Update"], id="the-same-in-other-words"),
    pytest.param(make_pod(cpu="1"), make_pod(), ["UpdatePodScaleDown"], id="request-gone"),
    pytest.param(resizing("3"), resizing("1"), ["UpdatePodScaleDown"], id="resize-done"),
    pytest.param(make_pod(gates=["g"]), make_pod(), ["UpdatePodSchedulingGatesEliminated"], id="last-gate-gone"),
    pytest.param(make_pod(gates=["g", "h"]), make_pod(gates=["g"]), ["Update"], id="one-gate-gone"),
    pytest.param(make_pod(tolerations=["t"]), make_pod(tolerations=["u"]), ["Update"], id="toleration-swapped"),
    pytest.param(
        make_pod(),
        replace_fields(make_pod(), status={"resource_claim_statuses": (ClaimStatus("c", "d"),)}),
        ["UpdatePodGeneratedResourceClaim"],
        id="claim-generated",
    ),
    pytest.param(
        make_pod(),
        replace_fields(make_pod(), status={"extended_resource_claim_status": PodExtendedResourceClaimStatus("c")}),
        ["UpdatePodGeneratedResourceClaim"],
        id="claim-for-extended-resources",
    ),
    pytest.param(
        make_pod(cpu="2", gates=["g"]),
        make_pod(labels={"a": "b"}, tolerations=["t"]),
        ["UpdatePodLabel", "UpdatePodScaleDown", "UpdatePodSchedulingGatesEliminated", "UpdatePodToleration"],
        id="several-in-order",
    ),
]


@pytest.mark.parametrize(("old", "new", "names"), NODES)
def test_changes_of_nodes(old: Node | None, new: Node | None, names: list[str]) -> None:
    assert [event.name for event in cluster_events_of_change(old, new)] == [f"Node{word}" for word in names]


@pytest.mark.parametrize(("old", "new", "names"), PODS)
def test_changes_of_pods(old: Pod | None, new: Pod, names: list[str]) -> None:
    assert [
        event.name.removeprefix("UnschedulablePod").removeprefix("AssignedPod")
        for event in cluster_events_of_change(old, new)
    ] == names


def test_pods_with_and_without_a_node_are_different_resources() -> None:
    ((placed,), (waiting,)) = (
        cluster_events_of_change(None, make_pod(node="n")),
        cluster_events_of_change(None, make_pod()),
    )
    assert (placed.name, waiting.name) == ("AssignedPodAdd", "UnschedulablePodAdd")
    (bound,) = cluster_events_of_change(make_pod(), make_pod(node="n"))
    assert bound.resource == EventResource.ASSIGNED_POD


DRIVER = CsiDriver(metadata=ObjectMeta(name="d"))


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        pytest.param(None, DRIVER, ["storage.k8s.io/CSIDriverAdd"], id="came"),
        pytest.param(DRIVER, DRIVER, ["storage.k8s.io/CSIDriverUpdate"], id="told-again"),
        pytest.param(StorageClass(), None, ["storage.k8s.io/StorageClassDelete"], id="went"),
        pytest.param(None, PodDisruptionBudget(), [], id="a-kind-that-makes-no-events"),
        pytest.param(None, None, [], id="nothing"),
    ],
)
def test_changes_of_other_objects(old: KubeObject | None, new: KubeObject | None, names: list[str]) -> None:
    assert [event.name for event in cluster_events_of_change(old, new)] == names


def test_an_event_may_have_a_name_of_its_own() -> None:
    assert ClusterEvent(EventResource.ANY, ActionType.ALL, "ForceActivate").name == "ForceActivate"
    assert ClusterEvent("foos.v1.example.com", ActionType.UPDATE).name == "foos.v1.example.comUpdate"
