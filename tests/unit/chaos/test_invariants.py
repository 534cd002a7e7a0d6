"""Each invariant of the chaos driver is violated by a history made for it, and by no correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.checks import CHECKERS
from chaos.invariants.capacity import BoundOnce, Capacity, HostPorts
from chaos.invariants.constraints import AntiAffinity, NodeConstraints, Spread
from chaos.invariants.devices import RESERVATIONS, DeviceLeftovers, DevicesOnce, GpuShares, Reservations
from chaos.invariants.evictions import UNIFORM_LABEL, Evictions
from chaos.invariants.gangs import GRACE_S, QueueCapability, WholeGangs
from chaos.invariants.server import Durability, Requests
from chaos.invariants.volumes import ExclusiveClaims, VolumesOfBoundPods, VolumesOnce
from chaos.objects import Tree, uid
from chaos.workload import shapes
from support.builders.chaos_histories import POOL, EventHistory, allocate, bind_request, claim, node, pod

GPU = "nvidia.com/gpu"
ANTI = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
]
VIOLATIONS: dict[type, tuple[str, Callable[[EventHistory], list[str]]]] = {}


def violates(
    checker: type, name: str
) -> Callable[[Callable[[EventHistory], list[str]]], Callable[[EventHistory], list[str]]]:
    def register(story: Callable[[EventHistory], list[str]]) -> Callable[[EventHistory], list[str]]:
        VIOLATIONS[checker] = (name, story)
        return story

    return register


@violates(BoundOnce, "bound-once")
def _bound_twice(story: EventHistory) -> list[str]:
    one = pod("one")
    story.add(0, one)
    story.bind(1, one, "n")
    story.bind(2, one, "m")
    return story.names()


@violates(Capacity, "over-commitment")
def _two_whole_pods(story: EventHistory) -> list[str]:
    one, two = pod("one", cpu="8"), pod("two", cpu="8")
    story.add(0, node(), one, two)
    story.bind(1, one, "n")
    story.bind(2, two, "n")
    return story.names()


@violates(HostPorts, "host-ports")
def _same_port(story: EventHistory) -> list[str]:
    one, two = pod("one", ports=(80,)), pod("two", ports=(80,))
    story.add(0, node(), one, two)
    story.bind(1, one, "n")
    story.bind(2, two, "n")
    return story.names()


@violates(NodeConstraints, "node-constraints")
def _cordoned(story: EventHistory) -> list[str]:
    cordoned, one = node(), pod("one")
    cordoned["spec"]["unschedulable"] = True
    story.add(0, cordoned, one)
    story.bind(20, one, "n")
    return story.names()


@violates(AntiAffinity, "anti-affinity")
def _repelled(story: EventHistory) -> list[str]:
    one, two = pod("one", labels={"app": "a"}, affinity=ANTI), pod("two", labels={"app": "a"})
    story.add(0, node(), one, two)
    story.bind(1, one, "n")
    story.bind(20, two, "n")
    return story.names()


@violates(Spread, "topology-spread")
def _all_in_one_zone(story: EventHistory) -> list[str]:
    pods = [pod(f"pod-{number}", labels={"app": "a"}, topologySpreadConstraints=SPREAD) for number in range(2)]
    story.add(0, node("n", zone="zone-0"), node("m", zone="zone-1"), *pods)
    for number, each in enumerate(pods):
        story.bind(20.0 * (number + 1), each, "n")
    return story.names()


@violates(DevicesOnce, "device-twice")
def _device_of_two_claims(story: EventHistory) -> list[str]:
    story.add(0, claim("one", "gpu-0"), claim("two", "gpu-0"))
    return story.names()


@violates(Reservations, "claim-of-bound-pod")
def _reservation_lost(story: EventHistory) -> list[str]:
    one = shapes.with_claim(pod("one"), "c")
    story.add(0, node(), one)
    held = claim("c", "gpu-0", [one])
    story.add(0, held)
    story.bind(1, one, "n")
    allocate(held, "gpu-0")
    story.change(20, held)
    return story.names()


@violates(GpuShares, "gpu-shares")
def _gpu_given_out_beyond_one(story: EventHistory) -> list[str]:
    pods = [
        pod(f"pod-{number}", annotations={"gpu-fraction": "0.5"}, labels={"runai-gpu-group": "g"})
        for number in range(3)
    ]
    story.add(0, node(), *pods)
    for each in pods:
        story.bind(1, each, "n")
    return story.names()


@violates(DeviceLeftovers, "left-over")
def _request_left(story: EventHistory) -> list[str]:
    one = pod("one")
    story.add(0, one)
    story.add(1, bind_request(one, "n"))
    story.delete(2, one)
    return story.violations_when_empty(100)


@violates(VolumesOnce, "volume-twice")
def _volume_taken(story: EventHistory) -> list[str]:
    volume, claims = shapes.local_volume("v", "n"), [_volume_claim(f"c-{number}") for number in range(2)]
    story.add(0, volume, *claims)
    for number, each in enumerate(claims):
        story.change(number, volume, spec={"claimRef": {"uid": uid(each)}})
    return story.names()


@violates(ExclusiveClaims, "volume-limits")
def _two_users_of_an_exclusive_claim(story: EventHistory) -> list[str]:
    only = shapes.volume_claim("only", POOL, late=False, mode="ReadWriteOncePod")
    pods = [shapes.with_volume(pod(f"pod-{number}"), "only") for number in range(2)]
    story.add(0, node("n"), node("m"), only, *pods)
    story.bind(1, pods[0], "n")
    story.bind(2, pods[1], "m")
    return story.names()


@violates(VolumesOfBoundPods, "volume-of-bound-pod")
def _bound_where_the_volume_is_not(story: EventHistory) -> list[str]:
    volume, wanted, one = shapes.local_volume("v", "m"), _volume_claim("c"), shapes.with_volume(pod("one"), "c")
    story.add(0, node("n"), node("m"), wanted, volume, one)
    story.change(1, volume, spec={"claimRef": {"uid": uid(wanted)}})
    story.change(1, wanted, spec={"volumeName": "v"})
    story.bind(2, one, "n")
    return story.names()


@violates(WholeGangs, "partial-gang")
def _half_a_gang(story: EventHistory) -> list[str]:
    pods = _gang(story)
    story.bind(1, pods[0], "n")
    return story.names(2 * GRACE_S)


@violates(QueueCapability, "queue-capability")
def _queue_beyond_its_capability(story: EventHistory) -> list[str]:
    pods = _gang(story, capability="3")
    for each in pods:
        story.bind(20, each, "n")
    return story.names()


@violates(Evictions, "needless-eviction")
def _evicted_without_need(story: EventHistory) -> list[str]:
    low = pod("low", labels={UNIFORM_LABEL: "s"})
    story.add(0, node(), low)
    story.bind(1, low, "n")
    story.change(20, low, metadata={"deletionTimestamp": "now"})
    return story.names()


@violates(Durability, "lost-write")
def _version_gone_after_restart(story: EventHistory) -> list[str]:
    one = pod("one")
    story.add(0, one)
    older = {**one, "metadata": dict(one["metadata"])}
    story.bind(1, one, "n")
    story.world.record.relist("Pod", [older], 2.0)
    return story.names()


@violates(Requests, "bind-requests")
def _two_live_requests(story: EventHistory) -> list[str]:
    one = pod("one")
    story.add(0, one)
    story.add(1, bind_request(one, "n"), bind_request(one, "m", "another"))
    return story.names()


def _volume_claim(name: str) -> Tree:
    return shapes.volume_claim(name, POOL, late=True)


def _gang(story: EventHistory, capability: str = "") -> list[Tree]:
    """Two members of 2 CPUs each, in a queue."""
    story.add(0, node(), shapes.queue("q", 1, capability), shapes.pod_group("g", POOL, 2, "q"))
    pods = [shapes.of_batch(pod(f"g-{number}", cpu="2"), "g") for number in range(2)]
    story.add(0, *pods)
    return pods


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda each: each.__name__)
def test_each_invariant_can_fail(checker: type) -> None:
    name, tell = VIOLATIONS[checker]
    assert name in tell(EventHistory(checker))


def test_a_whole_life_in_order_violates_nothing() -> None:
    story = EventHistory()
    held, late = claim("c"), _volume_claim("v")
    one = shapes.with_volume(shapes.with_claim(pod("one", cpu="8", ports=(80,)), "c"), "v")
    volume = shapes.local_volume("v-0", "n")
    story.add(0, node(), held, late, volume, one)
    story.change(1, volume, spec={"claimRef": {"uid": uid(late)}})
    story.change(1, late, spec={"volumeName": "v-0"})
    allocate(held, "gpu-0", [one])
    story.change(1, held)
    story.add(2, bind_request(one, "n"))
    story.bind(3, one, "n")
    story.change(4, one, status={"phase": "Running"})
    assert story.violations_at_rest(30) == []
    story.world.acts.deleted[uid(one)] = 31
    story.change(31, one, metadata={"deletionTimestamp": "now"})
    story.delete(32, one)
    allocate(held, "")
    story.change(33, held)
    for each in list(story.world.record.all("BindRequest")):
        story.delete(33, each)
    two = pod("two", cpu="8")
    story.add(34, two)
    story.bind(35, two, "n")
    assert story.names() == []


def test_a_pod_that_finished_makes_room() -> None:
    story = EventHistory(Capacity)
    one, two = pod("one", cpu="8"), pod("two", cpu="8")
    story.add(0, node(), one, two)
    story.bind(1, one, "n")
    story.change(2, one, status={"phase": "Succeeded"})
    story.bind(3, two, "n")
    assert story.names() == []


@pytest.mark.parametrize(
    ("more", "resource"),
    [
        pytest.param({"requests": {"memory": "40Gi"}}, "memory", id="memory"),
        pytest.param({"requests": {GPU: "1"}}, GPU, id="extended resource"),
        pytest.param({"cpu": "1m"}, "pods", id="number of pods"),
    ],
)
def test_every_resource_counts(more: dict[str, object], resource: str) -> None:
    story = EventHistory(Capacity)
    one, two = pod("one", **more), pod("two", **more)
    story.add(0, node(pods=1 if resource == "pods" else 9, room={GPU: "1"}), one, two)
    story.bind(1, one, "n")
    assert story.names(20) == []
    story.bind(21, two, "n")
    assert story.names() == ["over-commitment"]
    assert resource in story.found[0].text


@pytest.mark.parametrize(
    ("shrunk_s", "violated"),
    [pytest.param(18.0, [], id="just before"), pytest.param(2.0, ["over-commitment"], id="long before")],
)
def test_a_node_that_shrank_is_judged_by_what_could_be_known(shrunk_s: float, violated: list[str]) -> None:
    story = EventHistory(Capacity)
    shrinking, one = node(), pod("one", cpu="8")
    story.add(0, shrinking, one)
    story.change(shrunk_s, shrinking, status={"allocatable": {"cpu": "4", "memory": "64Gi", "pods": "20"}})
    story.bind(20, one, "n")
    assert story.names() == violated


def test_a_silent_watch_makes_old_states_possible() -> None:
    story = EventHistory(NodeConstraints)
    changing, one = node(), pod("one")
    story.add(0, changing, one)
    story.world.knowledge.cut_off(1.0)
    story.change(2, changing, spec={"unschedulable": True})
    story.bind(60, one, "n")
    assert story.names() == []


def test_a_reservation_may_go_before_the_pod_is_bound_and_after_it_ended() -> None:
    story = EventHistory(Reservations)
    one = shapes.with_claim(pod("one"), "c")
    story.add(0, node(), one)
    held = claim("c", "gpu-0", [one])
    story.add(1, held)
    allocate(held, "")
    story.change(2, held)
    allocate(held, "gpu-0", [one])
    story.change(3, held)
    story.bind(4, one, "n")
    story.change(20, one, status={"phase": "Succeeded"})
    allocate(held, "")
    story.change(21, held)
    assert story.names() == []


def test_a_pod_on_another_node_than_its_devices_is_found() -> None:
    story = EventHistory(Reservations)
    one = shapes.with_claim(pod("one"), "c")
    story.add(0, node(), node("m"), one)
    story.add(0, claim("c", "gpu-0", [one], pool="m"))
    story.bind(1, one, "n")
    assert story.names() == ["claim-of-bound-pod"]


def test_csi_limits_count_volumes_of_a_node() -> None:
    story = EventHistory(ExclusiveClaims)
    story.add(0, node(), shapes.csi_node("n", 1))
    for number in range(2):
        volume = shapes.csi_volume(f"v-{number}", "ReadWriteOnce")
        wanted = shapes.volume_claim(f"c-{number}", POOL, late=False, volume=f"v-{number}")
        one = shapes.with_volume(pod(f"pod-{number}"), f"c-{number}")
        story.add(0, wanted, volume, one)
        story.bind(number + 1, one, "n")
    assert story.names() == ["volume-limits"]


def test_a_share_without_reservation_is_found_in_calm() -> None:
    story = EventHistory(GpuShares)
    one = pod("one", annotations={"gpu-fraction": "0.5"}, labels={"runai-gpu-group": "g"})
    story.add(0, node(), one)
    story.bind(1, one, "n")
    assert story.violations_at_rest(10) == ["gpu-shares"]


def test_a_reservation_that_is_left_is_found_in_the_end() -> None:
    story = EventHistory(DeviceLeftovers)
    left = pod("r", labels={"runai-gpu-group": "g"})
    left["metadata"]["namespace"] = RESERVATIONS
    story.add(0, left)
    assert story.violations_when_empty(10) == ["left-over"]


def test_a_gang_that_becomes_whole_in_time_is_in_order() -> None:
    story = EventHistory(WholeGangs)
    pods = _gang(story)
    story.bind(1, pods[0], "n")
    story.bind(GRACE_S / 2, pods[1], "n")
    assert story.names(2 * GRACE_S) == []


def test_a_bound_pod_on_another_node_than_its_request_is_found() -> None:
    story = EventHistory(Requests)
    one = pod("one")
    story.add(0, one)
    story.add(1, bind_request(one, "m"))
    story.bind(2, one, "n")
    assert story.names() == ["bind-requests"]
