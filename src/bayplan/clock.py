"""Clocks as arguments: the wall clock, and a manual clock for tests and simulation.

Only this module and the composition root read real time. All other code gets a `Clock`, so a test or a replay decides
what "now" is, and no decision depends on when it runs.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

# Linux counts the time of suspension in CLOCK_BOOTTIME and not in CLOCK_MONOTONIC; other systems have only the latter.
_UPTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The time that scheduling code can read."""

    def now(self) -> datetime:
        """The current moment, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start, never going back: for durations."""
        ...


class LoopClock(Clock, Protocol):
    """A clock for code on the event loop: it can also wait, and knows how long the machine has been up."""

    def uptime_s(self) -> float:
        """Seconds from an arbitrary start that also pass while the machine is suspended: for leases and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run until that many seconds have passed."""
        ...


class SystemClock:
    monotonic_s = staticmethod(time.perf_counter)  # no wrapper: it is called twice for every call of a plugin

    def now(self) -> datetime:
        return datetime.now(UTC)

    def uptime_s(self) -> float:
        return time.clock_gettime(_UPTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when `advance` is called."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def uptime_s(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return await asyncio.sleep(0)
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), waker))
        return await waker

    @property
    def sleepers(self) -> int:
        """Number of tasks that wait for this clock to move."""
        return sum(not waker.done() for _, _, waker in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Tasks whose sleep is over continue at the loop's next turn, the earliest first."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: advance({seconds}); give 0 or more seconds")
        self._elapsed_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed_s:
            _, _, waker = heapq.heappop(self._sleepers)
            if not waker.done():  # its sleeper may have been cancelled
                waker.set_result(None)
