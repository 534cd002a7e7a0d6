"""How events are sent: order, retries, refusals, the bound of the queue; over real sockets on a manual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bayplan.client import CORE_EVENTS, EVENTS, EventSink, GroupVersionResource, ServedResources, event_resource
from bayplan.client.event_sink import EVENTS_PER_EXTRA_SENDER, MAX_EXTRA_SENDERS, MAX_TRIES, SENDERS
from bayplan.clock import ManualClock
from bayplan.errors import LeaseLost
from bayplan.objects.core import ObjectMeta, Pod
from bayplan.telemetry.events import EventRecorder
from support.fakes.http_server import FakeHttpServer, NoAnswer, Reply, Request, ServerAnswer, status
from support.harness.async_tests import async_test, wait_until

UNSCHEDULABLE = {"type": "Warning", "reason": "Unschedulable", "action": "", "note": "no room"}
PATH = "/apis/events.k8s.io/v1/namespaces/team/events"


class EventServer:
    """Keeps events by name, as an API server does; `fails` is asked before."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.fails: list[ServerAnswer] = []

    def route(self, request: Request) -> ServerAnswer:
        if self.fails:
            return self.fails.pop(0)
        name = request.path.rpartition("/")[2]
        if request.method == "POST":
            name = request.json["metadata"]["name"]
            if name in self.events:
                return status(409, "AlreadyExists", "there already")
            self.events[name] = request.json
        elif name not in self.events:
            return status(404, "NotFound", "no such event")
        else:
            assert request.headers["content-type"] == "application/strategic-merge-patch+json"
            self.events[name] |= request.json
        return Reply(201, self.events[name])

    @property
    def series(self) -> list[int]:
        return [event.get("series", {}).get("count", 1) for event in self.events.values()]


class World:
    def __init__(self, server: FakeHttpServer, store: EventServer, sink: EventSink, clock: ManualClock) -> None:
        self.server = server
        self.store = store
        self.sink = sink
        self.clock = clock
        self.recorder = EventRecorder("s", host="h", clock=clock, chance=random.Random(0), post=sink.post)

    def failed(self, name: str = "p", version: str = "1") -> None:
        meta = ObjectMeta(name=name, namespace="team", uid=name, resource_version=version)
        self.recorder.record_failed_scheduling(Pod(metadata=meta), "no room")

    async def drained(self, *, tick_s: float = 0.0) -> None:
        done = asyncio.ensure_future(self.sink.drained())
        await wait_until(done.done, tick=lambda: self.clock.advance(tick_s))


@asynccontextmanager
async def world(*, sending: bool = True, resource: GroupVersionResource = EVENTS, **more: Any) -> AsyncIterator[World]:
    store, clock = EventServer(), ManualClock()
    async with FakeHttpServer(store.route) as server, server.client(clock) as client:
        sink = EventSink(client, resource=resource, **more)
        running = asyncio.ensure_future(sink.run()) if sending else None
        try:
            yield World(server, store, sink, clock)
        finally:
            if running is not None:
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running


@async_test
async def test_events_are_created() -> None:
    async with world() as w:
        for name in ("a", "b", "c"):
            w.failed(name)
        await w.drained()
        assert sorted(event["regarding"]["name"] for event in w.store.events.values()) == ["a", "b", "c"]
        assert set(w.server.request_lines()) == {f"POST {PATH}"}
        assert (w.sink.stored, w.sink.refused, w.sink.dropped, w.sink.waiting) == (3, 0, 0, 0)


@async_test
async def test_a_series_is_told_after_its_first_event_even_when_both_wait() -> None:
    async with world() as w:
        for _ in range(5):
            w.failed()
        await w.drained()
        assert w.store.series == [2]
        assert [each.split()[0] for each in w.server.request_lines()] == ["POST", "PATCH"]


@async_test
async def test_a_series_that_goes_on_is_written_every_half_an_hour_and_ends_without_a_write() -> None:
    async with world() as w:
        await wait_until(lambda: w.clock.sleepers)  # the first sweep is over

        async def five_minutes(*, failing: bool) -> None:
            if failing:
                w.failed()
                await w.drained()
            for _ in range(5):
                w.clock.advance(60)
                await asyncio.sleep(0)
                await w.drained()

        for _ in range(8):
            await five_minutes(failing=True)
        (written,) = w.store.series
        assert 6 <= written <= 8
        asked = len(w.server.requests)
        assert asked == 3, "the first, the second, and one after half an hour"
        for _ in range(24):
            await five_minutes(failing=False)
        assert len(w.server.requests) == asked
        w.failed()
        await w.drained()
        assert w.store.series == [written, 1]


@async_test
async def test_recorders_of_both_groups_share_a_sink() -> None:
    async with world() as w:
        core = EventRecorder("b", host="h", clock=w.clock, chance=random.Random(0), post=w.sink.post_core)
        w.failed("p")
        for _ in range(3):
            core.record(Pod(metadata=ObjectMeta(name="q", namespace="team", uid="q")), **UNSCHEDULABLE)
            await w.drained()
        assert [each.partition("/team/")[0] for each in w.server.request_lines()] == [
            "POST /apis/events.k8s.io/v1/namespaces",
            "POST /api/v1/namespaces",
            *["PATCH /api/v1/namespaces"] * 2,
        ]
        assert [each.get("count") for each in w.store.events.values()] == [None, 3]


@async_test
async def test_a_series_whose_event_was_removed_is_created_anew() -> None:
    async with world() as w:
        w.failed()
        await w.drained()
        w.store.events.clear()
        w.failed()
        await w.drained()
        assert w.store.series == [2]
        assert [each.split()[0] for each in w.server.request_lines()] == ["POST", "PATCH", "POST"]


@async_test
async def test_an_event_that_is_there_when_its_series_is_made_anew_is_patched_later() -> None:
    async with world() as w:
        w.failed()
        await w.drained()
        w.store.fails = [status(404, "NotFound"), status(409, "AlreadyExists")]
        w.failed()
        await w.drained(tick_s=1.0)
        assert w.store.series == [2]


@async_test
async def test_what_does_not_reach_the_server_is_tried_again_some_ten_seconds_later() -> None:
    async with world() as w:
        w.store.fails = [Reply(raw=b"", close=True), Reply(raw=b"", close=True)]
        w.failed()
        await wait_until(lambda: len(w.server.requests) == 1)
        await wait_until(lambda: w.clock.sleepers > 1)
        w.clock.advance(9.9)
        await asyncio.sleep(0.01)
        assert len(w.server.requests) == 1
        await w.drained(tick_s=0.5)
        assert w.clock.monotonic_s() >= 20
        assert len(w.server.requests) == 3
        assert w.store.series == [1]


@async_test
async def test_twelve_tries_are_enough() -> None:
    async with world() as w:
        w.store.fails = [Reply(raw=b"", close=True) for _ in range(100)]
        w.failed()
        await w.drained(tick_s=1.0)
        assert len(w.server.requests) == MAX_TRIES
        assert (w.sink.stored, w.sink.refused) == (0, 1)


@pytest.mark.parametrize(
    "answer",
    [
        status(403, "Forbidden", "the namespace is being terminated"),
        status(422, "Invalid", "note: too long"),
        status(409, "AlreadyExists", "of an earlier life"),
        status(500, "InternalError", "etcd is away"),
    ],
    ids=lambda answer: str(answer.status),
)
@async_test
async def test_what_the_server_refuses_is_given_up(answer: Reply) -> None:
    async with world() as w:
        w.store.fails = [answer]
        w.failed()
        await w.drained()
        assert len(w.server.requests) == 1
        assert (w.sink.stored, w.sink.refused) == (0, 1)
        w.failed("q")
        await w.drained()
        assert w.sink.stored == 1, "and the next one goes"


@async_test
async def test_without_the_lease_nothing_is_written() -> None:
    class Lost:
        def check(self) -> None:
            raise LeaseLost("somebody else leads")

        async def hold_back(self) -> None:
            self.check()

    async with world() as w:
        w.sink.client.set_guard(Lost())
        w.failed()
        await w.drained()
        assert w.server.requests == []


@async_test
async def test_a_hung_server_holds_no_more_than_the_queue_and_the_newest_are_dropped() -> None:
    async with world(senders=2, most_waiting=3) as w:
        w.store.fails = [NoAnswer(), NoAnswer()]
        for number in range(2):
            w.failed(f"p{number}")
        await wait_until(lambda: len(w.server.requests) == 2)
        for number in range(2, 10):
            w.failed(f"p{number}")
        assert (w.sink.dropped, w.sink.waiting) == (5, 5)
        await w.drained(tick_s=1.0)
        assert sorted(e["regarding"]["name"] for e in w.store.events.values()) == ["p0", "p1", "p2", "p3", "p4"]


@pytest.mark.parametrize(
    ("gives_way", "many", "at_once"),
    [
        (True, 1000, SENDERS),
        (False, 1000, SENDERS + MAX_EXTRA_SENDERS),
        (False, SENDERS + EVENTS_PER_EXTRA_SENDER - 1, SENDERS),
    ],
)
@async_test
async def test_what_has_heaped_up_is_sent_by_many_unless_others_come_first(
    gives_way: bool, many: int, at_once: int
) -> None:
    """Nor by more than it is worth: each has to open a connection."""
    store, clock, gate = EventServer(), ManualClock(), asyncio.Event()
    asked = held = 0

    async def answer(request: Request) -> ServerAnswer:
        nonlocal asked, held
        asked += 1
        if asked > (2 * MAX_EXTRA_SENDERS if many > 2 * MAX_EXTRA_SENDERS else SENDERS):
            held += 1
            await gate.wait()
        return store.route(request)

    async with FakeHttpServer(answer) as server, server.client(clock) as client:
        sink = EventSink(client, gives_way=lambda: gives_way)
        running, events = asyncio.ensure_future(sink.run()), World(server, store, sink, clock)
        for number in range(many):
            events.failed(f"p{number}")
        await wait_until(lambda: held == at_once)
        for _ in range(100):
            await asyncio.sleep(0)
        assert held == at_once
        gate.set()
        await events.drained()
        assert len(store.events) == many
        running.cancel()


@async_test
async def test_a_bug_in_sending_costs_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        sent = w.sink.client.create
        monkeypatch.setattr(w.sink.client, "create", None)
        w.failed()
        await w.drained()
        monkeypatch.setattr(w.sink.client, "create", sent)
        w.failed("q")
        await w.drained()
        assert (w.sink.stored, w.sink.refused) == (1, 1)


@async_test
async def test_a_server_without_the_group_gets_core_events() -> None:
    async with world(resource=CORE_EVENTS) as w:
        for _ in range(3):
            w.failed()
        await w.drained()
        (event,) = w.store.events.values()
        assert event["count"] == 3
        assert set(w.server.request_lines()) == {
            "POST /api/v1/namespaces/team/events",
            f"PATCH /api/v1/namespaces/team/events/{event['metadata']['name']}",
        }


@pytest.mark.parametrize(
    ("writable", "resource"),
    [(frozenset({("events.k8s.io/v1", "events")}), EVENTS), (frozenset({("v1", "events")}), CORE_EVENTS)],
    ids=["offered", "missing"],
)
def test_where_events_go(writable: frozenset[tuple[str, str]], resource: GroupVersionResource) -> None:
    assert event_resource(ServedResources("v1.36.4", {}, (), writable)) == resource
