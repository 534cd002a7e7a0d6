"""Event handlers: the effect of watch events on the cache and the queue."""

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


class RecordingQueue(SchedulingQueue):
    """A queue that records its events."""

    moves: list[str]

    def move_in_slices(
        self, event: ClusterEvent, old: Any = None, new: Any = None, *, at_most: int | None = None
    ) -> Any:
        self.moves.append(event.name + (f"<={at_most}" if at_most is not None else ""))
        return super().move_in_slices(event, old, new, at_most=at_most)


class Handlers:
    def __init__(self, *, gangs: bool = False) -> None:
        self.clock = ManualClock()
        registry = known_plugins()
        self.engine = PodEngine(
            load_default(args_kinds=registry.args_kinds), registry, Cache(), clock=self.clock, chance=random.Random(0)
        )
        self.cache = self.engine.cache
        self.queue = new_queue(self.engine, RecordingQueue, clock=self.clock)
        self.queue.moves = []
        self.routing = EventHandlers(self.engine, self.queue, gangs=gangs)

    def handle(self, old: KubeObject | None, new: KubeObject | None) -> list[str]:
        self.queue.moves = []
        self.routing.handle(old, new)
        return self.queue.moves


def version(pod: Pod, number: int, **fields: Any) -> Pod:
    return replace_fields(replace_fields(pod, **fields), metadata={"resource_version": str(number)})


def test_pods_on_nodes_are_counted_whichever_scheduler_bound_them() -> None:
    world = Handlers()
    placed = make_pod("placed", node="n", scheduler_name="another-scheduler")
    assert world.handle(None, placed) == ["AssignedPodAdd"]
    labelled = replace_fields(placed, metadata={"labels": {"a": "b"}})
    assert world.handle(placed, labelled) == ["AssignedPodUpdatePodLabel"]
    assert world.cache.pod(placed.uid) is labelled
    assert world.handle(labelled, None) == ["AssignedPodDelete"]
    assert world.cache.pod(placed.uid) is None


def test_pending_pods_of_served_schedulers_are_queued() -> None:
    world = Handlers()
    pod = make_pod()
    assert world.handle(None, pod) == []
    assert world.queue.counts()["active"] == 1
    assert world.engine.pending == {pod.uid: pod}
    assert world.handle(None, make_pod("other", scheduler_name="another-scheduler")) == []
    assert world.queue.counts()["active"] == 1
    assert world.handle(pod, None) == []
    assert (len(world.queue), world.engine.pending) == (0, {})


def test_with_gang_scheduling_a_new_pod_wakes_waiting_pods() -> None:
    assert Handlers(gangs=True).handle(None, make_pod()) == ["UnschedulablePodAdd"]


def test_a_pod_that_gets_a_node_leaves_the_queue() -> None:
    world = Handlers()
    pod = make_pod()
    world.routing.handle(None, pod)
    assert world.handle(pod, pod.bound_to("n")) == ["AssignedPodAdd"]
    assert (len(world.queue), world.engine.pending) == (0, {})
    assert world.cache.pod(pod.uid) is not None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_counts_as_deleted(phase: str) -> None:
    world = Handlers()
    pod = make_pod(node="n")
    world.routing.handle(None, pod)
    ended = replace_fields(pod, status={"phase": phase})
    assert world.handle(pod, ended) == ["AssignedPodDelete"]
    assert world.handle(ended, replace_fields(ended, metadata={"labels": {"a": "b"}})) == []
    assert world.handle(ended, None) == []
    assert world.cache.pod_count == 0


def test_an_event_with_the_same_version_does_nothing() -> None:
    world = Handlers()
    pod = make_pod()
    world.routing.handle(None, pod)
    popped = world.queue.pop()
    assert popped is not None
    world.queue.done(popped.uid)
    world.routing.handle(pod, pod)
    assert len(world.queue) == 0


def test_the_end_of_a_nomination_wakes_pods_that_counted_it() -> None:
    world = Handlers()
    pod = make_pod(nominated="n", priority=7)
    world.routing.handle(None, pod)
    moved = version(pod, 2, status={"nominated_node_name": "m"})
    assert world.handle(pod, moved) == ["AssignedPodDelete<=7"]
    assert world.handle(moved, None) == ["AssignedPodDelete<=7"]


def test_updates_of_an_assumed_pod_are_ignored_until_it_is_deleted() -> None:
    world = Handlers()
    pod = make_pod()
    world.routing.handle(None, make_node("n"))
    world.routing.handle(None, pod)
    popped = world.queue.pop()
    assert popped is not None
    world.cache.assume(popped.info.bound_to("n"))
    world.queue.done(pod.uid)
    labelled = version(pod, 2, metadata={"labels": {"a": "b"}})
    assert world.handle(pod, labelled) == []
    assert (len(world.queue), world.engine.pending[pod.uid]) == (0, labelled)
    going = version(make_pod(terminating=True), 3)
    assert world.handle(labelled, going) == ["AssignedPodDelete"]
    assert not world.cache.is_assumed(pod.uid)


def test_a_deleted_pod_that_waits_at_permit_is_rejected_there() -> None:
    world = Handlers()
    pod = make_pod()
    world.routing.handle(None, make_node("n"))
    world.routing.handle(None, pod)
    bound = PodInfo(pod).bound_to("n")
    world.cache.assume(bound)
    waiting = world.engine.waiting_pods.add(bound.pod, {"P": 60.0}, 0.0)
    assert world.handle(pod, None) == ["AssignedPodDelete"]
    assert waiting.outcome is not None
    assert (waiting.outcome.message, waiting.outcome.plugin) == ("removed", "")
    assert world.cache.is_assumed(pod.uid), "its binding cycle forgets it"


def test_a_pod_that_is_created_again_is_another_pod() -> None:
    world = Handlers()
    old, new = make_pod(uid="one", node="n"), make_pod(uid="two")
    world.routing.handle(None, old)
    assert world.handle(old, new) == ["AssignedPodDelete"]
    assert world.cache.pod_count == 0
    assert list(world.engine.pending) == ["two"]


def test_nodes() -> None:
    world = Handlers()
    node = make_node("n")
    assert world.handle(None, node) == ["NodeAdd"]
    assert world.handle(node, make_node("n", labels={"a": "b"}, cpu=3)) == [
        "NodeUpdateNodeAllocatable",
        "NodeUpdateNodeLabel",
    ]
    assert world.handle(node, node) == []
    assert world.cache.node("n") is node
    assert world.handle(node, None) == ["NodeDelete"]
    assert world.cache.node_count == 0
    assert world.handle(node, None) == ["NodeDelete"]


def test_other_objects_make_only_registered_events() -> None:
    world = Handlers()
    claim = PersistentVolumeClaim(metadata=ObjectMeta(name="c", namespace="default"))
    driver = CsiDriver(metadata=ObjectMeta(name="d"))
    assert world.handle(None, claim) == ["PersistentVolumeClaimAdd"]
    assert world.cache.catalog.persistent_volume_claims == {"default/c": claim}
    assert world.handle(claim, claim) == ["PersistentVolumeClaimUpdate"]
    assert world.handle(claim, None) == []
    assert world.cache.catalog.persistent_volume_claims == {}
    assert world.handle(None, driver) == []
    assert world.handle(driver, driver) == ["storage.k8s.io/CSIDriverUpdate"]


def test_an_unschedulable_pod_is_woken_by_a_registered_event() -> None:
    world = Handlers()
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


def test_an_own_claim_write_is_an_event_once() -> None:
    world = Handlers()
    first, written, later = (claim_at(number) for number in (1, 2, 3))
    assert world.handle(None, first) == [f"{CLAIM}Add"]
    changes: list[tuple[KubeObject | None, KubeObject | None]] = []
    world.cache.devices.listener = lambda old, new: changes.append((old, new))
    assert world.cache.devices.assume(written)
    assert changes == [(first, written)]
    world.queue.moves = []
    (move,) = world.routing.own_write_moves(*changes[0])
    assert sum(move.start(world.queue)) == 0
    assert world.queue.moves == world.routing.last_events == [f"{CLAIM}Update"]
    assert world.handle(first, claim_at(2)) == []
    assert world.handle(written, later) == [f"{CLAIM}Update"]
    assert world.handle(later, None) == []  # no plugin registered for that


def test_a_failed_claim_write_is_an_event_again() -> None:
    world = Handlers()
    first, hoped = claim_at(1), claim_at(2)
    world.routing.handle(None, first)
    world.cache.devices.assume(hoped)
    changes: list[tuple[KubeObject | None, KubeObject | None]] = []
    world.cache.devices.listener = lambda old, new: changes.append((old, new))
    world.cache.devices.restore(first.key)
    assert changes == [(hoped, first)]
