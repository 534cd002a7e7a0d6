"""Cooperative work: a generator that yields where it may be interrupted, and returns a value."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from bayplan.clock import LoopClock

T = TypeVar("T")

SLICE_S = 0.002
"""How long cooperative work may block the event loop at a time."""


def run_to_end(work: Generator[None, None, T]) -> T:
    """Run the work without pauses and return its value."""
    try:
        while True:
            next(work)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def run_cooperatively(work: Generator[None, None, T], clock: LoopClock, slice_s: float = SLICE_S) -> T:
    """Run the work, and yield to the event loop after each time slice."""
    ends_s = clock.monotonic_s() + slice_s
    try:
        while True:
            next(work)
            if clock.monotonic_s() > ends_s:
                await clock.sleep(0.0)
                ends_s = clock.monotonic_s() + slice_s
    except StopIteration as stop:
        value: T = stop.value
        return value
