"""Work that gives others their turn: a generator that yields wherever it may be interrupted, and ends with a value."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from bayplan.clock import LoopClock

T = TypeVar("T")

SLICE_S = 0.002
"""How long work for people may hold the loop, one step aside."""


def run_to_end(work: Generator[None, None, T]) -> T:
    """Do it all, where nobody else waits for a turn."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        value: T = done.value
        return value


async def run_cooperatively(work: Generator[None, None, T], clock: LoopClock, turn_s: float = SLICE_S) -> T:
    """Do it all, and let the loop have its turn whenever so much time has passed."""
    ends_s = clock.monotonic_s() + turn_s
    try:
        while True:
            next(work)
            if clock.monotonic_s() > ends_s:
                await clock.sleep(0.0)
                ends_s = clock.monotonic_s() + turn_s
    except StopIteration as done:
        value: T = done.value
        return value
