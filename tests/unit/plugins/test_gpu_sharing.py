"""GPU sharing: requests, nodes with room, chosen devices, and fields of the BindRequest."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.errors import ObjectError
from bayplan.framework.runtime.bind_request_mutation import REQUEST_FIELDS
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest, ReceivedGpu, new_request
from bayplan.objects.kai.gpu_sharing import GpuShare, gpu_memory_of_node, requested_share
from bayplan.plugins.gpu_sharing import NO_MEMORY, NO_ROOM, SHARING_IN_PROGRESS, GpuSharing, SharedDevices
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    rejected,
)
from support.builders.framework import run_filter as filtered
from support.builders.framework import unresolvable as never

GPU = "nvidia.com/gpu"


def gpu_node(name: str = "a", gpus: int = 2, memory: str = "16000", pods: int = 110) -> Node:
    labels = {"nvidia.com/gpu.memory": memory} if memory else {}
    return make_node(name, labels=labels, capacity={GPU: str(gpus), "pods": str(pods)})


def part(name: str = "part", fraction: str = "0.5", node: str = "", group: str = "", **annotations: str) -> Pod:
    labels = {"runai-gpu-group": group} if group else {}
    return make_pod(name, node=node, labels=labels, annotations={"gpu-fraction": fraction, **annotations})


def reservation(group: str, node: str = "a") -> Pod:
    return make_pod(
        f"r-{group}",
        namespace="kai-resource-reservation",
        node=node,
        labels={"runai-gpu-group": group},
        requests={GPU: "1"},
    )


def whole(count: int, name: str = "whole", node: str = "") -> Pod:
    return make_pod(name, node=node, requests={GPU: str(count)})


# requests


@pytest.mark.parametrize(
    ("annotations", "share"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"gpu-fraction": "0.25"}, GpuShare(1, fraction=0.25), id="a fraction"),
        pytest.param({"gpu-memory": "2000"}, GpuShare(1, memory_mib=2000), id="memory"),
        pytest.param(
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}, GpuShare(3, fraction=0.5), id="of several"
        ),
    ],
)
def test_requests_of_pods(annotations: dict[str, str], share: GpuShare | None) -> None:
    assert requested_share(make_pod(annotations=annotations)) == share


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        pytest.param({"gpu-fraction": "1"}, 'gpu-fraction is "1"; it must be between 0 and 1', id="all of it"),
        pytest.param({"gpu-fraction": "half"}, 'gpu-fraction is "half"', id="no number"),
        pytest.param({"gpu-memory": "0"}, 'gpu-memory is "0"; it must be a whole number above 0', id="no memory"),
        pytest.param({"gpu-memory": "1", "gpu-fraction": "0.1"}, "has both annotations", id="both"),
        pytest.param({"gpu-fraction": "0.1", "gpu-fraction-num-devices": "x"}, "gpu-fraction-num-devices is", id="x"),
    ],
)
def test_an_invalid_request_rejects_the_pod(annotations: dict[str, str], text: str) -> None:
    with pytest.raises(ObjectError, match=text):
        requested_share(make_pod(annotations=annotations))
    ((code, reasons),) = filtered(GpuSharing, make_pod(annotations=annotations), gpu_node()).values()
    assert code == "UnschedulableAndUnresolvable"
    assert text in reasons[0]


def test_memory_is_counted_in_hundreds_and_a_portion_in_hundredths_rounded_up() -> None:
    assert gpu_memory_of_node(gpu_node(memory="16376")) == 16300
    assert gpu_memory_of_node(gpu_node(memory="")) == 0
    assert GpuShare(memory_mib=2001).portion_of(16000) == 0.13
    assert GpuShare(fraction=0.5).memory_on(16300) == 8150
    assert [GpuShare(fraction=each).portion_of(16000) for each in (1e-9, 0.004, 0.25, 0.994)] == [
        0.01,
        0.01,
        0.25,
        0.99,
    ]


# filter


def test_nodes_without_room_for_a_share_are_rejected() -> None:
    pods = [reservation("g", "full"), part("one", "0.7", "full", "g"), whole(1, node="taken")]
    nodes = [gpu_node("free", 1), gpu_node("full", 1), gpu_node("taken", 1), make_node("none"), gpu_node("dumb", 1, "")]
    assert filtered(GpuSharing, part(), *nodes, pods=pods) == {
        "free": FEASIBLE,
        "full": rejected(NO_ROOM),
        "taken": rejected(NO_ROOM),
        "none": rejected(NO_ROOM),
        "dumb": never(NO_MEMORY),
    }
    assert filtered(GpuSharing, part(fraction="0.3"), nodes[1], pods=pods) == {"full": FEASIBLE}


def test_more_memory_than_a_gpu_has_never_fits() -> None:
    asking = make_pod(annotations={"gpu-memory": "20000"})
    nodes = [gpu_node("small"), gpu_node("large", memory="24000")]
    assert filtered(GpuSharing, asking, *nodes) == {"small": rejected(NO_ROOM), "large": FEASIBLE}


def test_a_new_group_needs_a_place_for_its_reservation_pod() -> None:
    assert filtered(GpuSharing, part(), gpu_node(pods=1)) == {"a": rejected(NO_ROOM)}
    assert filtered(GpuSharing, part(), gpu_node(pods=2)) == {"a": FEASIBLE}


def test_several_devices_are_several_groups() -> None:
    pods = [reservation("g"), part("one", "0.5", "a", "g")]
    two = {"gpu-fraction-num-devices": "2"}
    assert filtered(GpuSharing, part(**two), gpu_node(gpus=2), pods=pods) == {"a": FEASIBLE}
    assert filtered(GpuSharing, part(fraction="0.6", **two), gpu_node(gpus=2), pods=pods) == {"a": rejected(NO_ROOM)}


def test_a_gpu_that_will_be_shared_is_not_available_as_a_whole() -> None:
    """A group counts as one device before its reservation pod exists."""
    pods = [part("one", "0.5", "a", "g")]
    assert filtered(GpuSharing, whole(2), gpu_node(gpus=2), pods=pods) == {"a": rejected(SHARING_IN_PROGRESS)}
    assert filtered(GpuSharing, whole(1), gpu_node(gpus=2), pods=pods) == {"a": FEASIBLE}
    assert filtered(GpuSharing, whole(1), gpu_node(gpus=2), pods=[*pods, reservation("g")]) == {"a": FEASIBLE}
    assert filtered(GpuSharing, make_pod(), gpu_node(gpus=1), pods=pods) == {"a": FEASIBLE}


def test_a_share_and_whole_gpus_are_invalid() -> None:
    both = make_pod(requests={GPU: "1"}, annotations={"gpu-fraction": "0.5"})
    ((_, reasons),) = filtered(GpuSharing, both, gpu_node()).values()
    assert "requests whole GPUs or MIG instances, and a part of a GPU" in reasons[0]


# reserve


def given_to(pod: Pod, *pods: Pod, plugin: Any = None) -> Any:
    """Return the fields of the BindRequest of a pod on node a."""
    plugin = plugin or make_plugin(GpuSharing)
    snapshot = make_snapshot([gpu_node()], pods)
    cycle, filtering = make_cycle(pod, snapshot), make_filtering(plugin)
    filtering.pre_filter(cycle)
    status = plugin.reserve(cycle, "a")
    assert status is None or status.ok
    return cycle.find(REQUEST_FIELDS)


def test_the_fullest_group_with_room_is_chosen_and_a_new_one_where_there_is_none() -> None:
    pods = [reservation("g1"), part("one", "0.2", "a", "g1"), reservation("g2"), part("two", "0.4", "a", "g2")]
    assert given_to(part(), *pods)["selected_gpu_groups"] == ("g2",)
    assert given_to(part(fraction="0.7"), *pods)["selected_gpu_groups"] == ("g1",)
    fields = given_to(part(fraction="0.75"))
    assert (fields["received_resource_type"], fields["received_gpu"]) == ("Fraction", ReceivedGpu(1, "0.75"))
    (group,) = fields["selected_gpu_groups"]
    assert len(group) == 36


def test_memory_becomes_a_portion_of_the_device() -> None:
    asking = make_pod(annotations={"gpu-memory": "4000"})
    assert given_to(asking)["received_gpu"] == ReceivedGpu(1, "0.25")


def test_whole_devices_and_slices_are_named_in_the_request_too() -> None:
    assert given_to(whole(2)) == {"received_gpu": ReceivedGpu(2, "1.00")}
    assert given_to(make_pod(requests={"nvidia.com/mig-1g.5gb": "1"})) == {"received_resource_type": "MigInstance"}
    assert given_to(make_pod()) is None


class Known:
    """A BindRequest of an earlier scheduler process."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups

    def observe_created(self, request: BindRequest, pod: Pod) -> None: ...

    def request_of(self, pod: Pod) -> BindRequest:
        return new_request(pod, "a", annotations={}, backoff_limit=3, selected_gpu_groups=self.groups)


def on_desk(*groups: str) -> GpuSharing:
    handle: Any = FakeHandle()
    handle.bind_requests.factory.tracker = Known(*groups)
    return GpuSharing.factory(None, handle)


def test_a_choice_counts_before_the_pod_has_labels_and_not_after_unreserve() -> None:
    plugin, first, second = on_desk(), part("first", "0.6"), part("second", "0.4")
    (group,) = given_to(first, plugin=plugin)["selected_gpu_groups"]
    assumed = replace(first, spec=replace(first.spec, node_name="a"))
    assert given_to(second, assumed, plugin=plugin)["selected_gpu_groups"] == (group,)
    plugin.unreserve(make_cycle(first, make_snapshot([gpu_node()], [])), "a")
    assert given_to(second, assumed, plugin=plugin)["selected_gpu_groups"] != (group,)


def test_after_the_binding_the_labels_count_and_the_choice_is_dropped() -> None:
    plugin, first = on_desk(), part("first", "0.6")
    for number in range(3):  # pods that are not evaluated again are dropped too
        other = part(f"other-{number}", "0.6")
        given_to(other, plugin=plugin)
        asyncio.run(plugin.post_bind(make_cycle(other, make_snapshot([gpu_node()], [])), "a"))
    given_to(first, plugin=plugin)
    assert list(plugin._choices) == [first.uid]
    asyncio.run(plugin.post_bind(make_cycle(first, make_snapshot([gpu_node()], [])), "a"))
    assert plugin._choices == {}
    labelled = part("first", "0.6", "a", "told")
    assert given_to(part("second", "0.4"), labelled, plugin=plugin)["selected_gpu_groups"] == ("told",)


def test_without_a_binder_the_choice_counts() -> None:
    plugin, first = make_plugin(GpuSharing), part("first", "0.6")
    (group,) = given_to(first, plugin=plugin)["selected_gpu_groups"]
    asyncio.run(plugin.post_bind(make_cycle(first, make_snapshot([gpu_node()], [])), "a"))
    there = replace(first, spec=replace(first.spec, node_name="a"))
    assert given_to(part("second", "0.4"), there, plugin=plugin)["selected_gpu_groups"] == (group,)


@pytest.mark.parametrize("plugin", [on_desk(), on_desk("new")], ids=["our own memory", "the request"])
def test_a_label_of_a_failed_binding_does_not_count(plugin: GpuSharing) -> None:
    """Otherwise a group would have the same name on two nodes."""
    labelled = part("first", "0.6", group="old")
    fields = given_to(labelled, plugin=plugin)
    group = "new" if plugin._requests.factory.tracker.groups else fields["selected_gpu_groups"][0]  # type: ignore[union-attr]
    if group == "new":
        plugin.unreserve(make_cycle(labelled, make_snapshot([gpu_node()], [])), "a")
    assumed = replace(labelled, spec=replace(labelled.spec, node_name="a"))
    assert given_to(part("second", "0.4"), assumed, plugin=plugin)["selected_gpu_groups"] == (group,)


def test_only_reservations_in_the_binders_namespace_count() -> None:
    handle: Any = FakeHandle()
    handle.bind_requests.factory.reservations = "gpu-holders"
    plugin, user = GpuSharing.factory(None, handle), part("user", "0.5", "a", "g")
    held = make_pod("r", namespace="gpu-holders", node="a", labels={"runai-gpu-group": "g"}, requests={GPU: "1"})
    (group,) = given_to(part("other", "0.6"), held, user, plugin=plugin)["selected_gpu_groups"]
    assert group != "g", "the other device is free: that of the group is held already"


def test_a_reservation_in_the_former_namespace_still_holds_its_device() -> None:
    user, labels = part("user", "0.5", "a", "g"), {"runai-gpu-group": "g"}
    held = make_pod("gpu-reservation-1", namespace="before", node="a", labels=labels, requests={GPU: "1"})
    (group,) = given_to(part("other", "0.6"), held, user)["selected_gpu_groups"]
    assert group != "g", "the other device is free: that of the group is held already"


def test_after_a_restart_bind_requests_count() -> None:
    restored = part("first", "0.6", node="a")
    assert given_to(part("second", "0.4"), restored, plugin=on_desk("g"))["selected_gpu_groups"] == ("g",)
    assert given_to(part("second", "0.5"), restored, plugin=on_desk("g"))["selected_gpu_groups"] != ("g",)


# comparison with a simple model


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 3), st.booleans()), max_size=14), st.integers(0, 99))
def test_no_device_is_assigned_twice(steps: list[tuple[int, int, bool]], seed: int) -> None:
    """Pods come and go; whatever happens the devices in use are at most those of the node, none above its memory."""
    chance, gpus, memory = random.Random(seed), 3, 16000
    there: dict[int, tuple[GpuShare, list[str]]] = {}
    for number, (percent, devices, goes) in enumerate(steps):
        if goes and there:
            del there[chance.choice(sorted(there))]
            continue
        share, used = GpuShare(devices, fraction=percent / 100), usage(there, memory)
        account = SharedDevices(memory, used, gpus - len(used))
        known = account.fitting(share)[: share.devices]
        fresh = share.devices - len(known)
        assert account.has_room(share, 110) == (fresh <= gpus - len(used))
        if account.has_room(share, 110):
            there[number] = share, [*known, *(f"{number}-{each}" for each in range(fresh))]
        after = usage(there, memory)
        assert len(after) <= gpus
        assert all(taken <= memory for taken in after.values())


def usage(there: dict[int, tuple[GpuShare, list[str]]], memory: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for share, groups in there.values():
        assert len(set(groups)) == share.devices
        for group in groups:
            found[group] = found.get(group, 0) + share.memory_on(memory)
    return found
