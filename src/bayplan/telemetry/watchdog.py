"""Watchdog thread: ends the process when the event loop is blocked for too long, and reports what blocks it.

One thread owns all state, so a plugin that never returns would stop the process silently. The lease would expire, and
no log would say why. Started once by the composition root. The thread counts time in its own ticks, so a process that
was stopped and continues does not end. Cost: two wake-ups a tick, and ten ticks make the limit.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import NoReturn

EXIT_LOOP_BLOCKED = 70
"""The exit code of a process whose loop is blocked: EX_SOFTWARE of sysexits.h."""

_TICKS = 10
_EXIT_LOG_TIMEOUT_S = 5.0
_STDERR = 2

DescribeFrame = Callable[[FrameType], str]
"""Describes what the code of a frame does, for people; empty if unknown."""


@asynccontextmanager
async def watched_loop(limit_s: float, describe: DescribeFrame) -> AsyncIterator[None]:
    """While the block runs, the running loop has to turn at least once in `limit_s`. 0 turns the watchdog off."""
    if limit_s <= 0:
        yield
        return
    watchdog = Watchdog(limit_s, describe, threading.get_ident(), _end)
    watchdog.start()
    beat_task = asyncio.create_task(_beat(watchdog, limit_s / _TICKS), name="watchdog")
    try:
        yield
    finally:
        beat_task.cancel()
        watchdog.stop()


class Watchdog(threading.Thread):
    """Calls `end` when `beat` was not called for as many ticks as make the limit."""

    def __init__(self, limit_s: float, describe: DescribeFrame, watched: int, end: Callable[[str], None]) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._limit_s = limit_s
        self._describe = describe
        self._watched = watched
        self._end = end
        self._beats = 0
        self._seen = 0
        self._missed = 0
        self._stopped = threading.Event()

    def beat(self) -> None:
        """Record that the loop had a turn."""
        self._beats += 1

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(self._limit_s / _TICKS):
            if self.tick():
                return

    def tick(self) -> bool:
        """Check once. True if the limit is exceeded and `end` was called."""
        if self._beats != self._seen:
            self._seen, self._missed = self._beats, 0
            return False
        self._missed += 1
        if self._missed <= _TICKS:
            return False
        self._end(self.sentence())
        return True

    def sentence(self) -> str:
        """Describe what blocks the loop."""
        frame = sys._current_frames().get(self._watched)
        holder = self._describe(frame) if frame is not None else ""
        return (
            f"{holder or 'unknown code'} has blocked the event loop for {self._limit_s:g} s and no other work was "
            "done; the process ends, so that another instance can take over"
        )


async def _beat(watchdog: Watchdog, every_s: float) -> None:
    while True:
        watchdog.beat()
        await asyncio.sleep(every_s)


def _end(sentence: str) -> NoReturn:
    """Exit without clean-up, which would need the blocked thread. No logger is used, since that thread may hold its
    lock. The process also ends if the standard error is not read."""
    last_resort = threading.Timer(_EXIT_LOG_TIMEOUT_S, os._exit, (EXIT_LOOP_BLOCKED,))
    last_resort.daemon = True
    last_resort.start()
    os.write(_STDERR, f"{sentence}\n".encode())
    faulthandler.dump_traceback(file=_STDERR, all_threads=True)
    os._exit(EXIT_LOOP_BLOCKED)
