"""The driver's check whether a pending pod fits on a node, which decides whether a pod was lost."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.invariants.devices import RESERVATIONS
from chaos.node_fit import fitting_pods
from chaos.objects import Tree, uid
from chaos.workload import shapes
from support.builders.chaos_histories import POOL, EventHistory, claim, node, pod

GPU = "nvidia.com/gpu"
SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
]


def _fits(story: EventHistory, wanted: Tree) -> bool:
    return uid(wanted) in fitting_pods(story.world.record)


def _beside(wanted: Tree, there: Tree | None = None, **room: Any) -> bool:
    """Whether a pod fits on a node with another pod."""
    story = EventHistory()
    story.add(0, node(**room), wanted)
    if there is not None:
        story.add(0, there)
        story.bind(1, there, "n")
    return _fits(story, wanted)


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        pytest.param(pod("a", cpu="8"), None, True, id="empty node"),
        pytest.param(pod("a", cpu="4"), pod("b", cpu="4"), True, id="room for both"),
        pytest.param(pod("a", cpu="8"), pod("b", cpu="1m"), False, id="no room"),
        pytest.param(pod("a", ports=(80,)), pod("b", ports=(80,)), False, id="host port taken"),
        pytest.param(pod("a", selector={"x": "y"}), None, False, id="label missing"),
        pytest.param(pod("a", labels={"app": "a"}, topologySpreadConstraints=SPREAD), None, True, id="first of a zone"),
    ],
)
def test_resources_ports_and_labels(wanted: Tree, there: Tree | None, fits: bool) -> None:
    assert _beside(wanted, there) is fits


def test_spread_counts_zones() -> None:
    story = EventHistory()
    one, two = (pod(name, labels={"app": "a"}, topologySpreadConstraints=SPREAD) for name in ("one", "two"))
    full = node("m", zone="zone-1", cpu="1m")
    story.add(0, node("n", zone="zone-0"), full, one, two)
    story.bind(1, one, "n")
    assert not _fits(story, two)
    story.change(2, full, status={"allocatable": {"cpu": "8", "memory": "1Gi", "pods": "9"}})
    assert _fits(story, two)


def test_devices() -> None:
    story = EventHistory()
    one = shapes.with_claim(pod("one"), "mine")
    story.add(0, node(), shapes.resource_slice("n", 1), claim("mine"), one)
    assert _fits(story, one)
    story.add(1, claim("other", "gpu-0"))
    assert not _fits(story, one)


def test_late_volumes_and_exclusive_claims() -> None:
    story = EventHistory()
    late = shapes.with_volume(pod("late"), "c")
    volume = shapes.local_volume("v", "n")
    story.add(0, node(), shapes.volume_claim("c", POOL, late=True), volume, late)
    assert not _fits(story, late), "the volume is not available yet"
    story.change(1, volume, status={"phase": "Available"})
    assert _fits(story, late)
    only = shapes.volume_claim("only", POOL, late=False, mode="ReadWriteOncePod", volume="o")
    first, second = (shapes.with_volume(pod(name), "only") for name in ("first", "second"))
    story.add(2, only, shapes.csi_volume("o", "ReadWriteOncePod"), first, second)
    assert _fits(story, second)
    story.bind(3, first, "n")
    assert not _fits(story, second)


def test_shares_of_gpus() -> None:
    story = EventHistory()
    half = {"gpu-fraction": "0.5"}
    pods = [pod(f"pod-{number}", annotations=half, labels={"runai-gpu-group": "g"}) for number in range(2)]
    reservation = pod("r", requests={GPU: "1"}, labels={"runai-gpu-group": "g"})
    reservation["metadata"]["namespace"] = RESERVATIONS
    third = pod("third", annotations=half)
    story.add(0, node(room={GPU: "1"}), *pods, reservation, third)
    assert _fits(story, third), "a free GPU"
    story.bind(1, reservation, "n")
    story.bind(1, pods[0], "n")
    assert _fits(story, third), "half of the GPU"
    story.bind(1, pods[1], "n")
    assert not _fits(story, third)


@pytest.mark.parametrize(
    ("cpu", "capability", "fits"),
    [
        pytest.param("4", "", True, id="whole gang"),
        pytest.param("6", "", False, id="one of two"),
        pytest.param("4", "6", False, id="beyond the queue's capability"),
    ],
)
def test_gangs_fit_as_a_whole(cpu: str, capability: str, fits: bool) -> None:
    story = EventHistory()
    story.add(0, node(), shapes.queue("q", 1, capability), shapes.pod_group("g", POOL, 2, "q"))
    members = [shapes.of_batch(pod(f"g-{number}", cpu=cpu), "g") for number in range(2)]
    story.add(0, *members)
    assert [_fits(story, each) for each in members] == [fits, fits]
