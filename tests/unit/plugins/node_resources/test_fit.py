"""NodeResourcesFit: filter, hints and arguments."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.errors import ConfigError
from bayplan.framework.api.plugin import Placement
from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.objects.core import Node, Pod, PodSchedulingGroup, ResourceRequirements
from bayplan.objects.meta import KubeObject, ObjectMeta, ResourceList
from bayplan.objects.resource import DeviceClass, DeviceClassSpec
from bayplan.objects.workloads import PodGroup
from bayplan.plugins.node_resources.fit import TOO_MANY_PODS, NodeResourcesFit
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs, RequestedToCapacityRatioParam, ScoringStrategy
from bayplan.plugins.node_resources.resource_specs import ResourceSpec
from bayplan.snapshot import Catalog
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    FilterResult,
    errored,
    evaluate_hints,
    filter_result,
    from_api,
    make_container,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    rejected,
    replace_fields,
    run_filter,
    unresolvable,
)

GPU = "example.com/gpu"
NODE: ResourceList = {
    "cpu": "2",
    "memory": "4Gi",
    "ephemeral-storage": "10Gi",
    "pods": "3",
    GPU: "2",
    "hugepages-2Mi": "4Mi",
}


def device_class(name: str = "gpus", resource: str | None = GPU) -> DeviceClass:
    return DeviceClass(metadata=ObjectMeta(name=name), spec=DeviceClassSpec(extended_resource_name=resource))


def fit_args(**fields: Any) -> NodeResourcesFitArgs:
    args: NodeResourcesFitArgs = NodeResourcesFit.ARGS.apply_defaults(NodeResourcesFitArgs(**fields))
    return args


@pytest.mark.parametrize(
    ("requests", "used", "expected"),
    [
        pytest.param({}, {"cpu": "2"}, FEASIBLE, id="asks for nothing"),
        pytest.param({"cpu": "1"}, {"cpu": "1"}, FEASIBLE, id="just fits"),
        pytest.param({"cpu": "1001m"}, {"cpu": "1"}, rejected("Insufficient cpu"), id="cpu short"),
        pytest.param({"cpu": "2"}, {"cpu": "1m"}, rejected("Insufficient cpu"), id="as large as the node"),
        pytest.param({"cpu": "2001m"}, {}, unresolvable("Insufficient cpu"), id="larger than the node"),
        pytest.param({"memory": "3Gi"}, {"memory": "2Gi"}, rejected("Insufficient memory"), id="memory short"),
        pytest.param(
            {"ephemeral-storage": "8Gi"},
            {"ephemeral-storage": "3Gi"},
            rejected("Insufficient ephemeral-storage"),
            id="disk short",
        ),
        pytest.param({GPU: "1"}, {GPU: "2"}, rejected(f"Insufficient {GPU}"), id="extended resource short"),
        pytest.param({GPU: "3"}, {}, unresolvable(f"Insufficient {GPU}"), id="more than there are"),
        pytest.param({"hugepages-2Mi": "6Mi"}, {}, unresolvable("Insufficient hugepages-2Mi"), id="huge pages"),
        pytest.param(
            {"other.com/x": "1"}, {}, unresolvable("Insufficient other.com/x"), id="a resource that the node lacks"
        ),
        pytest.param({"other.com/x": "0"}, {}, FEASIBLE, id="nothing of a resource that the node lacks"),
        pytest.param({"whatever": "1"}, {}, FEASIBLE, id="a name that is no resource"),
        pytest.param(
            {"cpu": "1500m", "memory": "3Gi"},
            {"cpu": "1", "memory": "2Gi"},
            rejected("Insufficient cpu", "Insufficient memory"),
            id="all reasons",
        ),
        pytest.param(
            {"cpu": "1500m", "memory": "5Gi"},
            {"cpu": "1"},
            unresolvable("Insufficient cpu", "Insufficient memory"),
            id="one too large makes it hopeless",
        ),
        pytest.param({"cpu": "100u"}, {"cpu": "2"}, rejected("Insufficient cpu"), id="fractions are rounded up"),
    ],
)
def test_filter(requests: ResourceList, used: ResourceList, expected: FilterResult) -> None:
    pods = [make_pod("there", node="a", requests=used)]
    assert run_filter(NodeResourcesFit, make_pod(requests=requests), make_node("a", allocatable=NODE), pods=pods) == {
        "a": expected
    }


def test_an_overfull_node_still_takes_pods_that_ask_for_nothing() -> None:
    pods = [make_pod("there", node="a", requests={"cpu": "5"})]
    node = make_node("a", allocatable=NODE)
    assert run_filter(NodeResourcesFit, make_pod(), node, pods=pods) == {"a": FEASIBLE}
    assert run_filter(NodeResourcesFit, make_pod(requests={"cpu": "1m"}), node, pods=pods) == {
        "a": rejected("Insufficient cpu")
    }


def test_all_pods_are_counted() -> None:
    pods = [make_pod(f"p{number}", node="a", terminating=True, scheduler_name="other") for number in range(3)]
    pod = make_pod(requests={"cpu": "3"})
    found = run_filter(NodeResourcesFit, pod, make_node("a", allocatable=NODE), pods=pods)
    assert found == {"a": unresolvable(TOO_MANY_PODS, "Insufficient cpu")}
    assert run_filter(NodeResourcesFit, make_pod(), make_node("a", allocatable=NODE), pods=pods) == {
        "a": rejected(TOO_MANY_PODS)
    }


def test_a_node_without_a_pod_limit_accepts_no_pod() -> None:
    assert run_filter(NodeResourcesFit, make_pod(), make_node("a", allocatable={"cpu": "1"})) == {
        "a": rejected(TOO_MANY_PODS)
    }


def test_the_filter_goes_by_the_pod_level_and_adds_overhead() -> None:
    pod = make_pod(
        requests={"cpu": "100m"}, resources=ResourceRequirements(requests={"cpu": "1900m"}), overhead={"cpu": "101m"}
    )
    assert run_filter(NodeResourcesFit, pod, make_node("a", allocatable=NODE)) == {
        "a": unresolvable("Insufficient cpu")
    }


@pytest.mark.parametrize(
    ("args", "requests", "expected"),
    [
        pytest.param({"ignored_resources": (GPU,)}, {GPU: "9"}, FEASIBLE, id="by name"),
        pytest.param({"ignored_resource_groups": ("example.com",)}, {GPU: "9"}, FEASIBLE, id="by group"),
        pytest.param(
            {"ignored_resource_groups": ("other.com",)},
            {GPU: "9"},
            unresolvable(f"Insufficient {GPU}"),
            id="another group",
        ),
        pytest.param(
            {"ignored_resources": ("cpu",)}, {"cpu": "9"}, unresolvable("Insufficient cpu"), id="cpu cannot be"
        ),
        pytest.param(
            {"ignored_resources": ("hugepages-2Mi",)},
            {"hugepages-2Mi": "1Gi"},
            unresolvable("Insufficient hugepages-2Mi"),
            id="neither can huge pages",
        ),
    ],
)
def test_ignored_resources(args: dict[str, Any], requests: ResourceList, expected: FilterResult) -> None:
    pod, node = make_pod(requests=requests), make_node("a", allocatable=NODE)
    assert run_filter(NodeResourcesFit, pod, node, args=fit_args(**args)) == {"a": expected}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(
            [], {"a": unresolvable(f"Insufficient {GPU}"), "b": unresolvable(f"Insufficient {GPU}")}, id="no class"
        ),
        pytest.param(
            [device_class()],
            {"a": unresolvable(f"Insufficient {GPU}"), "b": FEASIBLE},
            id="devices serve it where the node does not",
        ),
        pytest.param(
            [device_class(resource=None)],
            {"a": unresolvable(f"Insufficient {GPU}"), "b": unresolvable(f"Insufficient {GPU}")},
            id="a class without the name",
        ),
    ],
)
def test_devices_may_provide_a_resource(objects: list[KubeObject], expected: dict[str, FilterResult]) -> None:
    nodes = [make_node("a", allocatable=NODE), make_node("b", allocatable={**NODE, GPU: "0"})]
    assert run_filter(NodeResourcesFit, make_pod(requests={GPU: "3"}), *nodes, objects=objects) == expected


def test_the_implicit_name_of_a_class_is_left_to_devices() -> None:
    pod = make_pod(requests={"deviceclass.resource.kubernetes.io/gpus": "1"})
    found = run_filter(NodeResourcesFit, pod, make_node("a"), objects=[device_class(resource=None)])
    assert found == {"a": FEASIBLE}


def test_filter_without_pre_filter_is_an_error() -> None:
    filtering = make_filtering(make_plugin(NodeResourcesFit))
    diagnosis = filtering.run_filters(make_cycle(make_pod(), make_snapshot([make_node("a")])), PreFilterSummary())
    text = 'error reading "PreFilterNodeResourcesFit" from cycleState: not found'
    assert filter_result(diagnosis.status(0)) == errored(f'running "NodeResourcesFit" filter plugin: {text}')


# hints

PLACED = make_pod("other", node="a", requests={"cpu": "1", "memory": "1Gi"})


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(PLACED, None, "Queue", id="a placed pod went"),
        pytest.param(make_pod("other", nominated="a"), None, "Queue", id="a nominated pod went"),
        pytest.param(make_pod("other"), None, "Skip", id="a pod without a place went"),
        pytest.param(make_pod(requests={"cpu": "2"}), make_pod(requests={"cpu": "1"}), "Queue", id="its own update"),
        pytest.param(
            PLACED,
            make_pod("other", node="a", requests={"cpu": "500m", "memory": "1Gi"}),
            "Queue",
            id="asks for less cpu",
        ),
        pytest.param(
            PLACED,
            make_pod("other", node="a", requests={"cpu": "1", "memory": "1Mi"}),
            "Skip",
            id="asks for less of something else",
        ),
        pytest.param(
            make_pod("other", requests={"cpu": "1"}), make_pod("other"), "Skip", id="asks for less, but has no place"
        ),
    ],
)
def test_pod_hints(old: Pod, new: Pod | None, hint: str) -> None:
    assert evaluate_hints(make_plugin(NodeResourcesFit), "Pod", make_pod(requests={"cpu": "1"}), old, new) == [hint]


def with_room(**amounts: str) -> Node:
    return make_node("a", allocatable={**NODE, **amounts})


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, with_room(), "Queue", id="a node came that is large enough"),
        pytest.param(None, with_room(cpu="500m"), "Skip", id="a node came that is too small"),
        pytest.param(None, with_room(pods="0"), "Skip", id="a node came that takes no pods"),
        pytest.param(with_room(cpu="500m"), with_room(), "Queue", id="grew enough"),
        pytest.param(with_room(cpu="500m"), with_room(cpu="600m"), "Skip", id="grew too little"),
        pytest.param(with_room(), with_room(), "Skip", id="did not grow"),
        pytest.param(with_room(), with_room(memory="8Gi"), "Skip", id="grew in something else"),
        pytest.param(with_room(), with_room(pods="9"), "Queue", id="takes more pods"),
        pytest.param(with_room(), with_room(cpu="1"), "Skip", id="shrank"),
    ],
)
def test_node_hints(old: Node | None, new: Node, hint: str) -> None:
    assert evaluate_hints(make_plugin(NodeResourcesFit), "Node", make_pod(requests={"cpu": "1"}), old, new) == [hint]


@pytest.mark.parametrize(("objects", "hint"), [([], "Skip"), ([device_class()], "Queue")])
def test_a_node_without_the_resource_queues_the_pod_if_devices_may_provide_it(
    objects: list[KubeObject], hint: str
) -> None:
    plugin = make_plugin(NodeResourcesFit, handle=FakeHandle(Catalog(objects)))
    pod, node = make_pod(requests={GPU: "1"}), with_room(**{GPU: "0"})
    assert evaluate_hints(plugin, "Node", pod, node, node) == [hint]


def test_hints_check_ignored_resources() -> None:
    plugin = make_plugin(NodeResourcesFit, args=fit_args(ignored_resources=(GPU,)))
    assert evaluate_hints(plugin, "Node", make_pod(requests={GPU: "5"}), None, with_room()) == ["Skip"]


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, device_class(), "Queue", id="a class for its resource came"),
        pytest.param(None, device_class(resource="other.com/x"), "Skip", id="a class for another came"),
        pytest.param(None, device_class("mine", None), "Queue", id="a class came whose implicit name it uses"),
        pytest.param(None, device_class("other", None), "Skip", id="a class without a name for resources came"),
        pytest.param(device_class(resource=None), device_class(), "Queue", id="a class got the name"),
        pytest.param(device_class(), device_class(), "Skip", id="a class has it as before"),
        pytest.param(device_class(), device_class(resource=None), "Skip", id="a class lost it"),
        pytest.param(
            device_class("mine", "x.com/y"), device_class("mine", None), "Skip", id="implicit names do not change"
        ),
    ],
)
def test_class_hints(old: DeviceClass | None, new: DeviceClass, hint: str) -> None:
    pod = make_pod(requests={GPU: "1", "deviceclass.resource.kubernetes.io/mine": "1"})
    assert evaluate_hints(make_plugin(NodeResourcesFit), "resource.k8s.io/DeviceClass", pod, old, new) == [hint]


# arguments and signatures


@pytest.mark.parametrize(
    ("args", "text"),
    [
        pytest.param(
            {"scoring_strategy": ScoringStrategy("Nope")},
            'scoringStrategy.type: Unsupported value: "Nope": supported values: '
            '"LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"',
            id="an unknown strategy",
        ),
        pytest.param(
            {"scoring_strategy": ScoringStrategy("MostAllocated", (ResourceSpec("cpu", 101),))},
            "scoringStrategy.resources[0].weight: Invalid value: 101: "
            "resource weight of cpu not in valid range (0, 100]",
            id="too heavy",
        ),
        pytest.param(
            {
                "ignored_resource_groups": ("a/b",),
                "scoring_strategy": ScoringStrategy(
                    "LeastAllocated", requested_to_capacity_ratio=RequestedToCapacityRatioParam()
                ),
            },
            "[ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/', "
            "scoringStrategy.requestedToCapacityRatio: Forbidden: "
            "must be nil when type is not RequestedToCapacityRatio]",
            id="several",
        ),
    ],
)
def test_arguments_are_validated_when_the_plugin_is_built(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plugin(NodeResourcesFit, args=fit_args(**args))
    assert str(caught.value) == text


THREE = [
    make_node("a", cpu="4", memory="8Gi", allocatable={GPU: "4"}),
    make_node("b", cpu="4", memory="8Gi"),
    make_node("c", cpu="4", memory="8Gi"),
]


@pytest.mark.parametrize(
    ("strategy", "resources", "names", "assigned", "expected"),
    [
        pytest.param("LeastAllocated", {"cpu": 1}, "ab", "pq", 50, id="fuller is better whatever the strategy"),
        pytest.param("MostAllocated", {"cpu": 1}, "a", "pq", 75, id="one node alone"),
        pytest.param("MostAllocated", {"cpu": 1}, "ab", "", 12, id="what is there already"),
        pytest.param("MostAllocated", {"cpu": 3, "memory": 1}, "ab", "pq", 40, id="weights"),
        pytest.param("MostAllocated", {"cpu": 1}, "c", "pqrst", 100, id="more than there is"),
        pytest.param("MostAllocated", {GPU: 1}, "ab", "pq", 0, id="not requested"),
    ],
)
def test_placement_score(strategy: str, resources: dict[str, int], names: str, assigned: str, expected: int) -> None:
    """Members ask for one and a half processors and half a gibibyte each; one processor of `b` is taken."""
    group_name = PodSchedulingGroup(pod_group_name="g")
    members = [make_pod(name, cpu="1500m", memory="512Mi", scheduling_group=group_name) for name in "pqrst"]
    specs = tuple(ResourceSpec(name, weight) for name, weight in resources.items())
    args = fit_args(scoring_strategy=ScoringStrategy(strategy, specs))
    plugin = NodeResourcesFit(args, FakeHandle(group_pods=members))
    there = make_pod("there", node="b", cpu="1", memory="1Gi")
    cycle = make_cycle(members[0], make_snapshot(THREE, [there]))
    group = from_api(PodGroup, {"metadata": {"name": "g", "namespace": "default"}})
    where = {f"default/{name}": "a" for name in assigned}
    assert plugin.score_placement(cycle, group, Placement("x", frozenset(names)), where) == expected


def test_signatures() -> None:
    sign = make_plugin(NodeResourcesFit).signature
    assert sign(make_pod("x", requests={"cpu": "1"})) == sign(make_pod("y", requests={"cpu": "1000m"}))
    assert sign(make_pod(requests={"cpu": "1"})) != sign(make_pod(requests={"cpu": "2"}))
    two = make_pod(containers=(make_container("a"), make_container("b")))
    assert sign(two) != sign(make_pod()), "the guess for containers that ask for nothing differs"
    pod_level = replace_fields(
        make_pod(requests={"cpu": "1"}), spec={"resources": ResourceRequirements(requests={"cpu": "1"})}
    )
    assert sign(pod_level) == sign(make_pod(requests={"cpu": "1"}))


def test_pods_with_resources_from_devices_share_no_answers() -> None:
    plugin = make_plugin(NodeResourcesFit, handle=FakeHandle(Catalog([device_class()])))
    assert plugin.signature(make_pod(requests={GPU: "1"})) is None
    assert plugin.signature(make_pod(requests={GPU: "0"})) is not None
    assert plugin.signature(from_api(Pod, {})) is not None
