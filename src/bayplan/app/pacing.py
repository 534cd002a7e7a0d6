"""When does the loop look whether something has arrived? At once, unless what can arrive may wait for company.

A process that is woken for every answer and every change of a pod pays for the waking more than for the work: its code
and data have left the processor's caches each time. Where nobody is the worse for it, what arrives gathers for some
milliseconds and is taken together. Who knows how long that may be is asked before each rest; after a rest that was
longer than that nothing is held back, so what comes alone is taken at once.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable


class Pace:
    """How long what arrives may wait. Until somebody says so, it does not."""

    def __init__(self) -> None:
        self.leeway_s: Callable[[], float] = lambda: 0.0


class PacedSelector(selectors.DefaultSelector):
    """A selector that looks, while there is leeway, only so long after it looked last."""

    def __init__(
        self,
        pace: Pace,
        *,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._pace = pace
        self._now_s = now_s
        self._sleep = sleep
        self._looked_s = float("-inf")

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector does. With a timeout of zero others have work to do, and nobody rests."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        leeway_s = self._pace.leeway_s()
        if leeway_s > 0:
            pause_s = self._looked_s + leeway_s - self._now_s()
            if timeout is not None:
                pause_s = min(pause_s, timeout)
            if pause_s > 0:
                self._sleep(pause_s)
                timeout = None if timeout is None else max(0.0, timeout - pause_s)
        found = super().select(timeout)
        self._looked_s = self._now_s()
        return found


def paced_loop(pace: Pace) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop of a process, for `asyncio.Runner`."""
    return lambda: asyncio.SelectorEventLoop(PacedSelector(pace))
