"""Time as an argument: the wall clock, and a manual twin for tests and simulation.

Only this module and the composition root read real time. Everything else is handed a `Clock`, so that a test or a
replay decides what "now" is and nothing in the core depends on when it runs.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

# Linux counts the time of suspension here and not in CLOCK_MONOTONIC; elsewhere the monotonic clock is all there is.
_UPTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the product may know about time."""

    def now(self) -> datetime:
        """The current moment, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start, never going back: for durations."""
        ...


class LoopClock(Clock, Protocol):
    """What code on the event loop may know beyond: how to wait, and how long the machine has been up."""

    def uptime_s(self) -> float:
        """Seconds from an arbitrary start that pass also while the machine is suspended: for promises to others."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Give the others their turn until that many seconds have passed."""
        ...


class SystemClock:
    """The machine's own clock."""

    monotonic_s = staticmethod(time.perf_counter)  # as it is: it is asked twice for every call of a plugin

    def now(self) -> datetime:
        return datetime.now(UTC)

    def uptime_s(self) -> float:
        return time.clock_gettime(_UPTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves when told to."""

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
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), woken))
        return await woken

    @property
    def sleepers(self) -> int:
        """How many wait for this clock to move."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move on; whoever slept long enough gets its turn when the loop has one, the earliest first."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        self._elapsed_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed_s:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():  # its sleeper may have been cancelled
                woken.set_result(None)
