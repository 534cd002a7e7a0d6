"""Informers over real sockets: lists and watches, gaps, resuming, bad objects, old servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bayplan.client import Informer, Informers, Resource, Selection, Unreadable, resource_of
from bayplan.client.informer import CATCH_UP_S
from bayplan.client.watches import Lines
from bayplan.clock import ManualClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from wire_server import (
    Answer,
    Feed,
    Hang,
    Request,
    WireServer,
    added,
    bookmark,
    deleted,
    error,
    listed,
    modified,
    node,
    on_loop,
    status,
    until,
)

NODES = resource_of(kind_of(Node))
BAD = {"spec": {"unschedulable": "perhaps"}}


class World:
    """A server, a client, an informer that runs, and what it told."""

    def __init__(self, server: WireServer, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.told: list[str] = []
        self.bad: list[Unreadable] = []
        self.connections: Callable[[], int]
        self.informer: Informer
        self.task: asyncio.Task[None]

    def handle(self, old: KubeObject | None, new: KubeObject | None) -> None:
        about = new or old
        assert about is not None
        verb = "add" if old is None else "delete" if new is None else "update"
        self.told.append(f"{verb} {about.name}@{about.metadata.resource_version}")

    def complain(self, _: Resource, item: Unreadable) -> None:
        self.bad.append(item)

    async def tells(self, *lines: str) -> None:
        """Wait until so much was told; then it must be this."""
        await until(lambda: len(self.told) >= len(lines), tick=lambda: self.clock.advance(0.5))
        assert self.told == list(lines)
        self.told.clear()

    def names(self) -> set[str]:
        return {name for _, name in self.informer.store}

    async def asks(self, count: int) -> Request:
        """The request of that number, counted from 1."""
        await until(lambda: len(self.server.requests) >= count, tick=lambda: self.clock.advance(0.5))
        return self.server.requests[count - 1]


@asynccontextmanager
async def world(*script: Answer, streaming: bool = False, **more: Any) -> AsyncIterator[World]:
    clock = ManualClock()
    async with WireServer(lambda _: Hang(), script=script) as server, server.client(clock) as client:
        made = World(server, clock)
        made.connections = lambda: len(client.transport._pool._all)
        made.informer = client.informer(NODES, made.handle, complaint=made.complain, streaming=streaming, **more)
        made.task = asyncio.create_task(made.informer.run())
        try:
            yield made
        finally:
            made.task.cancel()
            await asyncio.gather(made.task, return_exceptions=True)


@on_loop
async def test_a_list_and_then_a_watch_from_its_version() -> None:
    feed = Feed()
    async with world(listed(10, node("a", 1), node("b", 2)), feed) as w:
        assert not w.informer.synced
        await w.tells("add a@1", "add b@2")
        await w.informer.wait_synced()
        feed.send(modified(node("a", 11)))
        feed.send(deleted(node("b", 12)))
        feed.send(added(node("c", 13)))
        await w.tells("update a@11", "delete b@12", "add c@13")
        assert w.names() == {"a", "c"}
        first, second = w.server.requests
        assert first.options == {"limit": "500", "resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"}
        assert second.options["resourceVersion"] == "10"
        assert second.options["allowWatchBookmarks"] == "true"
        assert 16 <= int(second.options["timeoutSeconds"]) <= 20


@on_loop
async def test_selectors_go_with_lists_and_watches() -> None:
    chosen = Selection(namespace="team", field_selector="status.phase!=Failed", label_selector="a=b")
    async with world(listed(10), Feed(), selection=chosen) as w:
        for number in (1, 2):
            request = await w.asks(number)
            assert request.path == "/api/v1/namespaces/team/nodes"
            assert (request.options["fieldSelector"], request.options["labelSelector"]) == (
                "status.phase!=Failed",
                "a=b",
            )


@on_loop
async def test_a_list_comes_in_pages() -> None:
    async with world(listed(10, node("a", 1), following="next"), listed(10, node("b", 2)), Feed()) as w:
        await w.tells("add a@1", "add b@2")
        assert w.server.requests[1].options == {"limit": "500", "continue": "next"}


@on_loop
async def test_a_list_whose_pages_expire_starts_over_whole() -> None:
    script = [listed(10, node("a", 1), following="next"), status(410, "Expired"), listed(20, node("b", 15)), Feed()]
    async with world(*script) as w:
        await w.tells("add b@15")
        assert w.server.requests[2].options == {}
        assert (await w.asks(4)).options["resourceVersion"] == "20"


@on_loop
async def test_bookmarks_move_the_version_on() -> None:
    feed, second = Feed(bookmark(50)), Feed()
    async with world(listed(10), feed, second) as w:
        await until(lambda: w.informer.resource_version == "50")
        w.clock.advance(5.0)
        feed.end()
        assert (await w.asks(3)).options["resourceVersion"] == "50"
        assert w.told == []


@pytest.mark.parametrize("how", ["end", "cut"])
@on_loop
async def test_a_watch_that_ends_is_resumed_where_it_was(how: str) -> None:
    feed, second = Feed(added(node("a", 11))), Feed(modified(node("a", 12)))
    async with world(listed(10), feed, second) as w:
        await w.tells("add a@11")
        w.clock.advance(5.0)
        getattr(feed, how)()
        await w.tells("update a@12")
        assert w.server.requests[2].options["resourceVersion"] == "11"
        assert len(w.server.requests) == 3


NOTICED_S = 30.0
"""A silently dead watch is replaced within this time."""


@pytest.mark.parametrize("dead", [Feed, Hang], ids=["after-its-head", "before-its-head"])
@on_loop
async def test_a_silently_dead_watch_is_resumed_within_30_s_each_time(dead: Callable[[], Answer]) -> None:
    script = [dead(), Feed(added(node("a", 11))), dead(), dead(), Feed(added(node("b", 12)))]
    async with world(listed(10), *script) as w:
        for number in range(1, len(script)):
            await w.asks(number + 1)
            began = w.clock.monotonic_s()
            await w.asks(number + 2)
            assert w.clock.monotonic_s() - began <= NOTICED_S
        await w.tells("add a@11", "add b@12")
        versions = [each.options["resourceVersion"] for each in w.server.requests[1:6]]
        assert versions == ["10", "10", "11", "11", "11"]


@on_loop
async def test_a_quiet_watch_ends_with_a_bookmark_and_goes_on_over_the_same_connection() -> None:
    feeds = [Feed(), Feed(), Feed()]
    async with world(listed(10), *feeds) as w:
        for number, feed in enumerate(feeds):
            await feed.begun.wait()
            w.clock.advance(18.0)
            feed.send(bookmark(20 + number))
            feed.end()
        last = await w.asks(5)
        assert last.options["resourceVersion"] == "22"
        assert w.server.connections == 1


@on_loop
async def test_a_streamed_list_has_minutes_and_its_watch_is_replaced_after_a_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    first = Feed(added(node("a", 1)), bookmark(10, initial_end=True))
    async with world(first, Feed(added(node("b", 11))), streaming=True) as w:
        await w.tells("add a@1")
        began = w.clock.monotonic_s()
        await w.tells("add b@11")
        assert w.clock.monotonic_s() - began <= NOTICED_S
        one, two = w.server.requests
        assert 300 <= int(one.options["timeoutSeconds"]) <= 600
        assert (two.options["resourceVersion"], "sendInitialEvents" in two.options) == ("10", False)
        assert 16 <= int(two.options["timeoutSeconds"]) <= 20
        assert not [each for each in caplog.records if "watch ended" in each.getMessage()]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(status(410, "Expired", "too old"), id="as-an-answer"),
        pytest.param(Feed(error(410, "Expired", "too old")), id="as-an-event"),
        pytest.param(Feed(error(410, "Gone", "too old")), id="as-an-event-of-old"),
    ],
)
@on_loop
async def test_history_that_is_gone_is_listed_anew_and_the_gap_is_told(gone: Answer) -> None:
    again = listed(99, node("a", 1), node("b", 77), node("d", 78), node("e", 5, uid="another"))
    async with world(listed(10, node("a", 1), node("b", 2), node("c", 3), node("e", 4)), gone, again, Feed()) as w:
        await w.tells(
            *("add a@1", "add b@2", "add c@3", "add e@4"),
            *("update b@77", "add d@78", "delete e@4", "add e@5", "delete c@3"),
        )
        assert w.server.requests[2].options == {"limit": "500"}  # the very latest: never back in time
        assert (await w.asks(4)).options["resourceVersion"] == "99"


@on_loop
async def test_a_relist_never_goes_back_in_time() -> None:
    script = [listed(10, node("a", 1)), status(400, "BadRequest"), listed(12, node("a", 1)), Feed()]
    async with world(*script) as w:
        await w.asks(4)
        assert w.server.requests[2].options["resourceVersion"] == "10"
        assert w.server.requests[2].options["resourceVersionMatch"] == "NotOlderThan"
        assert w.told == ["add a@1"]


@on_loop
async def test_a_server_whose_memory_is_younger_is_asked_for_the_latest() -> None:
    young = status(504, "Timeout", "Too large resource version: 10, current: 3")
    script = [listed(10), status(400, "BadRequest"), young, listed(11), Feed()]
    async with world(*script) as w:
        assert (await w.asks(4)).options == {"limit": "500"}


@on_loop
async def test_errors_at_the_start_are_waited_out() -> None:
    script = [status(500, "InternalError", "boom"), status(403, "Forbidden", "no"), listed(10, node("a", 1)), Feed()]
    async with world(*script) as w:
        await until(lambda: "boom" in w.informer.trouble)
        await w.tells("add a@1")
        await until(lambda: w.informer.trouble == "")
        assert w.clock.monotonic_s() >= 0.8 + 1.6


@on_loop
async def test_a_watch_that_ends_at_once_again_and_again_is_slowed_down() -> None:
    feeds = [Feed() for _ in range(4)]
    for feed in feeds:
        feed.end()
    async with world(listed(10), *feeds) as w:
        await w.asks(5)
        assert w.clock.monotonic_s() >= 0.8 + 1.6 + 3.2


@on_loop
async def test_a_busy_server_is_left_alone_as_long_as_it_wants() -> None:
    busy = status(429, "TooManyRequests", "later", Retry_After="30")
    async with world(listed(10), busy, Feed(added(node("a", 11)))) as w:
        await w.tells("add a@11")
        assert w.clock.monotonic_s() >= 30.0
        assert len(w.server.requests) == 3


@on_loop
async def test_a_server_that_is_not_ready_yet_says_when_to_ask_again(caplog: pytest.LogCaptureFixture) -> None:
    """As one does for a kind that was defined a moment ago: ever longer waits of our own would be a minute by then."""
    early = [status(429, "TooManyRequests", "storage is (re)initializing", Retry_After="1")] * 6
    async with world(*early, Feed(added(node("a", 11)), bookmark(11, initial_end=True)), streaming=True) as w:
        await w.tells("add a@11")
        assert 6.0 <= w.clock.monotonic_s() < 12.0
        assert not caplog.records


@on_loop
async def test_a_right_that_lacks_is_told_once_and_without_the_query(caplog: pytest.LogCaptureFixture) -> None:
    words = 'nodes is forbidden: User "me" cannot watch resource "nodes" in API group "" at the cluster scope'
    refused = [status(403, "Forbidden", words)] * 5
    async with world(*refused, Feed(added(node("a", 11)), bookmark(11, initial_end=True)), streaming=True) as w:
        await w.tells("add a@11")
    assert caplog.messages == [
        f"nodes: cannot list or watch: {words}; let this user do that, or use a kubeconfig of one who may; trying again"
    ]


@on_loop
async def test_the_server_may_be_away_for_a_while() -> None:
    feed = Feed()
    async with world(listed(10, node("a", 1)), feed) as w:
        await w.tells("add a@1")
        await feed.begun.wait()
        await w.server.stop()
        await until(lambda: w.clock.monotonic_s() > 100.0, tick=lambda: w.clock.advance(1.0))
        w.server.script.append(Feed(modified(node("a", 12))))
        await w.server.start()
        await w.tells("update a@12")
        assert w.server.requests[-1].options["resourceVersion"] == "10", "it goes on where it was"
        assert w.names() == {"a"}


@on_loop
async def test_one_bad_object_is_reported_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed()
    async with world(listed(10, node("a", 1), node("bad", 2, **BAD), node("c", 3)), feed) as w:
        await w.tells("add a@1", "add c@3")
        assert [(item.key, item.resource_version) for item in w.bad] == [(("", "bad"), "2")]
        assert "unschedulable" in w.bad[0].reason
        assert 'Node "bad"' in w.bad[0].reason
        assert set(w.informer.unreadable) == {("", "bad")}
        feed.send(modified(node("a", 11, **BAD)))
        feed.send(modified(node("bad", 12)))
        feed.send(modified(node("c", 13)))
        await w.tells("add bad@12", "update c@13")
        assert set(w.informer.unreadable) == {("", "a")}
        assert w.informer.store["", "a"].metadata.resource_version == "1"  # the last good version
        feed.send(modified(node("a", 14)))
        feed.send(deleted(node("c", 15, **BAD)))
        await w.tells("update a@14", "delete c@13")
        assert w.informer.unreadable == {}
        assert sum("is left out" in line for line in caplog.messages) == 2


@on_loop
async def test_a_bad_object_is_not_taken_for_a_deleted_one() -> None:
    again = listed(99, node("a", 50, **BAD), node("b", 2))
    async with world(
        listed(10, node("a", 1), node("b", 2), node("z", 3)), Feed(error(410, "Gone")), again, Feed()
    ) as w:
        await w.tells("add a@1", "add b@2", "add z@3", "delete z@3")
        assert w.names() == {"a", "b"}


@on_loop
async def test_a_line_that_is_no_json_costs_the_watch_only() -> None:
    feed = Feed(added(node("a", 11)))
    feed.write(b'{"type":"ADDED","object":{\n')
    feed.send(added(node("never", 12)))
    async with world(listed(10), feed, Feed(added(node("b", 12)))) as w:
        await w.tells("add a@11", "add b@12")
        assert w.server.requests[2].options["resourceVersion"] == "11"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_lines_are_put_together_however_they_are_cut(step: int) -> None:
    text = b"one\ntwo\n\nthree\n"
    lines = Lines()
    assert [line for at in range(0, len(text), step) for line in lines.feed(text[at : at + step])] == [
        b"one",
        b"two",
        b"three",
    ]


@on_loop
async def test_a_handler_that_raises_costs_one_change(caplog: pytest.LogCaptureFixture) -> None:
    async with world(listed(10), Feed(added(node("a", 11)), added(node("b", 12)))) as w:
        plain = w.handle

        def fragile(old: KubeObject | None, new: KubeObject | None) -> None:
            if new is not None and new.name == "a":
                raise RuntimeError("broken")
            plain(old, new)

        w.informer._handler = fragile
        await w.tells("add b@12")
        assert "the handler of its change failed" in caplog.text
        assert w.names() == {"a", "b"}


# Catching up, which a new leader does before it decides.


def catching_up(w: World) -> asyncio.Task[None]:
    return asyncio.create_task(w.informer.catch_up())


def asked(w: World, number: int) -> tuple[str, str]:
    """Version and duration that a watch asked for; the request of that number, counted from 1."""
    options = w.server.requests[number - 1].options
    return options["resourceVersion"], options["timeoutSeconds"]


@on_loop
async def test_a_silent_watch_is_cut_and_what_it_missed_is_told() -> None:
    missed, rest, after = Feed(added(node("a", 12))), Feed(), Feed()
    async with world(listed(10), Feed(), listed(15, node("z", 1)), missed, rest, after) as w:
        await w.asks(2)
        done = catching_up(w)
        await w.tells("add a@12")
        assert w.server.requests[2].options == {"limit": "1"}
        assert asked(w, 4) == ("10", "1")
        w.clock.advance(1.0)
        missed.end()
        await until(rest.begun.is_set)
        assert asked(w, 5) == ("12", "1")
        assert not done.done()
        w.clock.advance(1.0)
        rest.end()  # it had nothing to deliver: all that there was is told
        await done
        await until(after.begun.is_set)
        assert int(asked(w, 6)[1]) >= 16


@on_loop
async def test_a_watch_that_delivers_the_newest_version_is_enough() -> None:
    async with world(listed(10), Feed(), listed(15), Feed(added(node("a", 12)), modified(node("a", 15)))) as w:
        await w.asks(2)
        await catching_up(w)
        assert w.told == ["add a@12", "update a@15"]


@on_loop
async def test_what_is_known_is_not_asked_for_again() -> None:
    feed = Feed(added(node("a", 15)))
    async with world(listed(10), feed, listed(15)) as w:
        await w.tells("add a@15")
        await catching_up(w)
        assert len(w.server.requests) == 3


@on_loop
async def test_a_watch_that_waits_for_its_next_try_is_sent_at_once() -> None:
    async with world(listed(10), status(500), listed(15), Feed(added(node("a", 15)))) as w:
        await until(lambda: w.clock.sleepers == 1)
        before_s = w.clock.monotonic_s()
        await catching_up(w)
        assert (w.told, w.clock.monotonic_s()) == (["add a@15"], before_s)


@on_loop
async def test_a_list_that_waits_for_its_next_try_is_sent_at_once() -> None:
    broken, again = Feed(added(node("a", 1))), Feed(added(node("a", 15)), bookmark(15, initial_end=True))
    async with world(broken, listed(15), again, streaming=True) as w:
        await until(broken.begun.is_set)
        broken.cut()
        await until(lambda: w.clock.sleepers == 1)
        before_s = w.clock.monotonic_s()
        await catching_up(w)
        assert (w.told, w.clock.monotonic_s()) == (["add a@15"], before_s)


@on_loop
async def test_a_quiet_watch_that_ends_late_proves_nothing() -> None:
    late, prompt = Feed(), Feed()
    async with world(listed(10), Feed(), listed(15), late, prompt) as w:
        await w.asks(2)
        done = catching_up(w)
        await until(late.begun.is_set)
        w.clock.advance(2.0)
        late.end()
        await until(prompt.begun.is_set)
        assert not done.done()
        w.clock.advance(1.0)
        prompt.end()
        await done


@on_loop
async def test_a_quiet_watch_that_ends_early_proves_nothing() -> None:
    early, prompt = Feed(), Feed()
    async with world(listed(10), Feed(), listed(15), early, prompt) as w:
        await w.asks(2)
        done = catching_up(w)
        await until(early.begun.is_set)
        early.end()  # the server stops
        await until(lambda: w.clock.sleepers == 2)
        assert len(w.server.requests) == 4, "a pause comes first"
        await until(prompt.begun.is_set, tick=lambda: w.clock.advance(0.1))
        assert not done.done()
        w.clock.advance(1.0)
        prompt.end()
        await done


@on_loop
async def test_pauses_are_short_while_it_catches_up() -> None:
    failures = [status(500) for _ in range(6)]
    async with world(listed(10), Feed(), listed(15), *failures, Feed(added(node("a", 15)))) as w:
        await w.asks(2)
        done = catching_up(w)
        await until(done.done, tick=lambda: w.clock.advance(0.1))
        assert w.told == ["add a@15"]


@on_loop
async def test_the_pause_after_a_watch_that_ends_early_is_cut() -> None:
    early = Feed()
    async with world(listed(10), early, listed(15), Feed(added(node("a", 15)))) as w:
        await until(early.begun.is_set)
        early.end()
        await until(lambda: w.clock.sleepers == 1)
        before_s = w.clock.monotonic_s()
        await catching_up(w)
        assert (w.told, w.clock.monotonic_s()) == (["add a@15"], before_s)


@pytest.mark.parametrize(("listed_at", "requests"), [(20, 2), (12, 3)], ids=["new-enough", "older"])
@on_loop
async def test_a_list_that_is_under_way_is_not_cut(listed_at: int, requests: int) -> None:
    streamed, watched = Feed(added(node("a", 1))), Feed(added(node("b", 15)))
    async with world(streamed, listed(15), watched, streaming=True) as w:
        await until(streamed.begun.is_set)
        done = catching_up(w)
        await w.asks(2)
        streamed.send(bookmark(listed_at, initial_end=True))
        await done
        assert w.told[0] == "add a@1"
        assert len(w.server.requests) == requests


@on_loop
async def test_the_newest_version_is_read_until_the_server_answers() -> None:
    async with world(listed(10), Feed(), status(503), listed(10)) as w:
        await w.asks(2)
        done = catching_up(w)
        await until(done.done, tick=lambda: w.clock.advance(0.5))
        assert len(w.server.requests) == 4


@on_loop
async def test_a_server_that_does_not_answer_is_not_waited_for_without_end(caplog: pytest.LogCaptureFixture) -> None:
    async with world(listed(10), Feed(), Hang()) as w:
        await w.asks(3 - 1)
        done = catching_up(w)
        await w.asks(3)
        w.clock.advance(CATCH_UP_S)
        await done
    assert "nodes: not caught up after 10 s" in caplog.text


@on_loop
async def test_informers_catch_up_together() -> None:
    async with world(listed(10), Feed(), listed(15), Feed(added(node("a", 15)))) as w:
        await w.asks(2)
        await Informers([w.informer]).catch_up()
        assert w.told == ["add a@15"]


# Streaming lists.


@on_loop
async def test_a_streamed_list_is_one_request() -> None:
    feed = Feed(added(node("a", 1)), added(node("b", 2)))
    async with world(feed, streaming=True) as w:
        first = await w.asks(1)
        assert first.options["sendInitialEvents"] == "true"
        assert first.options["resourceVersionMatch"] == "NotOlderThan"
        assert first.options["resourceVersion"] == "0"
        assert not w.informer.synced
        feed.send(bookmark(9))
        feed.send(deleted(node("a", 10)))
        feed.send(bookmark(10, initial_end=True))
        feed.send(added(node("c", 11)))
        await w.tells("add b@2", "add c@11")
        assert w.informer.synced
        assert len(w.server.requests) == 1


@on_loop
async def test_a_streamed_list_is_followed_by_plain_watches() -> None:
    feed = Feed(added(node("a", 1)), bookmark(10, initial_end=True))
    async with world(feed, Feed(error(410, "Gone")), Feed(bookmark(20, initial_end=True)), streaming=True) as w:
        await w.tells("add a@1")
        feed.cut()
        await w.tells("delete a@1")
        assert w.server.requests[1].options["resourceVersion"] == "10"
        assert "sendInitialEvents" not in w.server.requests[1].options
        assert "resourceVersion" not in w.server.requests[2].options  # the latest
        assert w.server.requests[2].options["sendInitialEvents"] == "true"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(status(422, "Invalid", "sendInitialEvents is forbidden"), id="refused"),
        pytest.param("ends", id="ends-before-its-end"),
    ],
)
@on_loop
async def test_servers_that_do_not_stream_are_listed_in_pages(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    if answer == "ends":
        answer = Feed(added(node("x", 1)))
        answer.end()
    async with world(answer, listed(10, node("a", 1)), Feed(), streaming=True) as w:
        await w.tells("add a@1")
        assert "sendInitialEvents" not in (await w.asks(3)).options
        assert "listing in pages" in caplog.text


@on_loop
async def test_a_streamed_list_that_cannot_be_delivered_comes_in_pages_this_time() -> None:
    broken = [Feed(error(500, "InternalError", "progress is disabled")) for _ in range(2)]
    gap = [Feed(error(410, "Gone")), Feed(bookmark(20, initial_end=True))]
    async with world(*broken, listed(10, node("a", 1)), *gap, streaming=True) as w:
        await w.tells("add a@1", "delete a@1")
        assert ["sendInitialEvents" in request.options for request in w.server.requests] == [
            True,
            True,
            False,
            False,
            True,
        ]


@on_loop
async def test_several_run_as_one() -> None:
    def route(request: Request) -> Answer:
        if "watch" in request.options:
            return Feed()
        return status(403, "Forbidden", "may not") if request.path.endswith("pods") and forbidden else listed(10)

    clock, forbidden = ManualClock(), True
    async with WireServer(route) as server, server.client(clock) as client:
        told: list[object] = []
        kinds = [NODES, resource_of(kind_of(Pod))]
        group = Informers(client.informer(each, lambda *pair: told.append(pair), streaming=False) for each in kinds)
        running = asyncio.create_task(group.run())
        await until(lambda: len(group.lagging()) == 1 and "may not" in group.lagging()[0])
        assert group.lagging()[0].startswith("pods: ")
        assert not group.synced
        forbidden = False
        await until(lambda: group.synced, tick=lambda: clock.advance(1.0))
        await group.wait_synced()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(client.transport._pool._all) == len(client.transport._pool._idle)


@on_loop
async def test_one_that_dies_takes_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with WireServer(lambda _: Hang()) as server, server.client() as client:
        sick, well = (client.informer(NODES, lambda *_: None) for _ in range(2))
        monkeypatch.setattr(sick, "_learn_from", None)
        monkeypatch.setattr(sick, "_follow", None)
        with pytest.raises(ExceptionGroup):
            await Informers([well, sick]).run()


@on_loop
async def test_stopping_is_clean() -> None:
    feed = Feed()
    async with world(listed(10), feed) as w:
        await feed.begun.wait()
        await w.informer.wait_synced()
        w.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await w.task
        assert w.connections() == 0  # the watch's own is not left open
