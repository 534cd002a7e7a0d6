from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.batch.devices.claimed_devices import DeviceClassAmount
from bayplan.batch.plugins.capacity.device_quotas import DeviceQuota
from bayplan.batch.plugins.capacity.plugin import CapacityPlugin
from bayplan.batch.session.simulation import Simulation
from bayplan.codec.quantity import Quantity
from bayplan.objects.core import Pod, PodResourceClaim, PodResourceClaimStatus
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.resource import (
    CapacityRequirements,
    DeviceClaim,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from bayplan.objects.volcano.types import QueueSpec
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue, open_session, pod_group_messages, tasks_of

NODE = make_node("n", allocatable={"cpu": "12", "memory": "12Gi", "pods": "100"})
CLASS = "gpu.example.com"


def claim(name: str, *requests: DeviceRequest) -> ResourceClaim:
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
    return ResourceClaim(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


def exactly(count: int = 1, device_class: str = CLASS, mode: str = "ExactCount", **capacity: str) -> DeviceRequest:
    wanted = CapacityRequirements(requests=dict(capacity)) if capacity else None
    exact = ExactDeviceRequest(device_class_name=device_class, allocation_mode=mode, count=count, capacity=wanted)
    return DeviceRequest(name="r", exactly=exact)


def with_claim(pod: Pod, *names: str, template: bool = False) -> Pod:
    references = [
        PodResourceClaim(name=f"c{n}", resource_claim_template_name="t")
        if template
        else PodResourceClaim(name=f"c{n}", resource_claim_name=name)
        for n, name in enumerate(names)
    ]
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=tuple(references)))
    if template:
        statuses = tuple(
            PodResourceClaimStatus(name=f"c{n}", resource_claim_name=name) for n, name in enumerate(names) if name
        )
        pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses))
    return pod


def test_a_queue_without_device_classes_has_no_quota() -> None:
    assert DeviceQuota.of(QueueSpec(capability={"cpu": "1", "deviceclass/": "1"})) is None


def test_decode_a_quota() -> None:
    quota = DeviceQuota.of(
        QueueSpec(capability={f"deviceclass/{CLASS}": "3", f"memory.deviceclass/{CLASS}": "8Gi", "cpu": "1"})
    )
    assert quota is not None
    assert quota.capability == {CLASS: DeviceClassAmount(3, {"memory": Quantity.parse("8Gi")})}


@pytest.mark.parametrize(
    ("requests", "arguments", "fits"),
    [
        pytest.param([exactly(1)], {}, True, id="just-enough"),
        pytest.param([exactly(2)], {}, False, id="one-too-many"),
        pytest.param([exactly(1), exactly(1)], {}, False, id="requests-add-up"),
        pytest.param([exactly(0)], {}, True, id="count-0-is-one"),
        pytest.param([exactly(9, "other.example.com")], {}, True, id="a-class-without-limit"),
        pytest.param([exactly(9, mode="All")], {}, True, id="all-devices-are-not-counted"),
        pytest.param(
            [DeviceRequest(name="r", first_available=(DeviceSubRequest(device_class_name=CLASS, count=9),))],
            {},
            True,
            id="alternatives-are-not-counted",
        ),
        pytest.param([exactly(2)], {"capacity.DynamicResourceAllocationEnable": False}, True, id="disabled"),
        pytest.param([exactly(1, memory="9Gi")], {}, True, id="capacity-is-ignored"),
        pytest.param(
            [exactly(1, memory="9Gi")], {"capacity.DRAConsumableCapacityEnable": True}, False, id="capacity-enabled"
        ),
        pytest.param(
            [exactly(1, memory="8Gi")], {"capacity.DRAConsumableCapacityEnable": True}, True, id="capacity-that-fits"
        ),
        pytest.param(
            [exactly(1, cores="1")], {"capacity.DRAConsumableCapacityEnable": True}, False, id="unknown-dimension"
        ),
    ],
)
def test_one_task(requests: list[DeviceRequest], arguments: dict[str, Any], fits: bool) -> None:
    queue = make_queue(capability={"cpu": "9", f"deviceclass/{CLASS}": "2", f"memory.deviceclass/{CLASS}": "8Gi"})
    pods = [with_claim(make_member("runs", node="n"), "held"), with_claim(make_member("waits"), "wanted")]
    objects = [queue, make_group(phase="Inqueue"), claim("held", exactly(1)), claim("wanted", *requests)]
    with open_session(CapacityPlugin, arguments=arguments, nodes=[NODE], pods=pods, objects=objects) as session:
        (task,) = tasks_of(session, "waits")
        assert session.allocatable(session.queues["q"], task) is fits


def _shared(limit: str) -> dict[str, Any]:
    queue = make_queue(capability={"cpu": "9", f"deviceclass/{CLASS}": limit})
    pods = [
        with_claim(make_member("runs", node="n"), "one"),
        with_claim(make_member("too"), "one"),
        with_claim(make_member("other"), "two", template=True),
    ]
    objects = [queue, make_group(phase="Inqueue"), claim("one", exactly(2)), claim("two", exactly(1))]
    return {"nodes": [NODE], "pods": pods, "objects": objects}


def test_a_shared_claim_counts_once() -> None:
    with open_session(CapacityPlugin, **_shared("2")) as session:
        queue, (too, other) = session.queues["q"], tasks_of(session, "too", "other")
        assert session.allocatable(queue, too)
        statement = session.statement()
        statement.allocate(too, "n")
        statement.evict(tasks_of(session, "runs")[0], "test")
        assert not session.allocatable(queue, other), "the claim is still in use"
        statement.unpipeline(too)
        assert session.allocatable(queue, other)


def test_simulation_without_a_victim() -> None:
    with open_session(CapacityPlugin, **_shared("2")) as session:
        (runs, other), node = tasks_of(session, "runs", "other"), session.node("n")
        assert node is not None
        simulation = Simulation(other, node)
        assert not session.simulate_allocatable(simulation, session.queues["q"])
        session.simulate_remove_task(simulation, runs)
        assert session.simulate_allocatable(simulation, session.queues["q"])
        session.simulate_add_task(simulation, runs)
        assert not session.simulate_allocatable(simulation, session.queues["q"])


@pytest.mark.parametrize(
    ("spec", "admitted"),
    [
        pytest.param({"min_member": 2}, True, id="two-tasks-of-one"),
        pytest.param({"min_member": 3}, False, id="three-tasks-of-one"),
        pytest.param({"min_member": 3, "min_task_member": {"": 2}}, True, id="by-role"),
        pytest.param({"min_member": 0}, True, id="no-minimum"),
    ],
)
@pytest.mark.parametrize("min_resources", [None, {"cpu": "1"}])
def test_job_enqueueable(spec: dict[str, Any], admitted: bool, min_resources: dict[str, str] | None) -> None:
    queue = make_queue(capability={"cpu": "9", f"deviceclass/{CLASS}": "2"})
    pods = [with_claim(make_member(f"p-{n}"), f"c{n}") for n in range(3)]
    claims = [claim(f"c{n}", exactly(1)) for n in range(3)]
    groups = [make_group(min_resources=min_resources, **spec), make_group("next", min_resources={"cpu": "1"})]
    with open_session(CapacityPlugin, nodes=[NODE], pods=pods, objects=[queue, *claims, *groups]) as session:
        assert session.job_enqueueable(session.jobs["default/job"]) is admitted
        message = "queue resource quota insufficient: insufficient dra-resource-exceeded"
        assert pod_group_messages(session) == ([] if admitted else [f"job: {message}"])
        assert session.job_enqueueable(session.jobs["default/next"]), "it requests no devices"


def test_a_missing_claim_requests_nothing() -> None:
    queue = make_queue(capability={"cpu": "9", f"deviceclass/{CLASS}": "1"})
    pods = [with_claim(make_member("p"), "", template=True), with_claim(make_member("p2"), "gone")]
    with open_session(CapacityPlugin, nodes=[NODE], pods=pods, objects=[queue, make_group(phase="Inqueue")]) as session:
        assert all(session.allocatable(session.queues["q"], task) for task in tasks_of(session, "p", "p2"))
