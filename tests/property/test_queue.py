"""The scheduling queue with heaps, index, shared hint results and slices equals its naive twin after any history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
)
from bayplan.framework.api.status import SUCCESS, Status, unresolvable
from bayplan.framework.runtime.nominator import Nominator
from bayplan.objects.core import DEFAULT_SCHEDULER_NAME, Pod
from bayplan.objects.meta import KubeObject
from bayplan.plugins.priority_sort import PrioritySort
from bayplan.plugins.scheduling_gates import SchedulingGates
from bayplan.queue import QueueProfile, QueueSettings, SchedulingQueue, SubQueue, unschedulable_pods
from bayplan.testing import make_node, make_pod
from naive.queue import NaiveQueue

PLUGINS = ("A", "B", "C", "D")
NAMES = tuple(f"p{number}" for number in range(9))
EVENTS = (
    ClusterEvent(EventResource.NODE, ActionType.ADD),
    ClusterEvent(EventResource.NODE, ActionType.UPDATE_NODE_LABEL),
    ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE),
    ClusterEvent(EventResource.ASSIGNED_POD, ActionType.UPDATE),
    ClusterEvent(EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.UPDATE),
    ClusterEvent(EventResource.ANY, ActionType.ALL, "Everybody"),
)


def by_color(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    item = new or old
    return QueueingHint.QUEUE if item is not None and pod.labels.get("color") == item.name else QueueingHint.SKIP


def by_color_of_label(color: str, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    item = new or old
    return QueueingHint.QUEUE if item is not None and color == item.name else QueueingHint.SKIP


def by_identity(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    item = new or old
    return QueueingHint.QUEUE if isinstance(item, Pod) and item.uid == pod.uid else QueueingHint.SKIP


def by_difference(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    item = new or old
    return QueueingHint.SKIP if isinstance(item, Pod) and item.uid == pod.uid else QueueingHint.QUEUE


def by_name(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    return QueueingHint.QUEUE if pod.name in ("p1", "p4", "p7") else QueueingHint.SKIP


def fails(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    raise ValueError("a hint that fails")


def color(pod: Pod) -> str:
    return pod.labels.get("color", "")


def color_unless_shy(pod: Pod) -> str | None:
    return None if pod.name in ("p2", "p5") else color(pod)


def broken(pod: Pod) -> str:
    raise KeyError(pod.name)


HINTS: tuple[tuple[Any, Any, Any], ...] = (
    (None, None, None),
    (by_color, color, None),
    (by_color, color, by_color_of_label),
    (by_color, color_unless_shy, None),
    (by_color, broken, None),
    (by_color, None, None),
    (by_identity, no_hint_key, None),
    (by_difference, no_hint_key, None),
    (by_name, None, None),
    (fails, no_hint_key, None),
)


def gate(pod: Pod, first: str) -> Status:
    refusals = {
        "SchedulingGates": SchedulingGates().pre_enqueue(pod),
        "A": unresolvable("held") if pod.labels.get("hold") else None,
    }
    for plugin in sorted(refusals, key=lambda name: name != first):
        refusal = refusals[plugin]
        if refusal is not None:
            return refusal.by(plugin)
    return SUCCESS


def any_registrations(chance: random.Random) -> tuple[ClusterEventWithHint, ...]:
    found = []
    for _ in range(chance.randint(0, 3)):
        event = chance.choice(EVENTS[:-1])
        resource = EventResource.POD if event.resource == EventResource.ASSIGNED_POD else event.resource
        action = event.action | chance.choice((ActionType(0), ActionType.ADD, ActionType.UPDATE))
        found.append(ClusterEventWithHint(resource, action, *chance.choice(HINTS)))
    return tuple(found)


def any_pod(chance: random.Random) -> Pod:
    labels = {"color": chance.choice(("red", "blue"))} if chance.random() < 0.8 else {}
    if chance.random() < 0.1:
        labels["hold"] = "yes"
    gates = ("gate",) if chance.random() < 0.15 else ()
    return make_pod(chance.choice(NAMES), labels=labels, priority=chance.randint(-1, 1), gates=gates)


def any_item(chance: random.Random) -> KubeObject:
    if chance.random() < 0.5:
        return make_node(chance.choice(("red", "blue")))
    return make_pod(chance.choice(NAMES), node="n")


def any_plugins(chance: random.Random) -> frozenset[str]:
    return frozenset(chance.sample((*PLUGINS, "Nobody"), chance.choice((0, 1, 1, 2, 3))))


def any_step(chance: random.Random) -> tuple[Any, ...]:
    what = chance.choices(
        ("set", "pop", "fail", "done", "event", "delete", "activate", "flush", "flush parked", "wait"),
        (20, 24, 22, 2, 16, 2, 3, 4, 3, 4),
    )[0]
    match what:
        case "set":
            return what, any_pod(chance)
        case "fail":
            pending = any_plugins(chance) if chance.random() < 0.3 else frozenset[str]()
            return what, chance.randint(0, 4), any_plugins(chance), pending
        case "done":
            return what, chance.randint(0, 4)
        case "event":
            at_most = 0 if chance.random() < 0.2 else None
            return what, chance.choice(EVENTS), any_item(chance), chance.random() < 0.5, at_most
        case "delete" | "activate":
            return what, chance.choice(NAMES)
        case "wait":
            return what, chance.choice((0.05, 0.9, 1.0, 2.5, 200.0, 301.0))
    return (what,)


class Both:
    """The queue and its twin, with the same operations."""

    def __init__(self, table: dict[str, tuple[ClusterEventWithHint, ...]], *, early: bool) -> None:
        self.clock = ManualClock()
        self.pods: dict[str, Pod] = {}
        self.flying: list[Any] = []
        self.twin = NaiveQueue(table, gate, self.clock, early=early)
        self.queue = SchedulingQueue(
            {DEFAULT_SCHEDULER_NAME: QueueProfile(table, gate)},
            PrioritySort().sort_key,
            clock=self.clock,
            pods=self.pods,
            nominations=Nominator(),
            settings=QueueSettings(pop_from_backoff=early),
        )

    def take(self, operation: tuple[Any, ...]) -> None:
        self.clock.advance(0.001)
        what, *args = operation
        getattr(self, what.replace(" ", "_"))(*args)
        assert self.state() == self.twin.state(), operation

    def set(self, pod: Pod) -> None:
        old = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        if old is None and not any(each.uid == pod.uid for each in self.flying):
            self.queue.add(pod)
            self.twin.add(pod)
        elif old is not None:
            self.queue.update(old, pod)
            self.twin.update(pod)
        else:
            del self.pods[pod.uid]  # deleted, and its attempt still runs: no pod is created with the same uid

    def delete(self, name: str) -> None:
        pod = self.pods.pop(make_pod(name).uid, None)
        if pod is not None:
            self.queue.delete(pod)
            self.twin.delete(pod)

    def activate(self, name: str) -> None:
        pod = self.pods.get(make_pod(name).uid)
        if pod is not None:
            self.queue.activate([pod])
            self.twin.activate(pod)

    def pop(self) -> None:
        queued, entry = self.queue.pop(), self.twin.pop()
        assert (queued and (queued.uid, queued.attempts)) == (entry and (entry.pod.uid, entry.attempts))
        if queued is not None:
            self.flying.append(queued)

    def fail(self, slot: int, unschedulable: frozenset[str], pending: frozenset[str]) -> None:
        if self.flying:
            queued, entry = self.landed(slot)
            self.queue.requeue(queued, unschedulable, pending)
            self.twin.fail(entry, set(unschedulable), set(pending))

    def done(self, slot: int) -> None:
        if self.flying:
            queued, entry = self.landed(slot)
            self.queue.done(queued.uid)
            self.pods.pop(queued.uid, None)
            self.twin.done(entry)

    def landed(self, slot: int) -> tuple[Any, Any]:
        number = slot % len(self.flying)
        return self.flying.pop(number), self.twin.flying[number]

    def event(self, event: ClusterEvent, item: KubeObject, gone: bool, at_most: int | None) -> None:
        old, new = (item, None) if gone else (None, item)
        self.queue.move_all_on_event(event, old, new, at_most=at_most)
        self.twin.event(event, old, new, at_most)

    def flush(self) -> None:
        sum(self.queue.flush_backoff())
        self.twin.flush_backoff()

    def flush_parked(self) -> None:
        sum(self.queue.flush_unschedulable())
        self.twin.flush_parked()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def state(self) -> dict[str, Any]:
        queue = self.queue
        backoff = queue.pods_in(SubQueue.BACKOFF)
        return {
            "active": [each.pod.name for each in queue.pods_in(SubQueue.ACTIVE)],
            "backoff": sorted((each.pod.name, queue.backoff_expires_at(each)) for each in backoff),
            "first to be popped early": [each.pod.name for each in backoff[:1]] if self.twin.early else [],
            "error": sorted(
                (each.pod.name, queue.backoff_expires_at(each)) for each in queue.pods_in(SubQueue.ERROR_BACKOFF)
            ),
            "parked": sorted(
                (each.pod.name, each.gated_by, *sorted(each.rejectors))
                for each in queue.pods_in(SubQueue.UNSCHEDULABLE)
            ),
            "flying": [pod.name for pod in queue.in_flight()],
        }


@pytest.fixture(autouse=True, params=[1, 2, 256], ids=lambda size: f"slices-of-{size}")
def slices(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unschedulable_pods, "CLASSES_PER_SLICE", request.param)
        yield


@pytest.mark.parametrize("seed", range(12))
def test_the_queue_agrees_with_its_naive_twin(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        table = {plugin: any_registrations(chance) for plugin in PLUGINS}
        both = Both({**table, "SchedulingGates": SchedulingGates.events_to_register}, early=chance.random() < 0.7)
        for _ in range(150):
            both.take(any_step(chance))
        counts = both.queue.counts()
        gated = sum(bool(each[1]) for each in both.state()["parked"])
        assert counts["gated"] == gated
        assert counts["unschedulable"] == len(both.state()["parked"]) - gated
