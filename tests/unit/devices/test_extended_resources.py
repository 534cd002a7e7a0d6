"""Requests of the special claim of pods with extended resources."""

from __future__ import annotations

import pytest

from bayplan.devices import extended_resources
from bayplan.devices.classes import classes_by_resource
from bayplan.objects.core import Container, Pod
from bayplan.objects.meta import OwnerReference
from support.builders.devices import make_claim, make_class
from support.builders.framework import make_container, make_pod, replace_fields

GPU, NIC = "example.com/gpu", "example.com/nic"
CLASSES = classes_by_resource(
    [make_class("gpu", extended_resource_name=GPU), make_class("nic", extended_resource_name=NIC)]
)


def container(name: str, sidecar: bool = False, **requests: str) -> Container:
    known = {"gpu": GPU, "nic": NIC}
    named = {known.get(key, key): value for key, value in requests.items()}
    return make_container(name, requests=named, restart_policy="Always" if sidecar else None)


def needed(pod: Pod, *resources: str) -> list[tuple[str, str, int]]:
    found = extended_resources.special_claim_requests(pod, resources or (GPU,), CLASSES).requests
    return [(item.name, item.exactly.device_class_name, item.exactly.count) for item in found if item.exactly]


def uses(pod: Pod, *resources: str) -> list[tuple[str, str]]:
    found = extended_resources.special_claim_requests(pod, resources or (GPU,), CLASSES).mappings
    return [(item.container_name, item.request_name) for item in found]


def test_each_container_has_its_own_request() -> None:
    pod = make_pod(containers=(container("a", cpu="1", gpu="2"), container("b"), container("c", gpu="1")))
    assert needed(pod) == [("container-0-request-1", "gpu", 2), ("container-2-request-0", "gpu", 1)]
    assert uses(pod) == [("a", "container-0-request-1"), ("c", "container-2-request-0")]


def test_resources_are_numbered_in_order_of_their_names() -> None:
    pod = make_pod(containers=(container("a", nic="1", cpu="1", gpu="2"),))
    assert needed(pod, NIC, GPU) == [("container-0-request-1", "gpu", 2), ("container-0-request-2", "nic", 1)]


def test_resources_without_a_class_have_no_request() -> None:
    assert needed(make_pod(containers=(container("a", gpu="2"),)), "example.com/other") == []


@pytest.mark.parametrize("quantity", ["0", "500m", "1.5"])
def test_a_fraction_has_no_request(quantity: str) -> None:
    assert needed(make_pod(containers=(container("a", gpu=quantity),))) == []


def test_init_containers_share_devices_of_later_containers() -> None:
    pod = make_pod(containers=(container("main", gpu="2"),), init_containers=(container("init", gpu="2"),))
    assert needed(pod) == [("container-1-request-0", "gpu", 2)]
    assert uses(pod) == [("main", "container-1-request-0"), ("init", "container-1-request-0")]


def test_one_request_covers_the_largest_shortfall_of_init_containers() -> None:
    init = (container("i0", gpu="3"), container("i1", gpu="5"), container("i2", gpu="5"))
    pod = make_pod(containers=(container("main", gpu="2"),), init_containers=init)
    assert needed(pod) == [("container-1-request-0", "gpu", 3), ("container-3-request-0", "gpu", 2)]
    assert uses(pod) == [
        ("main", "container-3-request-0"),
        *(
            (name, request)
            for name in ("i0", "i1", "i2")
            for request in ("container-3-request-0", "container-1-request-0")
        ),
    ]


def test_a_sidecar_shares_its_devices_only_with_earlier_init_containers() -> None:
    init = (container("early", gpu="1"), container("side", sidecar=True, gpu="1"), container("late", gpu="1"))
    pod = make_pod(containers=(container("main"),), init_containers=init)
    assert needed(pod) == [("container-1-request-0", "gpu", 1), ("container-2-request-0", "gpu", 1)]


def test_requests_of_the_pod() -> None:
    pod = make_pod(containers=(container("a", gpu="2", cpu="1", nic="0"),))
    assert extended_resources.extended_requests(pod) == {GPU: 2}
    assert extended_resources.uses_classes([GPU], CLASSES)
    assert not extended_resources.uses_classes(["example.com/other"], CLASSES)


POD = make_pod("p")


@pytest.mark.parametrize(
    ("annotations", "owner", "found"),
    [
        pytest.param({extended_resources.ANNOTATION: "true"}, {}, True, id="ours"),
        pytest.param({}, {}, False, id="not-marked"),
        pytest.param({extended_resources.ANNOTATION: "true"}, {"uid": "other"}, False, id="of-a-namesake"),
        pytest.param({extended_resources.ANNOTATION: "true"}, {"controller": None}, False, id="not-controlled"),
    ],
)
def test_the_claim_of_an_earlier_attempt_is_found(
    annotations: dict[str, str], owner: dict[str, object], found: bool
) -> None:
    reference = OwnerReference(**{"name": "p", "uid": POD.uid, "controller": True, **owner})  # type: ignore[arg-type]
    claim = replace_fields(make_claim(), metadata={"annotations": annotations, "owner_references": (reference,)})
    assert extended_resources.find_special_claim(POD, [make_claim(name="x"), claim]) is (claim if found else None)


def test_a_new_special_claim_is_only_in_memory() -> None:
    claim = extended_resources.new_special_claim(POD)
    assert extended_resources.is_in_memory(claim)
    assert not extended_resources.is_in_memory(make_claim())
    assert extended_resources.find_special_claim(POD, [claim]) is claim
    assert claim.spec.devices.requests == ()
    assert extended_resources.new_special_claim(make_pod("q")).metadata.uid != claim.metadata.uid
