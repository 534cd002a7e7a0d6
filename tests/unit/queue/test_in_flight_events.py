"""Events stored for pods in flight: each pod reads the events since its pop, and older events are released."""

from __future__ import annotations

import weakref
from collections import Counter

import pytest

from bayplan.framework.runtime.object_changes import NODE_ADD
from bayplan.objects.meta import KubeObject
from bayplan.queue import QueueCounters
from bayplan.queue.in_flight_events import InFlightPods
from bayplan.queue.recorder import POD_POPPED
from support.builders.framework import make_pod

PODS = [make_pod(f"p{number}") for number in range(1000)]


class Node(KubeObject, frozen=True, weakref=True, gc=True):
    """An object of an event whose release a test can observe."""


class World:
    """Pods in flight, and a plain list of all events."""

    def __init__(self) -> None:
        self.counters = QueueCounters()
        self.flying = InFlightPods(self.counters)
        self.noted: list[weakref.ref[Node]] = []
        self._popped: dict[str, int] = {}  # uid -> the number of events before it

    def pop(self, number: int) -> None:
        self.flying.add(PODS[number])
        self._popped[PODS[number].uid] = len(self.noted)

    def event(self) -> None:
        node = Node()
        self.noted.append(weakref.ref(node))
        self.flying.add_event(NODE_ADD, None, node)

    def done(self, number: int) -> None:
        self.flying.done(PODS[number].uid)
        self._popped.pop(PODS[number].uid, None)

    def released(self) -> int:
        return sum(each() is None for each in self.noted)

    def check(self) -> None:
        """Check that every pod has the events since its pop, and that the counters match the stored events."""
        for uid, first in self._popped.items():
            found = self.flying.events_since(uid)
            assert found is not None
            assert [each.new for each in found] == [each() for each in self.noted[first:]]
            assert None not in [each.new for each in found]
        needed = len(self.noted) - min(self._popped.values(), default=len(self.noted))
        assert len(self.flying.events()) == needed
        assert +self.counters.in_flight_events == +Counter({POD_POPPED: len(self._popped), NODE_ADD.name: needed})


@pytest.mark.parametrize("at_once", [1, 2, 3, 20])
def test_under_steady_load_pods_have_their_events_and_older_ones_are_released(at_once: int) -> None:
    """There is always a pod in flight, so the list of events never becomes empty by itself."""
    world = World()
    for number in range(1000):
        world.pop(number)
        world.event()
        if number >= at_once:
            world.done(number - at_once)
        world.check()
        assert number - world.released() <= 256 + at_once


def test_the_events_of_the_longest_attempt_are_stored_until_it_ends() -> None:
    world = World()
    world.pop(0)
    for number in range(1, 600):
        world.pop(number)
        world.event()
        world.done(number)
    world.check()
    assert world.released() == 0
    world.done(0)
    world.check()
    assert world.released() == len(world.noted)


def test_without_a_pod_in_flight_no_event_is_stored() -> None:
    world = World()
    world.event()
    world.check()
    assert world.released() == 1
    world.pop(0)
    world.event()
    world.done(0)
    world.event()
    world.check()
    assert world.released() == 3


def test_a_pod_that_is_done_twice_counts_once() -> None:
    world = World()
    world.pop(0)
    world.pop(1)
    world.event()
    for _ in range(2):
        world.done(0)
        world.check()
    assert world.flying.events_since(PODS[0].uid) is None
