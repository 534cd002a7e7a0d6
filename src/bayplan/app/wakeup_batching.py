"""Event loop that batches wake-ups: it may let socket events gather for some milliseconds before it handles them.

A process that wakes up for every response and every pod change pays more for the wake-ups than for the work: each time
the processor's caches have lost its code and data. Where a delay harms nothing, events gather and are handled together.
`WakeupDelay` is asked for the longest delay before each sleep, and no event waits longer. Events that arrived during
work or a sleep are handled at once; the event that ends a sleep waits once for more. After a new connection, such as a
probe's, there is no delay for a while, so it waits once and not at each of its steps. On a kept-alive connection each
request waits.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


_NO_BATCHING_AFTER_CONNECT_S = 0.2
"""Time without batching after a connection was opened."""


class WakeupDelay:
    """The longest delay of events. By default 0."""

    def __init__(self) -> None:
        self.max_delay_s: Callable[[], float] = lambda: 0.0


class BatchingSelector(selectors.DefaultSelector):
    """A selector that, while a delay is allowed, polls at most once per delay."""

    def __init__(
        self,
        pace: WakeupDelay,
        *,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._pace = pace
        self._now_s = now_s
        self._sleep = sleep
        self._selected_s = float("-inf")
        self._no_batching_until_s = float("-inf")

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        self._no_batching_until_s = self._now_s() + _NO_BATCHING_AFTER_CONNECT_S
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select events. A timeout of zero means that tasks are ready to run, so there is no delay."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        delay_s = self._pace.max_delay_s()
        at_once = delay_s <= 0 or self._now_s() <= self._no_batching_until_s
        found = super().select(timeout) if at_once else self._select_batch(delay_s, timeout)
        self._selected_s = self._now_s()
        return found

    def _select_batch(self, delay_s: float, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select events as a batch. No timer fires later than without batching."""
        ends_s = float("inf") if timeout is None else self._now_s() + timeout
        self._pause(self._selected_s + delay_s, ends_s)
        found = super().select(0)
        if found:
            return found  # waited for the delay already
        found = super().select(None if timeout is None else max(0.0, ends_s - self._now_s()))
        if not found or not self._pause(self._now_s() + delay_s, ends_s):
            return found
        return super().select(0)

    def _pause(self, until_s: float, ends_s: float) -> bool:
        """Sleep until `until_s`, at most until `ends_s`. Returns whether it slept."""
        pause_s = min(until_s, ends_s) - self._now_s()
        if pause_s > 0:
            self._sleep(pause_s)
        return pause_s > 0


def batching_loop_factory(pace: WakeupDelay) -> Callable[[], asyncio.AbstractEventLoop]:
    """Loop factory for `asyncio.Runner`."""
    return lambda: asyncio.SelectorEventLoop(BatchingSelector(pace))
