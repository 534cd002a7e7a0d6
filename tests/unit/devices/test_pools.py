"""Pools of a node: visible devices, their order, and unusable pools."""

from __future__ import annotations

import pytest

from bayplan.devices.errors import AllocationError
from bayplan.devices.identity import PoolId
from bayplan.devices.pools import NodePools, PoolIndex
from bayplan.objects.core import Node
from bayplan.objects.resource import ResourceSlice
from support.builders.devices import DRIVER, device, make_slice
from support.builders.framework import make_node

HERE = make_node("n", labels={"zone": "a"})
IN_ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
IN_ZONE_B = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
MALFORMED = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In"}]}]}


def seen(*slices: ResourceSlice, node: Node = HERE) -> NodePools:
    return PoolIndex(slices).pools_for(node)


def names(pools: NodePools) -> list[str]:
    return [found.id.device for found in pools.devices]


def states(pools: NodePools) -> dict[str, str]:
    return {
        pool.id.pool: "incomplete" if pool.incomplete else "invalid" if pool.invalid else "usable"
        for pool in pools.pools
    }


@pytest.mark.parametrize(
    ("where", "visible"),
    [
        pytest.param({"node": "n"}, True, id="local"),
        pytest.param({"node": "other"}, False, id="local-elsewhere"),
        pytest.param({"allNodes": True}, True, id="everywhere"),
        pytest.param({"nodeSelector": IN_ZONE_A}, True, id="selector-fits"),
        pytest.param({"nodeSelector": IN_ZONE_B}, False, id="selector-does-not-fit"),
        pytest.param({}, False, id="says-nothing"),
    ],
)
def test_the_node_selection_of_a_slice(where: dict[str, object], visible: bool) -> None:
    assert names(seen(make_slice(device("a"), **where))) == (["a"] if visible else [])  # type: ignore[arg-type]


def test_the_node_selection_of_devices() -> None:
    here, there = device("here", api={"nodeName": "n"}), device("there", api={"nodeName": "m"})
    zone, far = device("zone", api={"nodeSelector": IN_ZONE_A}), device("far", api={"nodeSelector": IN_ZONE_B})
    pools = seen(make_slice(here, there, zone, far, perDeviceNodeSelection=True))
    assert [found.id.device for found in pools.devices if found.reaches(HERE)] == ["here", "zone"]


def test_a_slice_without_reachable_devices_is_not_visible() -> None:
    assert seen(make_slice(device("there", api={"nodeName": "m"}), perDeviceNodeSelection=True)).pools == ()


def test_the_newest_generation_counts() -> None:
    old = make_slice(device("old"), node="n", name="x", generation=1)
    new = make_slice(device("new"), node="n", name="y", generation=2)
    assert names(seen(old, new)) == ["new"]


def test_a_pool_that_is_being_replaced_elsewhere_is_left_out() -> None:
    old = make_slice(device("old"), pool="p", name="x", of=2, nodeSelector=IN_ZONE_A)
    new = make_slice(device("new"), pool="p", name="y", generation=2, of=2, nodeSelector=IN_ZONE_B)
    assert seen(old, new).pools == ()


def test_a_newer_generation_elsewhere_is_ignored_if_the_slice_count_is_right() -> None:
    old = make_slice(device("old"), pool="p", name="x", nodeSelector=IN_ZONE_A)
    new = make_slice(device("new"), pool="p", name="y", generation=2, nodeSelector=IN_ZONE_B)
    assert names(seen(old, new)) == ["old"]


def test_slices_for_other_nodes_make_a_pool_complete() -> None:
    mine = make_slice(device("a"), pool="p", name="x", of=2, nodeSelector=IN_ZONE_A)
    other = make_slice(device("b"), pool="p", name="y", of=2, nodeSelector=IN_ZONE_B)
    assert states(seen(mine)) == {"p": "incomplete"}
    assert names(seen(mine, other)) == ["a"]


def test_a_device_name_must_be_unique_among_the_slices_for_the_node() -> None:
    twice = [make_slice(device("a"), node="n", name=name, of=2) for name in ("x", "y")]
    assert states(seen(*twice)) == {"n": "invalid"}
    assert names(seen(*twice)) == []


def test_the_same_device_name_on_another_node_is_valid() -> None:
    mine = make_slice(device("a"), pool="p", name="x", of=2, nodeSelector=IN_ZONE_A)
    other = make_slice(device("a"), pool="p", name="y", of=2, nodeSelector=IN_ZONE_B)
    assert states(seen(mine, other)) == {"p": "usable"}


@pytest.mark.parametrize(
    ("consumes", "state"),
    [
        pytest.param({"memory": "1"}, "usable", id="known-counter"),
        pytest.param({"cores": "1"}, "invalid", id="unknown-counter"),
    ],
)
@pytest.mark.parametrize("selector", [IN_ZONE_A, IN_ZONE_B], ids=["for-this-node", "for-another"])
def test_consumed_counters_must_exist_anywhere_in_the_pool(
    consumes: dict[str, str], state: str, selector: dict[str, object]
) -> None:
    shared = make_slice(pool="p", name="counters", of=3, counters={"memory": "8"}, allNodes=True)
    plain = make_slice(device("a"), pool="p", name="x", of=3, nodeSelector=IN_ZONE_A)
    consuming = make_slice(device("b", consumes=consumes), pool="p", name="y", of=3, nodeSelector=selector)
    assert states(seen(shared, plain, consuming)) == {"p": state}


def test_an_unknown_counter_set_makes_a_pool_invalid() -> None:
    assert states(seen(make_slice(device("a", consumes={"memory": "1"}), node="n"))) == {"n": "invalid"}


def test_two_counter_sets_of_one_name_make_a_pool_invalid() -> None:
    sets = [make_slice(node="n", name=name, of=2, counters={"memory": "8"}) for name in ("x", "y")]
    assert states(seen(*sets)) == {"n": "invalid"}


def test_counters_are_visible_on_every_node() -> None:
    shared = make_slice(pool="p", name="counters", of=2, counters={"memory": "8"}, node="other")
    mine = make_slice(device("a", consumes={"memory": "1"}), pool="p", name="x", of=2, allNodes=True)
    assert names(seen(shared, mine)) == ["a"]


def test_the_order_is_driver_pool_slice_and_position() -> None:
    slices = [
        make_slice(device("5"), node="n", pool="a", driver="z.example.com", name="first"),
        make_slice(device("4"), node="n", pool="b", name="second"),
        make_slice(device("3"), node="n", pool="a", name="y", of=2),
        make_slice(device("2"), device("1"), node="n", pool="a", name="x", of=2),
    ]
    assert names(seen(*slices)) == ["2", "1", "3", "4", "5"]


def test_pools_with_binding_conditions_come_last() -> None:
    late = make_slice(device("late", api={"bindingConditions": ["Ready"]}), device("too"), node="n", pool="a")
    soon = make_slice(device("soon"), node="n", pool="b")
    assert names(seen(late, soon)) == ["soon", "late", "too"]


def test_the_error_of_an_invalid_selector_names_the_slice() -> None:
    with pytest.raises(AllocationError, match="node selection for slice bad: failed to parse node selector &NodeSel"):
        seen(make_slice(device("a"), name="bad", nodeSelector=MALFORMED))


def test_the_pools_of_a_node_are_recomputed_when_its_labels_change() -> None:
    index = PoolIndex([make_slice(device("a"), nodeSelector=IN_ZONE_B)])
    assert names(index.pools_for(HERE)) == []
    assert names(index.pools_for(make_node("n", labels={"zone": "b"}))) == ["a"]
    assert index.pools_for(make_node("n", labels={"zone": "b"})) is index.pools_for(
        make_node("n", labels={"zone": "b"}, allocatable={})
    )


def test_cached_devices_survive_changes_of_other_slices() -> None:
    same, removed = make_slice(device("a"), node="n"), make_slice(device("b"), node="m")
    before = PoolIndex([same, removed])
    after = PoolIndex([same, make_slice(device("b"), node="m")], before)
    assert after.pools_for(HERE).devices[0] is before.pools_for(HERE).devices[0]
    other = make_node("m")
    assert after.pools_for(other).devices[0] is not before.pools_for(other).devices[0]


def test_a_change_of_slices_affects_only_nodes_that_may_see_them() -> None:
    nodes = [make_node(name) for name in ("a", "b", "c")]
    local = {node.name: make_slice(device("x"), node=node.name) for node in nodes}
    wide = make_slice(device("y"), pool="wide", nodeSelector=IN_ZONE_A)
    # Two nodes share a pool: what happens to the slice of one may make it incomplete for the other.
    both = [make_slice(device(name), node=name, pool="both", name=f"both-{name}", of=2) for name in ("a", "b")]
    before = PoolIndex([*local.values(), wide, *both])
    old = [before.pools_for(node) for node in nodes]

    def reused(*slices: ResourceSlice) -> list[bool]:
        after = PoolIndex(slices, before)
        fresh = PoolIndex(slices)
        for node in nodes:
            assert names(after.pools_for(node)) == names(fresh.pools_for(node))
            assert states(after.pools_for(node)) == states(fresh.pools_for(node))
        return [after.pools_for(node) is pools for node, pools in zip(nodes, old, strict=True)]

    unchanged = [*local.values(), wide, *both]
    assert reused(*unchanged) == [True, True, True]
    assert reused(make_slice(device("z"), node="a"), local["b"], local["c"], wide, *both) == [False, True, True]
    assert reused(local["a"], local["b"], wide, *both) == [True, True, False]
    assert reused(*local.values(), wide, both[0]) == [False, False, True]
    assert reused(*local.values(), *both) == [False, False, False]
    assert reused(*unchanged, make_slice(device("q"), pool="q", name="q", allNodes=True)) == [False, False, False]


def test_pools_print_as_messages_name_them() -> None:
    assert str(PoolId(DRIVER, "p")) == "gpu.example.com/p"
    assert str(seen(make_slice(device("a"), node="n")).devices[0].id) == "gpu.example.com/n/a"
