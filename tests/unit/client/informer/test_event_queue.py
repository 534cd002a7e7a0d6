"""Event queue: order, slices and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bayplan.client.informer.event_queue import EventQueue
from bayplan.clock import ManualClock
from support.harness.async_tests import async_test, wait_until

SLICE_S = 0.01


class Handled:
    """A queue whose events take some slices each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue = EventQueue(self.clock, SLICE_S)
        self.steps: list[str] = []

    def add(self, name: str, *, pauses: int = 0) -> None:
        def work() -> Iterator[None]:
            for number in range(pauses):
                self.steps.append(f"{name}{number}")
                self.clock.advance(2 * SLICE_S)
                yield
            self.steps.append(name)

        self.queue.add(work)

    def handle_slice(self) -> bool:
        return self.queue.handle_until(self.clock.monotonic_s() + SLICE_S)


def test_a_slice_ends_within_an_event_and_the_next_goes_on_with_it() -> None:
    handled = Handled()
    handled.add("a", pauses=2)
    handled.add("b")
    assert [handled.handle_slice() for _ in range(3)] == [False, False, True]
    assert handled.steps == ["a0", "a1", "a", "b"]
    assert handled.queue.is_empty


def test_an_event_that_was_started_is_not_handled_yet() -> None:
    handled = Handled()
    handled.add("a", pauses=1)
    assert not handled.handle_slice()
    assert (len(handled.queue.waiting), handled.queue.is_empty) == (0, False)


def test_a_slice_ends_after_a_slow_event_without_pauses() -> None:
    handled = Handled()

    def slow() -> Iterator[None]:
        handled.clock.advance(2 * SLICE_S)
        return iter(())

    handled.queue.add(slow)
    handled.add("b")
    assert not handled.handle_slice()
    assert handled.steps == []
    handled.queue.add(slow)
    assert [handled.handle_slice(), handled.queue.is_empty] == [True, True]
    assert handled.steps == ["b"]


@async_test
async def test_events_are_handled_as_they_arrive() -> None:
    handled = Handled()
    handling = asyncio.ensure_future(handled.queue.handle_forever())
    for name in ("a", "b"):
        handled.add(name, pauses=1)
        await wait_until(lambda: handled.queue.is_empty)
    assert handled.steps == ["a0", "a", "b0", "b"]
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
