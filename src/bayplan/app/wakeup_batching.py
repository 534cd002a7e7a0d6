"""When does the loop look whether something has arrived? At once, unless what can arrive may wait for company.

A process that is woken for every answer and every change of a pod pays for the waking more than for the work: its code
and data have left the processor's caches each time. Where nobody is the worse for it, what arrives gathers for some
milliseconds and is taken together. Who knows how long that may be is asked before each rest. Nothing waits longer than
that: what has come while others worked or paused is taken at once, and what ends a rest waits once for company. Whoever
connects, a probe say, waits so once and not at each step of that: there is no leeway for a while after a connection was
opened. On one that is kept each question waits.
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
"""How long nothing gathers once somebody has connected."""


class WakeupDelay:
    """How long what arrives may wait. Until somebody says so, it does not."""

    def __init__(self) -> None:
        self.max_delay_s: Callable[[], float] = lambda: 0.0


class BatchingSelector(selectors.DefaultSelector):
    """A selector that looks, while there is leeway, only so long after it looked last."""

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
        self._looked_s = float("-inf")
        self._attentive_until_s = float("-inf")

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        self._attentive_until_s = self._now_s() + _NO_BATCHING_AFTER_CONNECT_S
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector does. With a timeout of zero others have work to do, and nobody rests."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        leeway_s = self._pace.max_delay_s()
        at_once = leeway_s <= 0 or self._now_s() <= self._attentive_until_s
        found = super().select(timeout) if at_once else self._select_batch(leeway_s, timeout)
        self._looked_s = self._now_s()
        return found

    def _select_batch(self, leeway_s: float, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """What has come, as much of it as may come together, and no timer later than without."""
        ends_s = float("inf") if timeout is None else self._now_s() + timeout
        self._pause(self._looked_s + leeway_s, ends_s)
        found = super().select(0)
        if found:
            return found  # it has waited long enough
        found = super().select(None if timeout is None else max(0.0, ends_s - self._now_s()))
        if not found or not self._pause(self._now_s() + leeway_s, ends_s):
            return found
        return super().select(0)

    def _pause(self, until_s: float, ends_s: float) -> bool:
        """Rest until then, and not beyond the end; whether that took any time."""
        pause_s = min(until_s, ends_s) - self._now_s()
        if pause_s > 0:
            self._sleep(pause_s)
        return pause_s > 0


def batching_loop_factory(pace: WakeupDelay) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop of a process, for `asyncio.Runner`."""
    return lambda: asyncio.SelectorEventLoop(BatchingSelector(pace))
