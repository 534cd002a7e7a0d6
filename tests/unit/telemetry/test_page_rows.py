"""Rows of the page for nodes, pods, pod groups and queues."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from bayplan.objects.core import Node, Pod, PodStatus
from bayplan.objects.meta import Condition, KubeObject, OwnerReference
from bayplan.telemetry.page_rows import FIELDS, GROUPS, NODES, PODS, QUEUES, row_of, table_of, unschedulable_message
from bayplan.testing import make_node, make_pod, make_pvc
from bayplan.testing.batch_builders import make_pod_group, make_queue

READY = Condition(type="Ready", status="True")


@pytest.mark.parametrize(
    ("item", "table"),
    [(make_node(), NODES), (make_pod(), PODS), (make_pod_group(), GROUPS), (make_queue(), QUEUES), (make_pvc("c"), "")],
    ids=["node", "pod", "group", "queue", "another kind"],
)
def test_a_row_has_the_columns_of_its_table(item: KubeObject, table: str) -> None:
    assert table_of(item) == table
    row = row_of(item)
    assert (row is None) == (not table)
    assert row is None or len(row) == len(FIELDS[table])


@pytest.mark.parametrize(
    ("node", "state"),
    [
        pytest.param(make_node(conditions=(READY,)), "ready", id="ready"),
        pytest.param(make_node(), "not ready", id="no condition"),
        pytest.param(make_node(conditions=(Condition(type="Ready", status="Unknown"),)), "not ready", id="unknown"),
        pytest.param(make_node(conditions=(Condition(type="Other", status="True"),)), "not ready", id="another"),
        pytest.param(make_node(conditions=(READY,), unschedulable=True), "cordoned", id="cordoned"),
    ],
)
def test_the_state_of_a_node(node: Node, state: str) -> None:
    row = row_of(node)
    assert row is not None
    assert row[2] == state


def test_the_row_of_a_node() -> None:
    row = row_of(make_node("a", zone="z1", allocatable={"cpu": "2"}))
    assert row == ("a", "z1", "not ready", {"cpu": 2000})


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        pytest.param(make_pod(), "waiting", id="waiting"),
        pytest.param(make_pod(gates=["g"]), "gated", id="gated"),
        pytest.param(make_pod(node="a"), "placed", id="placed"),
        pytest.param(make_pod(node="a", terminating=True), "leaving", id="leaving"),
    ],
)
def test_the_state_of_a_pod(pod: Pod, state: str) -> None:
    row = row_of(pod)
    assert row is not None
    assert row[5] == state
    assert len(row) == (8 if pod.spec.node_name else 11)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_has_no_row(phase: str) -> None:
    assert row_of(make_pod(status=PodStatus(phase=phase))) is None


def condition(reason: str, message: str, kind: str = "PodScheduled", status: str = "False") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        pytest.param((), ("", ""), id="none"),
        pytest.param((condition("Unschedulable", "full"),), ("Unschedulable", "full"), id="refused"),
        pytest.param((condition("Unschedulable", "full", status="True"),), ("", ""), id="scheduled"),
        pytest.param((condition("Other", "x", kind="Ready"),), ("", ""), id="another condition"),
        pytest.param((condition("O", "x", kind="Ready"), condition("U", "y")), ("U", "y"), id="behind another"),
    ],
)
def test_the_unschedulable_message_of_a_pod(conditions: tuple[Condition, ...], expected: tuple[str, str]) -> None:
    assert unschedulable_message(make_pod(status=PodStatus(conditions=conditions))) == expected


@pytest.mark.parametrize(("length", "shown"), [(600, 600), (601, 600)])
def test_a_long_message_is_cut(length: int, shown: int) -> None:
    status = PodStatus(conditions=(condition("Unschedulable", "x" * length),), nominated_node_name="n")
    row = row_of(make_pod(status=status))
    assert row is not None
    assert row[8:] == ("Unschedulable", "x" * shown, "n")


@pytest.mark.parametrize(
    ("kind", "name", "labels", "owner"),
    [
        pytest.param("ReplicaSet", "web-7f", {"pod-template-hash": "7f"}, "Deployment team/web", id="deployment"),
        pytest.param("ReplicaSet", "web-7f", {}, "ReplicaSet team/web-7f", id="no version"),
        pytest.param(
            "ReplicaSet", "web-7f", {"pod-template-hash": "8"}, "ReplicaSet team/web-7f", id="another version"
        ),
        pytest.param("Job", "web-7f", {"pod-template-hash": "7f"}, "Job team/web-7f", id="another kind"),
    ],
)
def test_the_owner_of_a_pod_is_the_deployment_and_not_its_replica_set(
    kind: str, name: str, labels: dict[str, str], owner: str
) -> None:
    reference = OwnerReference(kind=kind, name=name, uid="u", controller=True)
    row = row_of(make_pod(namespace="team", labels=labels, owner=reference))
    assert row is not None
    assert row[2] == owner


def test_the_row_of_a_pod_with_a_group_and_a_creation_time() -> None:
    pod = make_pod("p", cpu=1, annotations={"scheduling.k8s.io/group-name": "g"}, priority=7, node="a")
    created = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    pod = replace(pod, metadata=replace(pod.metadata, creation_timestamp=created))
    assert row_of(pod) == ("default/p", "a", "", 7, "default/g", "placed", {"cpu": 1000}, 60)
    undated = row_of(replace(pod, metadata=replace(pod.metadata, creation_timestamp=None, annotations={})))
    assert undated is not None
    assert (undated[4], undated[7]) == ("", 0)


def test_the_rows_of_groups_and_queues() -> None:
    assert row_of(make_pod_group("g", queue="q", min_member=3, phase="Inqueue")) == ("default/g", "q", 3, "Inqueue")
    queueless = make_pod_group("g", min_member=1)
    queueless = replace(queueless, spec=replace(queueless.spec, queue=""))
    assert row_of(queueless) == ("default/g", "default", 1, "Pending")
    queue = make_queue("q", parent="root", weight=2, capability={"cpu": "1"}, deserved={"memory": "1Ki"})
    assert row_of(queue) == ("q", "root", 2, "Open", {"cpu": 1000}, {"memory": 1024}, {})
