"""Objects from files as an API server would have stored them: the defaults of each kind."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.core import Namespace, Node, Pod
from bayplan.objects.defaults import with_all_defaults, with_defaults
from bayplan.objects.kinds import convert, kinds_by_name
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.storage import CsiDriver, PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.objects.workloads import PriorityClass

IS_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


def make(kind: str, *, meta: dict[str, Any] | None = None, **fields: Any) -> Any:
    return convert({"metadata": {"name": "x", **(meta or {})}, **fields}, kinds_by_name()[kind].struct)


def stored_pod(**spec: Any) -> Pod:
    (found,) = with_all_defaults([make("Pod", spec={"containers": [{"name": "main"}], **spec})])
    assert isinstance(found, Pod)
    return found


def with_resources(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "resources": resources}


# Container requests.


@pytest.mark.parametrize(
    ("resources", "requests"),
    [
        pytest.param({"limits": {"cpu": "2", "memory": "1Gi"}}, {"cpu": "2", "memory": "1Gi"}, id="limits-alone"),
        pytest.param(
            {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}},
            {"cpu": "1", "memory": "1Gi"},
            id="each-resource-for-itself",
        ),
        pytest.param({"limits": {"cpu": 2}, "requests": {"cpu": 0}}, {"cpu": 0}, id="zero-is-a-request"),
        pytest.param({"requests": {"cpu": "1"}}, {"cpu": "1"}, id="requests-alone"),
        pytest.param({}, {}, id="nothing"),
    ],
)
def test_limits_stand_in_for_requests(resources: dict[str, Any], requests: dict[str, Any]) -> None:
    pod = stored_pod(containers=[with_resources(**resources)], initContainers=[with_resources(**resources)])
    assert pod.spec.containers[0].resources.requests == requests
    assert pod.spec.init_containers[0].resources.requests == requests


@pytest.mark.parametrize(
    ("amount", "rounded"),
    [("100u", "1m"), ("0.0001", "1m"), ("1.0001", "1001m"), ("250m", "250m"), ("1.5Gi", "1.5Gi"), (2, 2)],
)
def test_amounts_are_rounded_up_to_thousandths(amount: Any, rounded: Any) -> None:
    pod = stored_pod(containers=[with_resources(requests={"cpu": amount})], overhead={"cpu": amount})
    assert pod.spec.containers[0].resources.requests["cpu"] == rounded
    assert pod.spec.overhead["cpu"] == rounded


@pytest.mark.parametrize(
    ("pod_level", "containers", "requests", "limits"),
    [
        pytest.param({"limits": {"cpu": "2"}}, [{}], {"cpu": "2"}, {"cpu": "2"}, id="limits-alone"),
        pytest.param(
            {"limits": {"cpu": "4"}},
            [{"requests": {"cpu": "500m"}}, {"requests": {"cpu": "1"}}],
            {"cpu": "1500m"},
            {"cpu": "4"},
            id="what-containers-ask-for",
        ),
        pytest.param(
            {"limits": {"cpu": "4"}},
            [{"limits": {"memory": "1Gi"}}],
            {"cpu": "4", "memory": "1Gi"},
            {"cpu": "4"},
            id="what-their-limits-ask-for",
        ),
        pytest.param(
            {"requests": {"cpu": "1"}}, [{"requests": {"memory": "1Gi"}}], {"cpu": "1"}, {}, id="without-limits-nothing"
        ),
        pytest.param(
            {"requests": {"cpu": "1"}},
            [{"limits": {"hugepages-2Mi": "4Mi"}}, {"limits": {"hugepages-2Mi": "2Mi"}}],
            {"cpu": "1", "hugepages-2Mi": "6Mi"},
            {"hugepages-2Mi": "6Mi"},
            id="huge-pages",
        ),
        pytest.param(
            {"limits": {"cpu": "4"}}, [{"requests": {"a/b": "1"}}], {"cpu": "4"}, {"cpu": "4"}, id="not-at-this-level"
        ),
        pytest.param({}, [{"requests": {"cpu": "1"}}], {}, {}, id="nothing"),
    ],
)
def test_pod_level_resources(
    pod_level: dict[str, Any], containers: list[dict[str, Any]], requests: dict[str, Any], limits: dict[str, Any]
) -> None:
    pod = stored_pod(resources=pod_level, containers=[with_resources(**each) for each in containers])
    assert pod.spec.resources is not None
    assert (pod.spec.resources.requests, pod.spec.resources.limits) == (requests, limits)


def test_a_pod_without_pod_level_requests_gets_none() -> None:
    assert stored_pod().spec.resources is None


# Other pod fields.


@pytest.mark.parametrize(
    ("host_network", "port", "host_port"),
    [
        pytest.param(True, {"containerPort": 80}, 80, id="host-network"),
        pytest.param(True, {"containerPort": 80, "hostPort": 81}, 81, id="given"),
        pytest.param(False, {"containerPort": 80}, 0, id="own-network"),
    ],
)
def test_ports_on_the_hosts_network(host_network: bool, port: dict[str, Any], host_port: int) -> None:
    containers = [{"name": "main", "ports": [port]}]
    spec = stored_pod(hostNetwork=host_network, containers=containers, initContainers=containers).spec
    found = [each.ports[0] for each in (*spec.containers, *spec.init_containers)]
    assert [(each.host_port, each.protocol) for each in found] == [(host_port, "TCP")] * 2


def test_a_given_protocol_stays() -> None:
    pod = stored_pod(containers=[{"name": "main", "ports": [{"containerPort": 53, "protocol": "UDP"}]}])
    assert pod.spec.containers[0].ports[0].protocol == "UDP"


def test_the_termination_grace_period() -> None:
    assert stored_pod().spec.termination_grace_period_seconds == 30
    assert stored_pod(terminationGracePeriodSeconds=0).spec.termination_grace_period_seconds == 0


def test_applying_defaults_twice_changes_nothing() -> None:
    once = stored_pod(
        hostNetwork=True,
        resources={"limits": {"cpu": "1"}},
        containers=[{"name": "main", "resources": {"limits": {"cpu": "100u"}}, "ports": [{"containerPort": 80}]}],
    )
    assert list(with_all_defaults([once])) == [once]


# Other kinds.


@pytest.mark.parametrize(
    ("status", "offered"),
    [
        pytest.param({"capacity": {"cpu": "4"}}, {"cpu": "4"}, id="capacity-alone"),
        pytest.param({"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}, {"cpu": "3"}, id="both"),
        pytest.param({}, {}, id="neither"),
    ],
)
def test_allocatable_defaults_to_capacity(status: dict[str, Any], offered: dict[str, Any]) -> None:
    node: Node = with_defaults(make("Node", status=status))
    assert node.status.allocatable == offered


def test_a_namespace_has_its_name_as_a_label() -> None:
    namespace: Namespace = with_defaults(make("Namespace", meta={"labels": {"a": "b"}}))
    assert namespace.metadata.labels == {"a": "b", "kubernetes.io/metadata.name": "x"}


@pytest.mark.parametrize(
    ("fields", "mode", "count"),
    [
        pytest.param({}, "ExactCount", 1, id="nothing"),
        pytest.param({"count": 3}, "ExactCount", 3, id="count"),
        pytest.param({"allocationMode": "ExactCount"}, "ExactCount", 1, id="mode"),
        pytest.param({"allocationMode": "All"}, "All", 0, id="all"),
    ],
)
def test_device_counts(fields: dict[str, Any], mode: str, count: int) -> None:
    requests = [{"name": "a", "exactly": fields}, {"name": "b", "firstAvailable": [{"name": "c", **fields}]}]
    claim: ResourceClaim = with_defaults(make("ResourceClaim", spec={"devices": {"requests": requests}}))
    exactly, either = claim.spec.devices.requests
    assert exactly.exactly is not None
    assert either.exactly is None
    for found in (exactly.exactly, either.first_available[0]):
        assert (found.allocation_mode, found.count) == (mode, count)


def test_volumes_and_their_classes() -> None:
    volume: PersistentVolume = with_defaults(make("PersistentVolume"))
    assert (volume.spec.volume_mode, volume.status.phase) == ("Filesystem", "Available")
    claimed: PersistentVolume = with_defaults(make("PersistentVolume", spec={"claimRef": {"name": "c"}}))
    assert claimed.status.phase == "Pending"
    block: PersistentVolume = with_defaults(
        make("PersistentVolume", spec={"volumeMode": "Block"}, status={"phase": "Bound"})
    )
    assert (block.spec.volume_mode, block.status.phase) == ("Block", "Bound")
    claim: PersistentVolumeClaim = with_defaults(make("PersistentVolumeClaim"))
    assert (claim.spec.volume_mode, claim.status.phase) == ("Filesystem", "Pending")
    storage: StorageClass = with_defaults(make("StorageClass"))
    assert storage.volume_binding_mode == "Immediate"
    late: StorageClass = with_defaults(make("StorageClass", volumeBindingMode="WaitForFirstConsumer"))
    assert late.volume_binding_mode == "WaitForFirstConsumer"
    driver: CsiDriver = with_defaults(make("CSIDriver"))
    assert (driver.spec.attach_required, driver.spec.storage_capacity) == (True, False)
    priority: PriorityClass = with_defaults(make("PriorityClass"))
    assert priority.preemption_policy == "PreemptLowerPriority"


def storage_class(name: str, *, default: bool = True, created: str | None = None) -> StorageClass:
    annotations = IS_DEFAULT if default else {}
    found: StorageClass = make(
        "StorageClass", meta={"name": name, "annotations": annotations, "creationTimestamp": created}
    )
    return found


@pytest.mark.parametrize(
    ("classes", "spec", "chosen"),
    [
        pytest.param([], {}, None, id="no-class"),
        pytest.param([storage_class("a", default=False)], {}, None, id="none-is-default"),
        pytest.param([storage_class("a")], {}, "a", id="default"),
        pytest.param([storage_class("a")], {"storageClassName": ""}, "", id="explicitly-none"),
        pytest.param([storage_class("a")], {"storageClassName": "b"}, "b", id="given"),
        pytest.param(
            [storage_class("a", created="2025-01-01T00:00:00Z"), storage_class("b", created="2026-01-01T00:00:00Z")],
            {},
            "b",
            id="the-youngest",
        ),
        pytest.param([storage_class("b"), storage_class("a")], {}, "a", id="then-by-name"),
    ],
)
def test_the_class_of_a_claim(classes: list[StorageClass], spec: dict[str, Any], chosen: str | None) -> None:
    stored = with_all_defaults([make("PersistentVolumeClaim", spec=spec), *classes])
    (claim,) = [item for item in stored if isinstance(item, PersistentVolumeClaim)]
    assert claim.spec.storage_class_name == chosen
