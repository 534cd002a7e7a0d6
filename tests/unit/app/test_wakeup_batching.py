"""When a loop looks for what has arrived: at once, unless what can arrive may wait for company."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from bayplan.app.scheduler import _max_wakeup_delay_s, _should_limit_event_senders
from bayplan.app.wakeup_batching import BatchingSelector, WakeupDelay, batching_loop_factory
from bayplan.client import EventSink
from bayplan.clock import ManualClock
from bayplan.scheduler.live.run_loop import LiveScheduler


class Rested:
    """Time that passes only while somebody rests."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.clock.advance(seconds)


@contextmanager
def something_to_read(leeway_s: float) -> Iterator[tuple[BatchingSelector, Rested]]:
    pace, rested = WakeupDelay(), Rested()
    pace.max_delay_s = lambda: leeway_s
    with BatchingSelector(pace, now_s=rested.clock.monotonic_s, sleep=rested.sleep) as selector:
        here, there = socket.socketpair()
        with here, there:
            selector.register(here, selectors.EVENT_READ)
            there.send(b"x")
            rested.clock.advance(1.0)  # whatever was before is long ago
            yield selector, rested


def test_nothing_is_held_back_without_leeway() -> None:
    with something_to_read(0.0) as (selector, rested):
        assert [len(selector.select(None)) for _ in range(3)] == [1, 1, 1]
        assert rested.pauses == []


def test_what_comes_alone_is_taken_at_once_and_what_follows_waits_for_company() -> None:
    with something_to_read(0.05) as (selector, rested):
        assert len(selector.select(None)) == 1
        assert rested.pauses == []
        rested.clock.advance(0.02)
        assert len(selector.select(None)) == 1
        assert rested.pauses == [0.03]
        rested.clock.advance(0.05)
        assert len(selector.select(10.0)) == 1
        assert rested.pauses == [0.03]


def test_whoever_connects_does_not_wait_at_each_step() -> None:
    with something_to_read(0.05) as (selector, rested), socket.socket() as newcomer:
        assert len(selector.select(None)) == 1
        selector.register(newcomer, selectors.EVENT_WRITE)
        for _ in range(3):
            selector.select(None)
        assert rested.pauses == []
        rested.clock.advance(0.21)
        for _ in range(2):
            selector.select(None)
        assert rested.pauses == [0.05]


class Scripted:
    """A selector's answers one after another, with how long each was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
        self.asked: list[float | None] = []
        waiting = iter(answers)

        def select(_: object, timeout: float | None = None) -> list[int]:
            self.asked.append(timeout if timeout is None else round(timeout, 6))
            return [0] * next(waiting)

        monkeypatch.setattr(selectors.DefaultSelector, "select", select)


def test_what_ends_a_rest_waits_once_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    with something_to_read(0.05) as (selector, rested):
        script = Scripted(monkeypatch, 0, 1, 3)
        assert len(selector.select(None)) == 3
        assert (script.asked, rested.pauses) == ([0, None, 0], [0.05])


def test_the_end_of_a_rest_is_not_put_off_by_company(monkeypatch: pytest.MonkeyPatch) -> None:
    with something_to_read(0.05) as (selector, rested):
        script = Scripted(monkeypatch, 0, 1, 2)
        assert len(selector.select(0.02)) == 2
        assert (script.asked, rested.pauses) == ([0, 0.02, 0], [0.02])


def test_a_rest_that_nothing_ends_is_as_long_as_it_was_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with something_to_read(0.05) as (selector, rested):
        script = Scripted(monkeypatch, 0, 0)
        assert selector.select(0.3) == []
        assert (script.asked, rested.pauses) == ([0, 0.3], [])


def test_no_timer_is_late() -> None:
    with something_to_read(0.05) as (selector, rested):
        selector.select(None)
        assert len(selector.select(0.01)) == 1
        assert rested.pauses == [0.01]


def test_whoever_has_work_does_not_rest() -> None:
    with something_to_read(0.05) as (selector, rested):
        selector.select(None)
        assert len(selector.select(0)) == 1
        assert rested.pauses == []


def test_a_loop_of_its_own_pace_asks_before_it_rests() -> None:
    asked = []
    pace = WakeupDelay()
    pace.max_delay_s = lambda: asked.append(True) or 0.0  # type: ignore[func-returns-value]

    async def wait_for_a_line() -> bytes:
        here, there = socket.socketpair()
        with there:
            reader, writer = await asyncio.open_connection(sock=here)
            asyncio.get_running_loop().call_later(0.001, there.send, b"line\n")
            line = await reader.readline()
            writer.close()
            return line

    with asyncio.Runner(loop_factory=batching_loop_factory(pace)) as runner:
        assert runner.run(wait_for_a_line()) == b"line\n"
    assert asked


def test_threads_and_signals_are_heard_while_news_may_wait() -> None:
    """Both reach a loop by a socket of its own, which is looked at with all others."""
    pace = WakeupDelay()
    pace.max_delay_s = lambda: 0.001

    async def wait_for_a_thread() -> list[int]:
        return [await asyncio.to_thread(int, str(number)) for number in range(5)]

    with asyncio.Runner(loop_factory=batching_loop_factory(pace)) as runner:
        assert runner.run(wait_for_a_thread()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("with_binder", "writing", "leeway_s", "events", "few"),
    [
        pytest.param(0, False, 0.0, 10, False, id="nothing is under way"),
        pytest.param(0, True, 0.0, 10, True, id="our own bindings"),
        pytest.param(5, False, 0.005, 10, True, id="the binder's"),
        pytest.param(5, False, 0.005, 1501, False, id="so many that they would heap up"),
        pytest.param(5, True, 0.0, 1501, True, id="so many beside our own"),
    ],
)
def test_few_send_events_for_the_sake_of_bindings(
    with_binder: int, writing: bool, leeway_s: float, events: int, few: bool
) -> None:
    live = SimpleNamespace(with_the_binder=with_binder, is_writing=writing, leeway_s=lambda: leeway_s)
    sink = cast(EventSink, SimpleNamespace(waiting=events))
    assert _should_limit_event_senders(cast(LiveScheduler, live), sink) == few


def test_news_are_not_let_wait_for_long_while_many_events_are_to_be_answered() -> None:
    live = cast(LiveScheduler, SimpleNamespace(leeway_s=lambda: 0.25))
    few, many = (cast(EventSink, SimpleNamespace(waiting=waiting)) for waiting in (1500, 1501))
    assert (_max_wakeup_delay_s(live, few), _leeway_s(live, many)) == (0.25, 0.05)
