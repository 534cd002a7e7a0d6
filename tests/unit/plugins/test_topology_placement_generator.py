"""Placements of pod groups and their scores."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.plugin import Placement
from bayplan.framework.api.status import Status
from bayplan.objects.core import Pod, PodSchedulingGroup
from bayplan.objects.workloads import PodGroup
from bayplan.plugins.pod_group_pods_count import NOTHING_ASSIGNED, PodGroupPodsCount
from bayplan.plugins.topology_placement_generator import TopologyPlacementGenerator
from bayplan.snapshot import Catalog
from support.builders.framework import FakeHandle, from_api, make_cycle, make_node, make_pod, make_snapshot

NODES = [
    make_node("a", labels={"zone": "x"}),
    make_node("b", labels={"zone": "y"}),
    make_node("c", labels={"zone": "x"}),
    make_node("d"),
]


def group(key: str | None = "zone") -> PodGroup:
    spec: dict[str, Any] = {} if key is None else {"schedulingConstraints": {"topology": [{"key": key}]}}
    return from_api(PodGroup, {"metadata": {"name": "g", "namespace": "default"}, "spec": spec})


def member(name: str, node: str = "") -> Pod:
    return make_pod(name, node=node, scheduling_group=PodSchedulingGroup(pod_group_name="g"))


def placements(pod_group: PodGroup, *pods: Pod, known: bool = True) -> dict[str, set[str]] | str:
    """Node names by placement, or the text of an error."""
    plugin = TopologyPlacementGenerator(FakeHandle(Catalog([pod_group] if known else []), group_pods=pods))
    found = plugin.generate_placements(make_cycle(make_pod(), make_snapshot(NODES)), pod_group)
    return found.message if isinstance(found, Status) else {each.name: set(each.node_names) for each in found}


@pytest.mark.parametrize(
    ("pod_group", "pods", "expected"),
    [
        pytest.param(group(None), [], {"": {"a", "b", "c", "d"}}, id="no constraint: anywhere"),
        pytest.param(group(), [], {"x": {"a", "c"}, "y": {"b"}}, id="one a domain, nodes without the label in none"),
        pytest.param(group(), [member("p")], {"x": {"a", "c"}, "y": {"b"}}, id="pods without a node do not matter"),
        pytest.param(group(), [member("p", "b")], {"y": {"b"}}, id="where its pods are already"),
        pytest.param(group("rack"), [], {}, id="a key that no node has"),
    ],
)
def test_generated(pod_group: PodGroup, pods: list[Pod], expected: dict[str, set[str]]) -> None:
    assert placements(pod_group, *pods) == expected


BROKEN = "cannot determine domain for already scheduled pods: "


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        pytest.param(
            [member("p", "a"), member("q", "b")], "more than 1 domain found for pod group: x, y", id="in two domains"
        ),
        pytest.param(
            [member("p", "d")], "no topology domain found for pod default/p", id="on a node without the label"
        ),
        pytest.param(
            [member("p", "z")],
            'getting node for pod default/p: nodeinfo not found for node name "z"',
            id="on a node that has gone",
        ),
    ],
)
def test_placed_pods_without_a_common_domain(pods: list[Pod], text: str) -> None:
    assert placements(group(), *pods) == BROKEN + text


def test_a_deleted_group() -> None:
    assert placements(group(), known=False) == 'podgroup.scheduling.k8s.io "g" not found'


def test_a_placement_counts_what_runs_and_what_it_takes() -> None:
    plugin = PodGroupPodsCount(FakeHandle(group_pods=[member("p", "a"), member("q"), member("r")]))
    pod_group = group()
    found = plugin.score_placement(
        make_cycle(make_pod()), pod_group, Placement("x", frozenset("ac")), {"q": "a", "r": "c"}
    )
    assert found == 3


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        pytest.param([3, 1, 2], [100, 33, 66], id="the fullest gets 100, the rest is truncated"),
        pytest.param([4], [100], id="one alone"),
    ],
)
def test_normalized(scores: list[int], expected: list[int]) -> None:
    assert PodGroupPodsCount(FakeHandle()).normalize_placements(make_cycle(make_pod()), group(), scores) == expected


def test_nothing_assigned_anywhere_is_an_error() -> None:
    found = PodGroupPodsCount(FakeHandle()).normalize_placements(make_cycle(make_pod()), group(), [0, 0])
    assert isinstance(found, Status)
    assert found.message == NOTHING_ASSIGNED
