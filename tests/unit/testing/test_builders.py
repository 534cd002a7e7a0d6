"""Builders set the fields of their keywords and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.errors import UsageError
from bayplan.objects.core import (
    ContainerPort,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSchedulingGate,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from bayplan.objects.meta import LabelSelector
from bayplan.testing import (
    make_affinity,
    make_container,
    make_node,
    make_pod,
    make_pv,
    make_pvc,
    make_spread,
    make_storage_class,
    make_taint,
    make_toleration,
)


def test_a_pod_is_pending_until_it_has_a_node() -> None:
    assert (make_pod().status.phase, make_pod(node="a").status.phase) == ("Pending", "Running")
    assert make_pod(node="a").spec.node_name == "a"


def test_all_kinds_of_requests_are_merged() -> None:
    (container,) = make_pod(cpu="500m", memory="1Gi", requests={"example.com/gpu": 2}).spec.containers
    assert container.resources.requests == {"cpu": "500m", "memory": "1Gi", "example.com/gpu": 2}


def test_pods_of_different_names_or_namespaces_have_different_uids() -> None:
    built = [make_pod("a"), make_pod("b"), make_pod("a", namespace="other")]
    assert len({pod.uid for pod in built}) == 3


def test_other_keywords_are_fields_of_the_spec() -> None:
    spec = make_pod(host_network=True, priority=7, node_selector={"disk": "ssd"}).spec
    assert (spec.host_network, spec.priority, spec.node_selector) == (True, 7, {"disk": "ssd"})


def test_an_unknown_keyword_is_rejected() -> None:
    with pytest.raises(TypeError, match="colour"):
        make_pod(colour="blue")


def test_short_forms_of_a_pod() -> None:
    pod = make_pod(host_ports=[80], claims=["data"], gates=["later"], tolerations=["gpu"], spread=[make_spread("rack")])
    assert pod.spec.containers[0].ports == (ContainerPort(container_port=80, host_port=80),)
    assert pod.spec.volumes[0].persistent_volume_claim is not None
    assert pod.spec.volumes[0].persistent_volume_claim.claim_name == "data"
    assert pod.spec.scheduling_gates == (PodSchedulingGate("later"),)
    assert pod.spec.tolerations == (Toleration(key="gpu", operator="Exists"),)
    assert pod.spec.topology_spread_constraints[0].topology_key == "rack"


def test_containers_can_be_given() -> None:
    pod = make_pod(containers=(make_container("a", cpu=1), make_container("b", memory="1Gi", image="x")))
    assert [(each.name, each.image, each.resources.requests) for each in pod.spec.containers] == [
        ("a", "", {"cpu": 1}),
        ("b", "x", {"memory": "1Gi"}),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", Taint("gpu", "", "NoSchedule")),
        ("gpu:NoExecute", Taint("gpu", "", "NoExecute")),
        ("gpu=a100:PreferNoSchedule", Taint("gpu", "a100", "PreferNoSchedule")),
        ("gpu=a100", Taint("gpu", "a100", "NoSchedule")),
    ],
)
def test_a_taint_in_the_form_of_kubectl(text: str, expected: Taint) -> None:
    assert make_taint(text) == expected
    assert make_node(taints=[text]).spec.taints == (expected,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Toleration(operator="Exists")),
        ("gpu", Toleration(key="gpu", operator="Exists")),
        ("gpu:NoExecute", Toleration(key="gpu", operator="Exists", effect="NoExecute")),
        ("gpu=a100:NoSchedule", Toleration(key="gpu", operator="Equal", value="a100", effect="NoSchedule")),
    ],
)
def test_a_toleration_in_the_form_of_a_taint(text: str, expected: Toleration) -> None:
    assert make_toleration(text) == expected


def test_a_toleration_takes_fields() -> None:
    assert make_toleration("old", toleration_seconds=5).toleration_seconds == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"}, id="roomy"),
        pytest.param(
            {"cpu": 2, "capacity": {"example.com/gpu": 4, "pods": "3"}},
            {"cpu": 2, "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "3", "example.com/gpu": 4},
            id="changed",
        ),
        pytest.param({"allocatable": {"cpu": "1"}, "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, id="replaced"),
    ],
)
def test_amounts_of_a_node(options: dict[str, Any], expected: dict[str, Any]) -> None:
    node = make_node(**options)
    assert node.status.allocatable == expected
    assert node.status.capacity == expected


def test_a_node_has_host_and_zone_labels() -> None:
    assert make_node("a", zone="z", labels={"disk": "ssd"}).labels == {
        "kubernetes.io/hostname": "a",
        "topology.kubernetes.io/zone": "z",
        "disk": "ssd",
    }
    assert make_node("a", labels={"kubernetes.io/hostname": "other"}).labels == {"kubernetes.io/hostname": "other"}


def test_images_are_names_with_sizes() -> None:
    assert [(image.names, image.size_bytes) for image in make_node(images={"app:v1": 5}).status.images] == [
        (("app:v1",), 5)
    ]


def test_spread_is_required_by_default() -> None:
    selector = LabelSelector(match_labels={"app": "web"})
    assert make_spread(labels={"app": "web"}) == TopologySpreadConstraint(
        max_skew=1,
        topology_key="topology.kubernetes.io/zone",
        when_unsatisfiable="DoNotSchedule",
        label_selector=selector,
    )
    assert make_spread(required=False).when_unsatisfiable == "ScheduleAnyway"


def test_affinity_to_nodes() -> None:
    term = NodeSelectorTerm(
        (NodeSelectorRequirement("disk", "In", ("ssd",)), NodeSelectorRequirement("zone", "In", ("a", "b")))
    )
    choices: dict[str, Any] = {"disk": "ssd", "zone": ["a", "b"]}
    required, preferred = make_affinity(nodes=choices), make_affinity(nodes=choices, weight=5)
    assert required.node_affinity is not None
    assert required.node_affinity.required is not None
    assert required.node_affinity.required.node_selector_terms == (term,)
    assert preferred.node_affinity is not None
    assert [(each.weight, each.preference) for each in preferred.node_affinity.preferred] == [(5, term)]


def test_affinity_to_pods() -> None:
    found = make_affinity(near={"app": "web"}, apart={"app": "db"}, topology_key="rack")
    assert found.node_affinity is None
    assert found.pod_affinity is not None
    assert found.pod_anti_affinity is not None
    (near,), (apart,) = found.pod_affinity.required, found.pod_anti_affinity.required
    assert (near.topology_key, near.label_selector) == ("rack", LabelSelector(match_labels={"app": "web"}))
    assert apart.label_selector == LabelSelector(match_labels={"app": "db"})
    preferred = make_affinity(near={"app": "web"}, weight=3).pod_affinity
    assert preferred is not None
    assert [term.weight for term in preferred.preferred] == [3]


def test_a_claim_that_names_a_volume_is_bound() -> None:
    loose, bound = make_pvc(), make_pvc(volume="v")
    assert "pv.kubernetes.io/bind-completed" not in loose.metadata.annotations
    assert bound.metadata.annotations["pv.kubernetes.io/bind-completed"] == "yes"
    assert make_pvc(volume="v", bound=False).metadata.annotations == {}


def test_near_sets_the_node_affinity_of_a_volume() -> None:
    affinity = make_pv(near={"rack": "1"}).spec.node_affinity
    assert affinity is not None
    assert affinity.required is not None
    assert affinity.required.node_selector_terms[0].match_expressions[0].values == ("1",)
    csi = make_pv(handle="h").spec.csi
    assert csi is not None
    assert (csi.driver, csi.volume_handle) == ("csi.example.com", "h")


def test_a_storage_class_waits_for_a_pod() -> None:
    built = make_storage_class(topologies=[{"zone": ["a", "b"]}])
    assert built.volume_binding_mode == "WaitForFirstConsumer"
    assert built.allowed_topologies[0].match_label_expressions[0].values == ("a", "b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: make_pod(labels={"a": 1}), "labels and annotations are texts; got 'a': 1", id="label"),
        pytest.param(lambda: make_node(labels={1: "a"}), "labels and annotations are texts", id="label-of-a-node"),
        pytest.param(lambda: make_pod(cpu="abc"), "cpu is 'abc', which is not a quantity", id="quantity"),
        pytest.param(lambda: make_node(capacity={"x": "1Qi"}), "x is '1Qi', which is not a quantity", id="capacity"),
        pytest.param(lambda: make_pod(priority="hi"), r"this is not a valid Pod: .*`\$.spec.priority`", id="priority"),
        pytest.param(lambda: make_pod(node_selector={"a": 1}), "this is not a valid Pod: ", id="selector"),
        pytest.param(
            lambda: make_pod(spread=["zone"]), "spread takes .*, as make_spread makes them; got 'zone'", id="spread"
        ),
        pytest.param(lambda: make_pod(tolerations="gpu"), "tolerations takes a list; got 'gpu'", id="not-a-list"),
        pytest.param(lambda: make_pod(tolerations=[7]), "as make_toleration makes them; got 7", id="toleration"),
        pytest.param(lambda: make_pod(claims="data"), "claims takes a list of names .*; got 'data'", id="claims"),
        pytest.param(lambda: make_pod(gates="wait"), "gates takes a list of names of gates; got 'wait'", id="gates"),
        pytest.param(lambda: make_pod(host_ports=80), "host_ports takes a list of ports, .* got 80", id="ports"),
        pytest.param(lambda: make_pod(5), r"this is not a valid Pod: .*`\$.metadata.name`", id="name"),
        pytest.param(lambda: make_pod(owner="web"), "this is not a valid Pod: .*ownerReferences", id="owner"),
        pytest.param(lambda: make_pod(status="Running"), r"this is not a valid Pod: .*`\$.status`", id="status"),
        pytest.param(lambda: make_pod(labels="app=web"), 'written as in {"app": "web"}; got', id="labels"),
        pytest.param(lambda: make_pod(requests=["cpu"]), "amounts are by resource, .* got", id="requests"),
        pytest.param(lambda: make_node(images={"a": "big"}), "this is not a valid Node: .*sizeBytes", id="images"),
        pytest.param(lambda: make_node(features="Cold"), "features takes a list", id="features"),
        pytest.param(lambda: make_spread(5), "this is not a valid TopologySpreadConstraint", id="topology"),
        pytest.param(lambda: make_affinity(near={"a": 5}), "labels and annotations are texts", id="affinity"),
        pytest.param(
            lambda: make_taint("gpu=a:Foo"), "'gpu=a:Foo' is not a taint: the effect is one of No", id="taint"
        ),
        pytest.param(
            lambda: make_toleration("gpu:Bar"), "'gpu:Bar' is not a toleration: the effect is one", id="effect"
        ),
    ],
)
def test_invalid_arguments_are_rejected_by_the_builder(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
