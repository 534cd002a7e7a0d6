"""Time as an argument: the wall clock, and a manual twin for tests and simulation.

Only this module and the composition root read real time. Everything else is handed a `Clock`, so that a test or a
replay decides what "now" is and nothing in the core depends on when it runs.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the product may know about time."""

    def now(self) -> datetime:
        """The current moment, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start, never going back: for durations."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.perf_counter()


class ManualClock:
    """A clock that moves when told to."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        self._elapsed_s += seconds
