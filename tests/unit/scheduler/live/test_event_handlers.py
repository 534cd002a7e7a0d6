"""What a change that the API server tells does to the cache and to the queue."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bayplan.app import known_plugins
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.config.load import load_default
from bayplan.framework.api.events import ClusterEvent
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.storage import CsiDriver, PersistentVolumeClaim
from bayplan.queue import SchedulingQueue
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.event_handlers import EventHandlers
from bayplan.scheduler.live.queue_factory import new_queue
from bayplan.snapshot import PodInfo
from support.builders.devices import make_claim
from support.builders.framework import make_node, make_pod, replace_fields


class Listening(SchedulingQueue):
    """A queue that writes down what it is told."""

    told: list[str]

    def move_in_slices(
        self, event: ClusterEvent, old: Any = None, new: Any = None, *, at_most: int | None = None
    ) -> Any:
        self.told.append(event.name + (f"<={at_most}" if at_most is not None else ""))
        return super().move_in_slices(event, old, new, at_most=at_most)


class World:
    def __init__(self, *, gangs: bool = False) -> None:
        self.clock = ManualClock()
        registry = known_plugins()
        self.engine = PodEngine(
            load_default(args_kinds=registry.args_kinds), registry, Cache(), clock=self.clock, chance=random.Random(0)
        )
        self.cache = self.engine.cache
        self.queue = new_queue(self.engine, Listening, clock=self.clock)
        self.queue.told = []
        self.routing = EventHandlers(self.engine, self.queue, gangs=gangs)

    def told(self, old: KubeObject | None, new: KubeObject | None) -> list[str]:
        self.queue.told = []
        self.routing.handle(old, new)
        return self.queue.told


def version(pod: Pod, number: int, **fields: Any) -> Pod:
    return replace_fields(replace_fields(pod, **fields), metadata={"resource_version": str(number)})


def test_pods_on_nodes_are_counted_whoever_placed_them() -> None:
    world = World()
    placed = make_pod("placed", node="n", scheduler_name="somebody-else")
    assert world.told(None, placed) == ["AssignedPodAdd"]
    labelled = replace_fields(placed, metadata={"labels": {"a": "b"}})
    assert world.told(placed, labelled) == ["AssignedPodUpdatePodLabel"]
    assert world.cache.pod(placed.uid) is labelled
    assert world.told(labelled, None) == ["AssignedPodDelete"]
    assert world.cache.pod(placed.uid) is None


def test_pods_without_a_node_wait_if_they_are_ours() -> None:
    world = World()
    pod = make_pod()
    assert world.told(None, pod) == []
    assert world.queue.counts()["active"] == 1
    assert world.engine.pending == {pod.uid: pod}
    assert world.told(None, make_pod("other", scheduler_name="somebody-else")) == []
    assert world.queue.counts()["active"] == 1
    assert world.told(pod, None) == []
    assert (len(world.queue), world.engine.pending) == (0, {})


def test_with_gangs_a_new_pod_may_be_what_others_wait_for() -> None:
    assert World(gangs=True).told(None, make_pod()) == ["UnschedulablePodAdd"]


def test_a_pod_that_gets_a_node_leaves_the_queue() -> None:
    world = World()
    pod = make_pod()
    world.routing.handle(None, pod)
    assert world.told(pod, pod.bound_to("n")) == ["AssignedPodAdd"]
    assert (len(world.queue), world.engine.pending) == (0, {})
    assert world.cache.pod(pod.uid) is not None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_counts_as_gone(phase: str) -> None:
    world = World()
    pod = make_pod(node="n")
    world.routing.handle(None, pod)
    ended = replace_fields(pod, status={"phase": phase})
    assert world.told(pod, ended) == ["AssignedPodDelete"]
    assert world.told(ended, replace_fields(ended, metadata={"labels": {"a": "b"}})) == []
    assert world.told(ended, None) == []
    assert world.cache.pod_count == 0


def test_the_same_version_told_again_does_nothing() -> None:
    world = World()
    pod = make_pod()
    world.routing.handle(None, pod)
    popped = world.queue.pop()
    assert popped is not None
    world.queue.done(popped.uid)
    world.routing.handle(pod, pod)
    assert len(world.queue) == 0


def test_a_nomination_that_ends_wakes_those_who_counted_it() -> None:
    world = World()
    pod = make_pod(nominated="n", priority=7)
    world.routing.handle(None, pod)
    moved = version(pod, 2, status={"nominated_node_name": "m"})
    assert world.told(pod, moved) == ["AssignedPodDelete<=7"]
    assert world.told(moved, None) == ["AssignedPodDelete<=7"]


def test_an_assumed_pod_is_only_watched_for_its_end() -> None:
    world = World()
    pod = make_pod()
    world.routing.handle(None, make_node("n"))
    world.routing.handle(None, pod)
    popped = world.queue.pop()
    assert popped is not None
    world.cache.assume(popped.info.bound_to("n"))
    world.queue.done(pod.uid)
    labelled = version(pod, 2, metadata={"labels": {"a": "b"}})
    assert world.told(pod, labelled) == []
    assert (len(world.queue), world.engine.pending[pod.uid]) == (0, labelled)
    going = version(make_pod(terminating=True), 3)
    assert world.told(labelled, going) == ["AssignedPodDelete"]
    assert not world.cache.is_assumed(pod.uid)


def test_a_deleted_pod_that_waits_at_permit_is_turned_away_there() -> None:
    world = World()
    pod = make_pod()
    world.routing.handle(None, make_node("n"))
    world.routing.handle(None, pod)
    bound = PodInfo(pod).bound_to("n")
    world.cache.assume(bound)
    waiting = world.engine.waiting_pods.add(bound.pod, {"P": 60.0}, 0.0)
    assert world.told(pod, None) == ["AssignedPodDelete"]
    assert waiting.outcome is not None
    assert (waiting.outcome.message, waiting.outcome.plugin) == ("removed", "")
    assert world.cache.is_assumed(pod.uid), "whoever waits for the outcome takes it back"


def test_a_pod_made_anew_under_its_name_is_another_pod() -> None:
    world = World()
    old, new = make_pod(uid="one", node="n"), make_pod(uid="two")
    world.routing.handle(None, old)
    assert world.told(old, new) == ["AssignedPodDelete"]
    assert world.cache.pod_count == 0
    assert list(world.engine.pending) == ["two"]


def test_nodes() -> None:
    world = World()
    node = make_node("n")
    assert world.told(None, node) == ["NodeAdd"]
    assert world.told(node, make_node("n", labels={"a": "b"}, cpu=3)) == [
        "NodeUpdateNodeAllocatable",
        "NodeUpdateNodeLabel",
    ]
    assert world.told(node, node) == []
    assert world.cache.node("n") is node
    assert world.told(node, None) == ["NodeDelete"]
    assert world.cache.node_count == 0
    assert world.told(node, None) == ["NodeDelete"]


def test_other_objects_make_only_the_events_that_somebody_registered_for() -> None:
    world = World()
    claim = PersistentVolumeClaim(metadata=ObjectMeta(name="c", namespace="default"))
    driver = CsiDriver(metadata=ObjectMeta(name="d"))
    assert world.told(None, claim) == ["PersistentVolumeClaimAdd"]
    assert world.cache.catalog.persistent_volume_claims == {"default/c": claim}
    assert world.told(claim, claim) == ["PersistentVolumeClaimUpdate"]
    assert world.told(claim, None) == []
    assert world.cache.catalog.persistent_volume_claims == {}
    assert world.told(None, driver) == []
    assert world.told(driver, driver) == ["storage.k8s.io/CSIDriverUpdate"]


def test_a_parked_pod_wakes_on_what_cures_it() -> None:
    world = World()
    world.routing.handle(None, make_node("small", cpu=1))
    world.routing.handle(None, make_pod(cpu="2"))
    popped = world.queue.pop()
    assert popped is not None
    decision = world.engine.try_pod(popped.pod)
    world.queue.requeue(popped, *decision.rejectors)
    world.clock.advance(5)
    assert decision.rejectors == ({"NodeResourcesFit"}, frozenset())
    assert world.routing.handle(None, make_node("tiny", cpu=1)) == 0
    assert world.routing.handle(make_node("tiny", cpu=1), make_node("tiny", cpu=4)) == 1
    assert world.queue.counts()["active"] == 1


CLAIM = "resource.k8s.io/ResourceClaim"


def claim_at(version: int) -> ResourceClaim:
    return replace_fields(make_claim(), metadata={"resource_version": str(version)})


def test_a_claim_that_we_wrote_is_news_when_we_write_it_and_not_again_when_it_is_told() -> None:
    world = World()
    first, written, later = (claim_at(number) for number in (1, 2, 3))
    assert world.told(None, first) == [f"{CLAIM}Add"]
    heard: list[tuple[KubeObject | None, KubeObject | None]] = []
    world.cache.devices.listener = lambda old, new: heard.append((old, new))
    assert world.cache.devices.assume(written)
    assert heard == [(first, written)]
    world.queue.told = []
    assert sum(world.routing.handle_own_write(*heard[0])) == 0
    assert world.queue.told == world.routing.last_events == [f"{CLAIM}Update"]
    assert world.told(first, claim_at(2)) == []
    assert world.told(written, later) == [f"{CLAIM}Update"]
    assert world.told(later, None) == []  # nobody waits for that


def test_a_claim_that_was_not_written_after_all_is_news_again() -> None:
    world = World()
    first, hoped = claim_at(1), claim_at(2)
    world.routing.handle(None, first)
    world.cache.devices.assume(hoped)
    heard: list[tuple[KubeObject | None, KubeObject | None]] = []
    world.cache.devices.listener = lambda old, new: heard.append((old, new))
    world.cache.devices.restore(first.key)
    assert heard == [(hoped, first)]
