"""Batching of wake-ups: events are handled at once, unless a delay is allowed."""

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


class SleepClock:
    """A clock that advances only during sleeps."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.clock.advance(seconds)


@contextmanager
def readable_selector(delay_s: float) -> Iterator[tuple[BatchingSelector, SleepClock]]:
    pace, sleeper = WakeupDelay(), SleepClock()
    pace.max_delay_s = lambda: delay_s
    with BatchingSelector(pace, now_s=sleeper.clock.monotonic_s, sleep=sleeper.sleep) as selector:
        reader_socket, writer_socket = socket.socketpair()
        with reader_socket, writer_socket:
            selector.register(reader_socket, selectors.EVENT_READ)
            writer_socket.send(b"x")
            sleeper.clock.advance(1.0)  # after the time without batching
            yield selector, sleeper


def test_events_are_not_delayed_by_default() -> None:
    with readable_selector(0.0) as (selector, sleeper):
        assert [len(selector.select(None)) for _ in range(3)] == [1, 1, 1]
        assert sleeper.pauses == []


def test_a_single_event_is_handled_at_once_and_the_next_ones_are_batched() -> None:
    with readable_selector(0.05) as (selector, sleeper):
        assert len(selector.select(None)) == 1
        assert sleeper.pauses == []
        sleeper.clock.advance(0.02)
        assert len(selector.select(None)) == 1
        assert sleeper.pauses == [0.03]
        sleeper.clock.advance(0.05)
        assert len(selector.select(10.0)) == 1
        assert sleeper.pauses == [0.03]


def test_there_is_no_batching_after_a_new_connection() -> None:
    with readable_selector(0.05) as (selector, sleeper), socket.socket() as new_connection:
        assert len(selector.select(None)) == 1
        selector.register(new_connection, selectors.EVENT_WRITE)
        for _ in range(3):
            selector.select(None)
        assert sleeper.pauses == []
        sleeper.clock.advance(0.21)
        for _ in range(2):
            selector.select(None)
        assert sleeper.pauses == [0.05]


class ScriptedSelector:
    """A selector with scripted results, which records the timeouts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
        self.timeouts: list[float | None] = []
        waiting = iter(answers)

        def select(_: object, timeout: float | None = None) -> list[int]:
            self.timeouts.append(timeout if timeout is None else round(timeout, 6))
            return [0] * next(waiting)

        monkeypatch.setattr(selectors.DefaultSelector, "select", select)


def test_the_event_that_ends_a_sleep_waits_once_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with readable_selector(0.05) as (selector, sleeper):
        script = ScriptedSelector(monkeypatch, 0, 1, 3)
        assert len(selector.select(None)) == 3
        assert (script.timeouts, sleeper.pauses) == ([0, None, 0], [0.05])


def test_a_batch_does_not_exceed_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with readable_selector(0.05) as (selector, sleeper):
        script = ScriptedSelector(monkeypatch, 0, 1, 2)
        assert len(selector.select(0.02)) == 2
        assert (script.timeouts, sleeper.pauses) == ([0, 0.02, 0], [0.02])


def test_a_sleep_without_events_lasts_for_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with readable_selector(0.05) as (selector, sleeper):
        script = ScriptedSelector(monkeypatch, 0, 0)
        assert selector.select(0.3) == []
        assert (script.timeouts, sleeper.pauses) == ([0, 0.3], [])


def test_timers_are_not_delayed() -> None:
    with readable_selector(0.05) as (selector, sleeper):
        selector.select(None)
        assert len(selector.select(0.01)) == 1
        assert sleeper.pauses == [0.01]


def test_a_loop_with_ready_tasks_does_not_sleep() -> None:
    with readable_selector(0.05) as (selector, sleeper):
        selector.select(None)
        assert len(selector.select(0)) == 1
        assert sleeper.pauses == []


def test_a_batching_loop_asks_for_the_delay_before_it_sleeps() -> None:
    timeouts = []
    pace = WakeupDelay()
    pace.max_delay_s = lambda: timeouts.append(True) or 0.0  # type: ignore[func-returns-value]

    async def wait_for_a_line() -> bytes:
        reader_socket, writer_socket = socket.socketpair()
        with writer_socket:
            reader, writer = await asyncio.open_connection(sock=reader_socket)
            asyncio.get_running_loop().call_later(0.001, writer_socket.send, b"line\n")
            line = await reader.readline()
            writer.close()
            return line

    with asyncio.Runner(loop_factory=batching_loop_factory(pace)) as runner:
        assert runner.run(wait_for_a_line()) == b"line\n"
    assert timeouts


def test_threads_and_signals_wake_a_batching_loop() -> None:
    """Both wake a loop by a socket, which is selected like all other sockets."""
    pace = WakeupDelay()
    pace.max_delay_s = lambda: 0.001

    async def wait_for_a_thread() -> list[int]:
        return [await asyncio.to_thread(int, str(number)) for number in range(5)]

    with asyncio.Runner(loop_factory=batching_loop_factory(pace)) as runner:
        assert runner.run(wait_for_a_thread()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("with_binder", "writing", "delay_s", "events", "few"),
    [
        pytest.param(0, False, 0.0, 10, False, id="no bindings in flight"),
        pytest.param(0, True, 0.0, 10, True, id="own bindings in flight"),
        pytest.param(5, False, 0.005, 10, True, id="bindings of the binder"),
        pytest.param(5, False, 0.005, 1501, False, id="too many waiting events"),
        pytest.param(5, True, 0.0, 1501, True, id="many waiting events and own bindings"),
    ],
)
def test_few_event_senders_run_while_bindings_are_in_flight(
    with_binder: int, writing: bool, delay_s: float, events: int, few: bool
) -> None:
    live = SimpleNamespace(pods_at_binder=with_binder, is_writing=writing, max_event_delay_s=lambda: delay_s)
    sink = cast(EventSink, SimpleNamespace(waiting=events))
    assert _should_limit_event_senders(cast(LiveScheduler, live), sink) == few


def test_the_delay_is_short_while_many_events_wait() -> None:
    live = cast(LiveScheduler, SimpleNamespace(max_event_delay_s=lambda: 0.25))
    few, many = (cast(EventSink, SimpleNamespace(waiting=waiting)) for waiting in (1500, 1501))
    assert (_max_wakeup_delay_s(live, few), _max_wakeup_delay_s(live, many)) == (0.25, 0.05)
