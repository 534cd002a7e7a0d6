"""The event sink: order, retries, refusals and queue limit, over real sockets on a manual clock."""

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
    """Stores events by name, as an API server does. Answers in `fails` are used first."""

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


class Harness:
    def __init__(self, server: FakeHttpServer, store: EventServer, sink: EventSink, clock: ManualClock) -> None:
        self.server = server
        self.store = store
        self.sink = sink
        self.clock = clock
        self.recorder = EventRecorder("s", host="h", clock=clock, chance=random.Random(0), post=sink.post)

    def record_failure(self, name: str = "p", version: str = "1") -> None:
        meta = ObjectMeta(name=name, namespace="team", uid=name, resource_version=version)
        self.recorder.record_failed_scheduling(Pod(metadata=meta), "no room")

    async def drain(self, *, tick_s: float = 0.0) -> None:
        done = asyncio.ensure_future(self.sink.drain())
        await wait_until(done.done, tick=lambda: self.clock.advance(tick_s))


@asynccontextmanager
async def event_sink(
    *, sending: bool = True, resource: GroupVersionResource = EVENTS, **options: Any
) -> AsyncIterator[Harness]:
    store, clock = EventServer(), ManualClock()
    async with FakeHttpServer(store.route) as server, server.client(clock) as client:
        sink = EventSink(client, resource=resource, **options)
        running = asyncio.ensure_future(sink.run()) if sending else None
        try:
            yield Harness(server, store, sink, clock)
        finally:
            if running is not None:
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running


@async_test
async def test_events_are_created() -> None:
    async with event_sink() as w:
        for name in ("a", "b", "c"):
            w.record_failure(name)
        await w.drain()
        assert sorted(event["regarding"]["name"] for event in w.store.events.values()) == ["a", "b", "c"]
        assert set(w.server.request_lines()) == {f"POST {PATH}"}
        assert (w.sink.stored, w.sink.refused, w.sink.dropped, w.sink.waiting) == (3, 0, 0, 0)


@async_test
async def test_a_series_is_written_after_its_first_event_when_both_wait() -> None:
    async with event_sink() as w:
        for _ in range(5):
            w.record_failure()
        await w.drain()
        assert w.store.series == [2]
        assert [each.split()[0] for each in w.server.request_lines()] == ["POST", "PATCH"]


@async_test
async def test_an_ongoing_series_is_written_every_half_hour_and_ends_without_a_write() -> None:
    async with event_sink() as w:
        await wait_until(lambda: w.clock.sleepers)  # the first sweep is over

        async def five_minutes(*, failing: bool) -> None:
            if failing:
                w.record_failure()
                await w.drain()
            for _ in range(5):
                w.clock.advance(60)
                await asyncio.sleep(0)
                await w.drain()

        for _ in range(8):
            await five_minutes(failing=True)
        (written,) = w.store.series
        assert 6 <= written <= 8
        request_count = len(w.server.requests)
        assert request_count == 3, "the first event, the second, and one after half an hour"
        for _ in range(24):
            await five_minutes(failing=False)
        assert len(w.server.requests) == request_count
        w.record_failure()
        await w.drain()
        assert w.store.series == [written, 1]


@async_test
async def test_recorders_of_both_groups_share_a_sink() -> None:
    async with event_sink() as w:
        core = EventRecorder("b", host="h", clock=w.clock, chance=random.Random(0), post=w.sink.post_core)
        w.record_failure("p")
        for _ in range(3):
            core.record(Pod(metadata=ObjectMeta(name="q", namespace="team", uid="q")), **UNSCHEDULABLE)
            await w.drain()
        assert [each.partition("/team/")[0] for each in w.server.request_lines()] == [
            "POST /apis/events.k8s.io/v1/namespaces",
            "POST /api/v1/namespaces",
            *["PATCH /api/v1/namespaces"] * 2,
        ]
        assert [each.get("count") for each in w.store.events.values()] == [None, 3]


@async_test
async def test_a_series_whose_event_was_deleted_is_recreated() -> None:
    async with event_sink() as w:
        w.record_failure()
        await w.drain()
        w.store.events.clear()
        w.record_failure()
        await w.drain()
        assert w.store.series == [2]
        assert [each.split()[0] for each in w.server.request_lines()] == ["POST", "PATCH", "POST"]


@async_test
async def test_an_event_that_exists_when_it_is_recreated_is_patched_later() -> None:
    async with event_sink() as w:
        w.record_failure()
        await w.drain()
        w.store.fails = [status(404, "NotFound"), status(409, "AlreadyExists")]
        w.record_failure()
        await w.drain(tick_s=1.0)
        assert w.store.series == [2]


@async_test
async def test_an_event_that_does_not_reach_the_server_is_retried_after_ten_seconds() -> None:
    async with event_sink() as w:
        w.store.fails = [Reply(raw=b"", close=True), Reply(raw=b"", close=True)]
        w.record_failure()
        await wait_until(lambda: len(w.server.requests) == 1)
        await wait_until(lambda: w.clock.sleepers > 1)
        w.clock.advance(9.9)
        await asyncio.sleep(0.01)
        assert len(w.server.requests) == 1
        await w.drain(tick_s=0.5)
        assert w.clock.monotonic_s() >= 20
        assert len(w.server.requests) == 3
        assert w.store.series == [1]


@async_test
async def test_an_event_is_dropped_after_twelve_tries() -> None:
    async with event_sink() as w:
        w.store.fails = [Reply(raw=b"", close=True) for _ in range(100)]
        w.record_failure()
        await w.drain(tick_s=1.0)
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
async def test_a_refused_event_is_dropped(answer: Reply) -> None:
    async with event_sink() as w:
        w.store.fails = [answer]
        w.record_failure()
        await w.drain()
        assert len(w.server.requests) == 1
        assert (w.sink.stored, w.sink.refused) == (0, 1)
        w.record_failure("q")
        await w.drain()
        assert w.sink.stored == 1, "the next event is stored"


@async_test
async def test_no_event_is_written_without_the_lease() -> None:
    class Lost:
        def check(self) -> None:
            raise LeaseLost("another process leads")

        async def hold_back(self) -> None:
            self.check()

    async with event_sink() as w:
        w.sink.client.set_guard(Lost())
        w.record_failure()
        await w.drain()
        assert w.server.requests == []


@async_test
async def test_the_newest_events_are_dropped_when_a_hung_server_fills_the_queue() -> None:
    async with event_sink(senders=2, max_queued=3) as w:
        w.store.fails = [NoAnswer(), NoAnswer()]
        for number in range(2):
            w.record_failure(f"p{number}")
        await wait_until(lambda: len(w.server.requests) == 2)
        for number in range(2, 10):
            w.record_failure(f"p{number}")
        assert (w.sink.dropped, w.sink.waiting) == (5, 5)
        await w.drain(tick_s=1.0)
        assert sorted(e["regarding"]["name"] for e in w.store.events.values()) == ["p0", "p1", "p2", "p3", "p4"]


@pytest.mark.parametrize(
    ("should_limit_senders", "count", "concurrent"),
    [
        (True, 1000, SENDERS),
        (False, 1000, SENDERS + MAX_EXTRA_SENDERS),
        (False, SENDERS + EVENTS_PER_EXTRA_SENDER - 1, SENDERS),
    ],
)
@async_test
async def test_extra_senders_send_a_backlog_unless_other_writes_have_priority(
    should_limit_senders: bool, count: int, concurrent: int
) -> None:
    """Extra senders start only when enough events wait: each sender opens a connection."""
    store, clock, gate = EventServer(), ManualClock(), asyncio.Event()
    request_count = blocked = 0

    async def answer(request: Request) -> ServerAnswer:
        nonlocal request_count, blocked
        request_count += 1
        if request_count > (2 * MAX_EXTRA_SENDERS if count > 2 * MAX_EXTRA_SENDERS else SENDERS):
            blocked += 1
            await gate.wait()
        return store.route(request)

    async with FakeHttpServer(answer) as server, server.client(clock) as client:
        sink = EventSink(client, should_limit_senders=lambda: should_limit_senders)
        running, events = asyncio.ensure_future(sink.run()), Harness(server, store, sink, clock)
        for number in range(count):
            events.record_failure(f"p{number}")
        await wait_until(lambda: blocked == concurrent)
        for _ in range(100):
            await asyncio.sleep(0)
        assert blocked == concurrent
        gate.set()
        await events.drain()
        assert len(store.events) == count
        running.cancel()


@async_test
async def test_a_bug_while_sending_drops_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with event_sink() as w:
        sent = w.sink.client.create
        monkeypatch.setattr(w.sink.client, "create", None)
        w.record_failure()
        await w.drain()
        monkeypatch.setattr(w.sink.client, "create", sent)
        w.record_failure("q")
        await w.drain()
        assert (w.sink.stored, w.sink.refused) == (1, 1)


@async_test
async def test_a_server_without_the_group_gets_core_events() -> None:
    async with event_sink(resource=CORE_EVENTS) as w:
        for _ in range(3):
            w.record_failure()
        await w.drain()
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
def test_event_resource_of_a_server(writable: frozenset[tuple[str, str]], resource: GroupVersionResource) -> None:
    assert event_resource(ServedResources("v1.36.4", {}, (), writable)) == resource
