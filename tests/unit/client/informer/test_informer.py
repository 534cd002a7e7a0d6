"""Informers over real sockets: lists and watches, gaps, resumed watches, invalid objects, old servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bayplan.client import GroupVersionResource, Informer, InformerSet, Selection, UndecodableObject, resource_of
from bayplan.client.informer.informer import CATCH_UP_S
from bayplan.client.informer.watcher import LineSplitter
from bayplan.clock import ManualClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from support.fakes.http_server import (
    FakeHttpServer,
    NoAnswer,
    Request,
    ServerAnswer,
    WatchStream,
    added,
    bookmark,
    deleted,
    error,
    listed,
    modified,
    node,
    status,
)
from support.harness.async_tests import async_test, wait_until

NODES = resource_of(kind_of(Node))
BAD = {"spec": {"unschedulable": "perhaps"}}


class Harness:
    """A server, a client, a running informer, and the calls of its handler."""

    def __init__(self, server: FakeHttpServer, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.calls: list[str] = []
        self.bad: list[UndecodableObject] = []
        self.connections: Callable[[], int]
        self.informer: Informer
        self.task: asyncio.Task[None]

    def handle(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new or old
        assert item is not None
        verb = "add" if old is None else "delete" if new is None else "update"
        self.calls.append(f"{verb} {item.name}@{item.metadata.resource_version}")

    def on_undecodable(self, _: GroupVersionResource, item: UndecodableObject) -> None:
        self.bad.append(item)

    async def expect_calls(self, *lines: str) -> None:
        """Wait for this many handler calls, and compare them."""
        await wait_until(lambda: len(self.calls) >= len(lines), tick=lambda: self.clock.advance(0.5))
        assert self.calls == list(lines)
        self.calls.clear()

    def names(self) -> set[str]:
        return {name for _, name in self.informer.store}

    async def wait_for_request(self, count: int) -> Request:
        """Wait for the request of this number, counted from 1."""
        await wait_until(lambda: len(self.server.requests) >= count, tick=lambda: self.clock.advance(0.5))
        return self.server.requests[count - 1]


@asynccontextmanager
async def running(*script: ServerAnswer, streaming: bool = False, **options: Any) -> AsyncIterator[Harness]:
    clock = ManualClock()
    async with FakeHttpServer(lambda _: NoAnswer(), script=script) as server, server.client(clock) as client:
        harness = Harness(server, clock)
        harness.connections = lambda: len(client.transport._pool._all)
        harness.informer = client.informer(
            NODES, harness.handle, on_undecodable=harness.on_undecodable, streaming=streaming, **options
        )
        harness.task = asyncio.create_task(harness.informer.run())
        try:
            yield harness
        finally:
            harness.task.cancel()
            await asyncio.gather(harness.task, return_exceptions=True)


@async_test
async def test_a_list_and_then_a_watch_from_its_version() -> None:
    watch = WatchStream()
    async with running(listed(10, node("a", 1), node("b", 2)), watch) as w:
        assert not w.informer.synced
        await w.expect_calls("add a@1", "add b@2")
        await w.informer.wait_synced()
        watch.send(modified(node("a", 11)))
        watch.send(deleted(node("b", 12)))
        watch.send(added(node("c", 13)))
        await w.expect_calls("update a@11", "delete b@12", "add c@13")
        assert w.names() == {"a", "c"}
        first, second = w.server.requests
        assert first.options == {"limit": "500", "resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"}
        assert second.options["resourceVersion"] == "10"
        assert second.options["allowWatchBookmarks"] == "true"
        assert 16 <= int(second.options["timeoutSeconds"]) <= 20


@async_test
async def test_selectors_go_with_lists_and_watches() -> None:
    selection = Selection(namespace="team", field_selector="status.phase!=Failed", label_selector="a=b")
    async with running(listed(10), WatchStream(), selection=selection) as w:
        for number in (1, 2):
            request = await w.wait_for_request(number)
            assert request.path == "/api/v1/namespaces/team/nodes"
            assert (request.options["fieldSelector"], request.options["labelSelector"]) == (
                "status.phase!=Failed",
                "a=b",
            )


@async_test
async def test_a_list_is_requested_in_pages() -> None:
    async with running(listed(10, node("a", 1), following="next"), listed(10, node("b", 2)), WatchStream()) as w:
        await w.expect_calls("add a@1", "add b@2")
        assert w.server.requests[1].options == {"limit": "500", "continue": "next"}


@async_test
async def test_a_list_whose_pages_expire_starts_over_without_pages() -> None:
    script = [
        listed(10, node("a", 1), following="next"),
        status(410, "Expired"),
        listed(20, node("b", 15)),
        WatchStream(),
    ]
    async with running(*script) as w:
        await w.expect_calls("add b@15")
        assert w.server.requests[2].options == {}
        assert (await w.wait_for_request(4)).options["resourceVersion"] == "20"


@async_test
async def test_a_bookmark_advances_the_resource_version() -> None:
    watch, second = WatchStream(bookmark(50)), WatchStream()
    async with running(listed(10), watch, second) as w:
        await wait_until(lambda: w.informer.resource_version == "50")
        w.clock.advance(5.0)
        watch.end()
        assert (await w.wait_for_request(3)).options["resourceVersion"] == "50"
        assert w.calls == []


@pytest.mark.parametrize("ending", ["end", "cut"])
@async_test
async def test_a_watch_that_ends_is_resumed_from_its_last_version(ending: str) -> None:
    watch, second = WatchStream(added(node("a", 11))), WatchStream(modified(node("a", 12)))
    async with running(listed(10), watch, second) as w:
        await w.expect_calls("add a@11")
        w.clock.advance(5.0)
        getattr(watch, ending)()
        await w.expect_calls("update a@12")
        assert w.server.requests[2].options["resourceVersion"] == "11"
        assert len(w.server.requests) == 3


MAX_DETECTION_S = 30.0
"""Maximum time until a silently dead watch is replaced."""


@pytest.mark.parametrize("dead", [WatchStream, NoAnswer], ids=["after-its-head", "before-its-head"])
@async_test
async def test_a_silently_dead_watch_is_resumed_within_30_s_each_time(dead: Callable[[], ServerAnswer]) -> None:
    script = [dead(), WatchStream(added(node("a", 11))), dead(), dead(), WatchStream(added(node("b", 12)))]
    async with running(listed(10), *script) as w:
        for number in range(1, len(script)):
            await w.wait_for_request(number + 1)
            began = w.clock.monotonic_s()
            await w.wait_for_request(number + 2)
            assert w.clock.monotonic_s() - began <= MAX_DETECTION_S
        await w.expect_calls("add a@11", "add b@12")
        versions = [each.options["resourceVersion"] for each in w.server.requests[1:6]]
        assert versions == ["10", "10", "11", "11", "11"]


@async_test
async def test_a_quiet_watch_resumes_from_its_bookmark_over_the_same_connection() -> None:
    watches = [WatchStream(), WatchStream(), WatchStream()]
    async with running(listed(10), *watches) as w:
        for number, watch in enumerate(watches):
            await watch.begun.wait()
            w.clock.advance(18.0)
            watch.send(bookmark(20 + number))
            watch.end()
        last = await w.wait_for_request(5)
        assert last.options["resourceVersion"] == "22"
        assert w.server.connections == 1


@async_test
async def test_a_streaming_list_has_a_long_timeout_and_its_silent_watch_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    first = WatchStream(added(node("a", 1)), bookmark(10, initial_end=True))
    async with running(first, WatchStream(added(node("b", 11))), streaming=True) as w:
        await w.expect_calls("add a@1")
        began = w.clock.monotonic_s()
        await w.expect_calls("add b@11")
        assert w.clock.monotonic_s() - began <= MAX_DETECTION_S
        one, two = w.server.requests
        assert 300 <= int(one.options["timeoutSeconds"]) <= 600
        assert (two.options["resourceVersion"], "sendInitialEvents" in two.options) == ("10", False)
        assert 16 <= int(two.options["timeoutSeconds"]) <= 20
        assert not [each for each in caplog.records if "watch ended" in each.getMessage()]


@pytest.mark.parametrize(
    "expired",
    [
        pytest.param(status(410, "Expired", "too old"), id="as-an-answer"),
        pytest.param(WatchStream(error(410, "Expired", "too old")), id="as-an-event"),
        pytest.param(WatchStream(error(410, "Gone", "too old")), id="as-an-event-of-old"),
    ],
)
@async_test
async def test_expired_history_causes_a_relist_that_reports_the_gap(expired: ServerAnswer) -> None:
    again = listed(99, node("a", 1), node("b", 77), node("d", 78), node("e", 5, uid="another"))
    async with running(
        listed(10, node("a", 1), node("b", 2), node("c", 3), node("e", 4)), expired, again, WatchStream()
    ) as w:
        await w.expect_calls(
            *("add a@1", "add b@2", "add c@3", "add e@4"),
            *("update b@77", "add d@78", "delete e@4", "add e@5", "delete c@3"),
        )
        assert w.server.requests[2].options == {"limit": "500"}  # the latest version
        assert (await w.wait_for_request(4)).options["resourceVersion"] == "99"


@async_test
async def test_a_relist_never_goes_back_in_time() -> None:
    script = [listed(10, node("a", 1)), status(400, "BadRequest"), listed(12, node("a", 1)), WatchStream()]
    async with running(*script) as w:
        await w.wait_for_request(4)
        assert w.server.requests[2].options["resourceVersion"] == "10"
        assert w.server.requests[2].options["resourceVersionMatch"] == "NotOlderThan"
        assert w.calls == ["add a@1"]


@async_test
async def test_a_server_with_an_older_watch_cache_is_asked_for_the_latest_version() -> None:
    young = status(504, "Timeout", "Too large resource version: 10, current: 3")
    script = [listed(10), status(400, "BadRequest"), young, listed(11), WatchStream()]
    async with running(*script) as w:
        assert (await w.wait_for_request(4)).options == {"limit": "500"}


@async_test
async def test_errors_at_the_start_are_retried() -> None:
    script = [
        status(500, "InternalError", "boom"),
        status(403, "Forbidden", "no"),
        listed(10, node("a", 1)),
        WatchStream(),
    ]
    async with running(*script) as w:
        await wait_until(lambda: "boom" in w.informer.last_error)
        await w.expect_calls("add a@1")
        await wait_until(lambda: w.informer.last_error == "")
        assert w.clock.monotonic_s() >= 0.8 + 1.6


@async_test
async def test_a_watch_that_ends_at_once_is_repeated_with_backoff() -> None:
    watches = [WatchStream() for _ in range(4)]
    for watch in watches:
        watch.end()
    async with running(listed(10), *watches) as w:
        await w.wait_for_request(5)
        assert w.clock.monotonic_s() >= 0.8 + 1.6 + 3.2


@async_test
async def test_a_watch_waits_for_retry_after() -> None:
    busy = status(429, "TooManyRequests", "later", Retry_After="30")
    async with running(listed(10), busy, WatchStream(added(node("a", 11)))) as w:
        await w.expect_calls("add a@11")
        assert w.clock.monotonic_s() >= 30.0
        assert len(w.server.requests) == 3


@async_test
async def test_retry_after_replaces_the_backoff(caplog: pytest.LogCaptureFixture) -> None:
    """A server does this for a kind that was just defined. Growing delays would reach a minute by then."""
    early = [status(429, "TooManyRequests", "storage is (re)initializing", Retry_After="1")] * 6
    async with running(*early, WatchStream(added(node("a", 11)), bookmark(11, initial_end=True)), streaming=True) as w:
        await w.expect_calls("add a@11")
        assert 6.0 <= w.clock.monotonic_s() < 12.0
        assert not caplog.records


@async_test
async def test_a_missing_permission_is_logged_once_without_the_query(caplog: pytest.LogCaptureFixture) -> None:
    words = 'nodes is forbidden: User "me" cannot watch resource "nodes" in API group "" at the cluster scope'
    refused = [status(403, "Forbidden", words)] * 5
    async with running(
        *refused, WatchStream(added(node("a", 11)), bookmark(11, initial_end=True)), streaming=True
    ) as w:
        await w.expect_calls("add a@11")
    assert caplog.messages == [
        f"nodes: cannot list or watch: {words}; grant this user the right, or use another kubeconfig; trying again"
    ]


@async_test
async def test_a_watch_resumes_after_an_outage_of_the_server() -> None:
    watch = WatchStream()
    async with running(listed(10, node("a", 1)), watch) as w:
        await w.expect_calls("add a@1")
        await watch.begun.wait()
        await w.server.stop()
        await wait_until(lambda: w.clock.monotonic_s() > 100.0, tick=lambda: w.clock.advance(1.0))
        w.server.script.append(WatchStream(modified(node("a", 12))))
        await w.server.start()
        await w.expect_calls("update a@12")
        assert w.server.requests[-1].options["resourceVersion"] == "10", "the watch resumes from its version"
        assert w.names() == {"a"}


@async_test
async def test_an_undecodable_object_is_reported_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watch = WatchStream()
    async with running(listed(10, node("a", 1), node("bad", 2, **BAD), node("c", 3)), watch) as w:
        await w.expect_calls("add a@1", "add c@3")
        assert [(item.key, item.resource_version) for item in w.bad] == [(("", "bad"), "2")]
        assert "unschedulable" in w.bad[0].reason
        assert 'Node "bad"' in w.bad[0].reason
        assert set(w.informer.undecodable) == {("", "bad")}
        watch.send(modified(node("a", 11, **BAD)))
        watch.send(modified(node("bad", 12)))
        watch.send(modified(node("c", 13)))
        await w.expect_calls("add bad@12", "update c@13")
        assert set(w.informer.undecodable) == {("", "a")}
        assert w.informer.store["", "a"].metadata.resource_version == "1"  # the last valid version
        watch.send(modified(node("a", 14)))
        watch.send(deleted(node("c", 15, **BAD)))
        await w.expect_calls("update a@14", "delete c@13")
        assert w.informer.undecodable == {}
        assert sum("is skipped" in line for line in caplog.messages) == 2


@async_test
async def test_an_undecodable_object_does_not_count_as_deleted() -> None:
    again = listed(99, node("a", 50, **BAD), node("b", 2))
    async with running(
        listed(10, node("a", 1), node("b", 2), node("z", 3)), WatchStream(error(410, "Gone")), again, WatchStream()
    ) as w:
        await w.expect_calls("add a@1", "add b@2", "add z@3", "delete z@3")
        assert w.names() == {"a", "b"}


@async_test
async def test_a_line_that_is_not_json_restarts_the_watch() -> None:
    watch = WatchStream(added(node("a", 11)))
    watch.write(b'{"type":"ADDED","object":{\n')
    watch.send(added(node("never", 12)))
    async with running(listed(10), watch, WatchStream(added(node("b", 12)))) as w:
        await w.expect_calls("add a@11", "add b@12")
        assert w.server.requests[2].options["resourceVersion"] == "11"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_lines_are_assembled_from_chunks_of_any_size(step: int) -> None:
    text = b"one\ntwo\n\nthree\n"
    lines = LineSplitter()
    assert [line for at in range(0, len(text), step) for line in lines.feed(text[at : at + step])] == [
        b"one",
        b"two",
        b"three",
    ]


@async_test
async def test_a_handler_that_raises_misses_one_change(caplog: pytest.LogCaptureFixture) -> None:
    async with running(listed(10), WatchStream(added(node("a", 11)), added(node("b", 12)))) as w:
        handle = w.handle

        def fragile(old: KubeObject | None, new: KubeObject | None) -> None:
            if new is not None and new.name == "a":
                raise RuntimeError("broken")
            handle(old, new)

        w.informer._handler = fragile
        await w.expect_calls("add b@12")
        assert "the event handler failed" in caplog.text
        assert w.names() == {"a", "b"}


# Catching up with the server.


def start_catch_up(w: Harness) -> asyncio.Task[None]:
    return asyncio.create_task(w.informer.catch_up())


def is_pausing(w: Harness) -> bool:
    """Whether the informer waits after a failure. Connections sleep on the clock, too."""
    backoff = w.informer._backoff
    return backoff._next_s > backoff._config.first_s


def watch_options(w: Harness, number: int) -> tuple[str, str]:
    """resourceVersion and timeoutSeconds of a watch; the request's number is counted from 1."""
    options = w.server.requests[number - 1].options
    return options["resourceVersion"], options["timeoutSeconds"]


@async_test
async def test_catch_up_cuts_a_silent_watch_and_delivers_the_missed_events() -> None:
    missed, rest, after = WatchStream(added(node("a", 12))), WatchStream(), WatchStream()
    async with running(listed(10), WatchStream(), listed(15, node("z", 1)), missed, rest, after) as w:
        await w.wait_for_request(2)
        done = start_catch_up(w)
        await w.expect_calls("add a@12")
        assert w.server.requests[2].options == {"limit": "1"}
        assert watch_options(w, 4) == ("10", "1")
        w.clock.advance(1.0)
        missed.end()
        await wait_until(rest.begun.is_set)
        assert watch_options(w, 5) == ("12", "1")
        assert not done.done()
        w.clock.advance(1.0)
        rest.end()  # without events: the informer has everything
        await done
        await wait_until(after.begun.is_set)
        assert int(watch_options(w, 6)[1]) >= 16


@async_test
async def test_catch_up_ends_when_a_watch_delivers_the_newest_version() -> None:
    async with running(
        listed(10), WatchStream(), listed(15), WatchStream(added(node("a", 12)), modified(node("a", 15)))
    ) as w:
        await w.wait_for_request(2)
        await start_catch_up(w)
        assert w.calls == ["add a@12", "update a@15"]


@async_test
async def test_catch_up_ends_at_once_when_the_store_is_current() -> None:
    watch = WatchStream(added(node("a", 15)))
    async with running(listed(10), watch, listed(15)) as w:
        await w.expect_calls("add a@15")
        await start_catch_up(w)
        assert len(w.server.requests) == 3


@async_test
async def test_catch_up_ends_the_backoff_of_a_watch() -> None:
    async with running(listed(10), status(500), listed(15), WatchStream(added(node("a", 15)))) as w:
        await wait_until(lambda: is_pausing(w))
        before_s = w.clock.monotonic_s()
        await start_catch_up(w)
        assert (w.calls, w.clock.monotonic_s()) == (["add a@15"], before_s)


@async_test
async def test_catch_up_ends_the_backoff_of_a_list() -> None:
    broken, again = WatchStream(added(node("a", 1))), WatchStream(added(node("a", 15)), bookmark(15, initial_end=True))
    async with running(broken, listed(15), again, streaming=True) as w:
        await wait_until(broken.begun.is_set)
        broken.cut()
        await wait_until(lambda: is_pausing(w))
        before_s = w.clock.monotonic_s()
        await start_catch_up(w)
        assert (w.calls, w.clock.monotonic_s()) == (["add a@15"], before_s)


@async_test
async def test_a_quiet_watch_that_ends_late_does_not_end_catch_up() -> None:
    late, prompt = WatchStream(), WatchStream()
    async with running(listed(10), WatchStream(), listed(15), late, prompt) as w:
        await w.wait_for_request(2)
        done = start_catch_up(w)
        await wait_until(late.begun.is_set)
        w.clock.advance(2.0)
        late.end()
        await wait_until(prompt.begun.is_set)
        assert not done.done()
        w.clock.advance(1.0)
        prompt.end()
        await done


@async_test
async def test_a_quiet_watch_that_ends_early_proves_nothing() -> None:
    early, prompt = WatchStream(), WatchStream()
    async with running(listed(10), WatchStream(), listed(15), early, prompt) as w:
        await w.wait_for_request(2)
        done = start_catch_up(w)
        await wait_until(early.begun.is_set)
        early.end()  # the server stops
        await wait_until(lambda: is_pausing(w))
        assert len(w.server.requests) == 4, "a pause comes first"
        await wait_until(prompt.begun.is_set, tick=lambda: w.clock.advance(0.1))
        assert not done.done()
        w.clock.advance(1.0)
        prompt.end()
        await done


@async_test
async def test_pauses_are_short_while_it_catches_up() -> None:
    failures = [status(500) for _ in range(6)]
    async with running(listed(10), WatchStream(), listed(15), *failures, WatchStream(added(node("a", 15)))) as w:
        await w.wait_for_request(2)
        done = start_catch_up(w)
        await wait_until(done.done, tick=lambda: w.clock.advance(0.1))
        assert w.calls == ["add a@15"]


@async_test
async def test_the_pause_after_a_watch_that_ends_early_is_cut() -> None:
    early = WatchStream()
    async with running(listed(10), early, listed(15), WatchStream(added(node("a", 15)))) as w:
        await wait_until(early.begun.is_set)
        early.end()
        await wait_until(lambda: is_pausing(w))
        before_s = w.clock.monotonic_s()
        await start_catch_up(w)
        assert (w.calls, w.clock.monotonic_s()) == (["add a@15"], before_s)


@pytest.mark.parametrize(("listed_at", "requests"), [(20, 2), (12, 3)], ids=["new-enough", "older"])
@async_test
async def test_catch_up_does_not_cut_a_list_in_progress(listed_at: int, requests: int) -> None:
    streamed, watched = WatchStream(added(node("a", 1))), WatchStream(added(node("b", 15)))
    async with running(streamed, listed(15), watched, streaming=True) as w:
        await wait_until(streamed.begun.is_set)
        done = start_catch_up(w)
        await w.wait_for_request(2)
        streamed.send(bookmark(listed_at, initial_end=True))
        await done
        assert w.calls[0] == "add a@1"
        assert len(w.server.requests) == requests


@async_test
async def test_the_newest_version_is_read_until_the_server_answers() -> None:
    async with running(listed(10), WatchStream(), status(503), listed(10)) as w:
        await w.wait_for_request(2)
        done = start_catch_up(w)
        await wait_until(done.done, tick=lambda: w.clock.advance(0.5))
        assert len(w.server.requests) == 4


@async_test
async def test_catch_up_ends_after_its_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async with running(listed(10), WatchStream(), NoAnswer()) as w:
        await w.wait_for_request(3 - 1)
        done = start_catch_up(w)
        await w.wait_for_request(3)
        w.clock.advance(CATCH_UP_S)
        await done
    assert "nodes: not caught up after 10 s" in caplog.text


@async_test
async def test_informers_catch_up_together() -> None:
    async with running(listed(10), WatchStream(), listed(15), WatchStream(added(node("a", 15)))) as w:
        await w.wait_for_request(2)
        await InformerSet([w.informer]).catch_up()
        assert w.calls == ["add a@15"]


# Streaming lists.


@async_test
async def test_a_streaming_list_is_one_request() -> None:
    watch = WatchStream(added(node("a", 1)), added(node("b", 2)))
    async with running(watch, streaming=True) as w:
        first = await w.wait_for_request(1)
        assert first.options["sendInitialEvents"] == "true"
        assert first.options["resourceVersionMatch"] == "NotOlderThan"
        assert first.options["resourceVersion"] == "0"
        assert not w.informer.synced
        watch.send(bookmark(9))
        watch.send(deleted(node("a", 10)))
        watch.send(bookmark(10, initial_end=True))
        watch.send(added(node("c", 11)))
        await w.expect_calls("add b@2", "add c@11")
        assert w.informer.synced
        assert len(w.server.requests) == 1


@async_test
async def test_a_streaming_list_is_followed_by_plain_watches() -> None:
    watch = WatchStream(added(node("a", 1)), bookmark(10, initial_end=True))
    async with running(
        watch, WatchStream(error(410, "Gone")), WatchStream(bookmark(20, initial_end=True)), streaming=True
    ) as w:
        await w.expect_calls("add a@1")
        watch.cut()
        await w.expect_calls("delete a@1")
        assert w.server.requests[1].options["resourceVersion"] == "10"
        assert "sendInitialEvents" not in w.server.requests[1].options
        assert "resourceVersion" not in w.server.requests[2].options  # the latest version
        assert w.server.requests[2].options["sendInitialEvents"] == "true"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(status(422, "Invalid", "sendInitialEvents is forbidden"), id="refused"),
        pytest.param("ends", id="ends-before-its-end"),
    ],
)
@async_test
async def test_a_server_without_streaming_lists_is_paged(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    if answer == "ends":
        answer = WatchStream(added(node("x", 1)))
        answer.end()
    async with running(answer, listed(10, node("a", 1)), WatchStream(), streaming=True) as w:
        await w.expect_calls("add a@1")
        assert "sendInitialEvents" not in (await w.wait_for_request(3)).options
        assert "listing in pages" in caplog.text


@async_test
async def test_a_streaming_list_that_fails_is_replaced_by_a_paged_list_once() -> None:
    broken = [WatchStream(error(500, "InternalError", "progress is disabled")) for _ in range(2)]
    gap = [WatchStream(error(410, "Gone")), WatchStream(bookmark(20, initial_end=True))]
    async with running(*broken, listed(10, node("a", 1)), *gap, streaming=True) as w:
        await w.expect_calls("add a@1", "delete a@1")
        assert ["sendInitialEvents" in request.options for request in w.server.requests] == [
            True,
            True,
            False,
            False,
            True,
        ]


@async_test
async def test_an_informer_set_runs_several_informers() -> None:
    def route(request: Request) -> ServerAnswer:
        if "watch" in request.options:
            return WatchStream()
        return status(403, "Forbidden", "may not") if request.path.endswith("pods") and forbidden else listed(10)

    clock, forbidden = ManualClock(), True
    async with FakeHttpServer(route) as server, server.client(clock) as client:
        calls: list[object] = []
        kinds = [NODES, resource_of(kind_of(Pod))]
        group = InformerSet(client.informer(each, lambda *pair: calls.append(pair), streaming=False) for each in kinds)
        running = asyncio.create_task(group.run())
        await wait_until(lambda: len(group.not_synced()) == 1 and "may not" in group.not_synced()[0])
        assert group.not_synced()[0].startswith("pods: ")
        assert not group.synced
        forbidden = False
        await wait_until(lambda: group.synced, tick=lambda: clock.advance(1.0))
        await group.wait_synced()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(client.transport._pool._all) == len(client.transport._pool._idle)


@async_test
async def test_a_failing_informer_stops_its_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeHttpServer(lambda _: NoAnswer()) as server, server.client() as client:
        failing, healthy = (client.informer(NODES, lambda *_: None) for _ in range(2))
        monkeypatch.setattr(failing, "_on_error", None)
        monkeypatch.setattr(failing, "_watch", None)
        with pytest.raises(ExceptionGroup):
            await InformerSet([healthy, failing]).run()


@async_test
async def test_a_cancelled_informer_closes_its_connection() -> None:
    watch = WatchStream()
    async with running(listed(10), watch) as w:
        await watch.begun.wait()
        await w.informer.wait_synced()
        w.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await w.task
        assert w.connections() == 0  # the connection of the watch is closed
