"""Devices that provide a scored resource."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.plugins.node_resources.device_totals import DeviceTotals
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs, ScoringStrategy
from bayplan.plugins.node_resources.resource_specs import ResourceSpec
from support.builders.framework import FakeHandle, from_api, make_node, make_pod, make_snapshot, run_score

GPU = "example.com/gpu"
NODES = [make_node("a", labels={"disk": "ssd"}), make_node("b")]


def a_class(*expressions: str) -> DeviceClass:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return from_api(
        DeviceClass, {"metadata": {"name": "gpus"}, "spec": {"selectors": selectors, "extendedResourceName": GPU}}
    )


def a_slice(*devices: str | dict[str, Any], name: str = "s", **spec: Any) -> ResourceSlice:
    listed = [{"name": device} if isinstance(device, str) else device for device in devices]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return from_api(
        ResourceSlice, {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, "devices": listed, **spec}}
    )


def a_claim(*devices: str, **result: Any) -> ResourceClaim:
    results = [{"driver": "d", "pool": "p", "device": device, "request": "r", **result} for device in devices]
    status = {"allocation": {"devices": {"results": results}}}
    return from_api(ResourceClaim, {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "status": status})


def totals(*objects: KubeObject, device_class: DeviceClass | None = None) -> dict[str, tuple[int, int]]:
    """Return the devices of the class and the allocated ones for each node."""
    snapshot = make_snapshot(NODES, objects=objects)
    total, taken = DeviceTotals(FakeHandle(snapshot.catalog)).of(device_class or a_class(), snapshot.table)
    return dict(zip(snapshot.nodes.names, zip(total.tolist(), taken.tolist(), strict=True), strict=True))


SSD = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}
BROKEN = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In"}]}]}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([], {"a": (0, 0), "b": (0, 0)}, id="no slices"),
        pytest.param([a_slice("x", "y", nodeName="a")], {"a": (2, 0), "b": (0, 0)}, id="of one node"),
        pytest.param([a_slice("x")], {"a": (1, 0), "b": (1, 0)}, id="of no node in particular"),
        pytest.param([a_slice("x", allNodes=True)], {"a": (1, 0), "b": (1, 0)}, id="of all nodes"),
        pytest.param([a_slice("x", nodeSelector=SSD)], {"a": (1, 0), "b": (0, 0)}, id="of selected nodes"),
        pytest.param(
            [a_slice("x", nodeName="a"), a_slice("y", nodeSelector=BROKEN, name="t")],
            {"a": (0, 0), "b": (0, 0)},
            id="a selector that cannot be read spoils it",
        ),
        pytest.param([a_slice("x", "y", nodeName="a"), a_claim("x")], {"a": (2, 1), "b": (0, 0)}, id="one is taken"),
        pytest.param(
            [a_slice("x", nodeName="a"), a_claim("x", adminAccess=True)],
            {"a": (1, 0), "b": (0, 0)},
            id="administrators take nothing",
        ),
        pytest.param(
            [a_slice("x", nodeName="a"), a_claim("x", shareID="s")],
            {"a": (1, 1), "b": (0, 0)},
            id="a share counts as taken",
        ),
        pytest.param(
            [a_slice("x", nodeName="a"), a_slice("y", nodeName="a", name="t")],
            {"a": (2, 0), "b": (0, 0)},
            id="several slices",
        ),
        pytest.param(
            [
                a_slice(
                    {"name": "x", "nodeName": "a"},
                    {"name": "y", "allNodes": True},
                    {"name": "z", "nodeSelector": SSD},
                    "w",
                    perDeviceNodeSelection=True,
                )
            ],
            {"a": (3, 0), "b": (1, 0)},
            id="devices say it themselves",
        ),
    ],
)
def test_counts(objects: list[KubeObject], expected: dict[str, tuple[int, int]]) -> None:
    assert totals(*objects) == expected


def test_only_devices_of_the_class_count() -> None:
    big = {"name": "x", "attributes": {"size": {"int": 8}}}
    small = {"name": "y", "attributes": {"size": {"int": 1}}}
    selecting = a_class('device.attributes["d"].size > 4', "device.driver == 'd'")
    assert totals(a_slice(big, small, nodeName="a"), device_class=selecting) == {"a": (1, 0), "b": (0, 0)}


def test_a_failing_selector_counts_no_devices_on_its_nodes() -> None:
    failing = a_class('device.attributes["d"].size > 4')
    here, there = (
        a_slice("x", nodeName="a"),
        a_slice({"name": "y", "attributes": {"size": {"int": 8}}}, nodeName="b", name="t"),
    )
    assert totals(here, there, device_class=failing) == {"a": (0, 0), "b": (1, 0)}


def test_a_changed_slice_is_seen() -> None:
    snapshot = make_snapshot(NODES, objects=[a_slice("x", nodeName="a")])
    counting = DeviceTotals(FakeHandle(snapshot.catalog))
    assert counting.of(a_class(), snapshot.table)[0].tolist() == [1, 0]
    snapshot.catalog.upsert(a_slice("x", "y", nodeName="b"))
    assert counting.of(a_class(), snapshot.table)[0].tolist() == [0, 2]


def test_the_fit_score_counts_devices_where_the_node_has_none_itself() -> None:
    args = NodeResourcesFitArgs(scoring_strategy=ScoringStrategy("MostAllocated", (ResourceSpec(GPU, 1),)))
    nodes = [make_node("a"), make_node("b", allocatable={GPU: "2"}), make_node("c")]
    objects = [a_class(), a_slice("w", "x", "y", "z", nodeName="a"), a_claim("w")]
    scores = run_score(NodeResourcesFit, make_pod(requests={GPU: "1"}), *nodes, objects=objects, args=args)
    assert scores == {"a": 50, "b": 50, "c": 0}
