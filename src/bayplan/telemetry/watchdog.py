"""Does the loop still turn? A thread that ends the process when it does not, and says who holds it.

One thread owns everything, so a plugin that never returns would stop all of it without a word, and the lease would be
renewed no more while nobody knows why. Started once by the composition root. Time is counted in ticks of the thread's
own: a process that was stopped and goes on has lost no turn. Cost: two wake-ups a tick, ten ticks until it barks.
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
"""The exit code of a process whose loop was held: an error of software, in the words of sysexits.h."""

_TICKS = 10
_EXIT_LOG_TIMEOUT_S = 5.0
_STDERR = 2

DescribeFrame = Callable[[FrameType], str]
"""What the code of a frame is doing, for people; empty where that is not known."""


@asynccontextmanager
async def watched_loop(limit_s: float, describe: DescribeFrame) -> AsyncIterator[None]:
    """While the block runs, the running loop has to turn at least once in `limit_s`; 0: it need not."""
    if limit_s <= 0:
        yield
        return
    watchdog = Watchdog(limit_s, describe, threading.get_ident(), _end)
    watchdog.start()
    beating = asyncio.create_task(_beat(watchdog, limit_s / _TICKS), name="watchdog")
    try:
        yield
    finally:
        beating.cancel()
        watchdog.stop()


class Watchdog(threading.Thread):
    """Barks at `end` when nobody called `beat` for as many ticks as make the limit."""

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
        """The loop had a turn."""
        self._beats += 1

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(self._limit_s / _TICKS):
            if self.tick():
                return

    def tick(self) -> bool:
        """Look once; true where that was too often in vain."""
        if self._beats != self._seen:
            self._seen, self._missed = self._beats, 0
            return False
        self._missed += 1
        if self._missed <= _TICKS:
            return False
        self._end(self.sentence())
        return True

    def sentence(self) -> str:
        """Who holds the loop."""
        frame = sys._current_frames().get(self._watched)
        holder = self._describe(frame) if frame is not None else ""
        return (
            f"{holder or 'something'} has held the loop for {self._limit_s:g} s, and nothing else was done meanwhile; "
            "the process ends, so that another one can go on"
        )


async def _beat(watchdog: Watchdog, every_s: float) -> None:
    while True:
        watchdog.beat()
        await asyncio.sleep(every_s)


def _end(sentence: str) -> NoReturn:
    """No clean-up: it would need the thread that is held. No logger either, since that thread may hold its lock; and
    if nobody reads the standard error, the process ends all the same."""
    last_resort = threading.Timer(_EXIT_LOG_TIMEOUT_S, os._exit, (EXIT_LOOP_BLOCKED,))
    last_resort.daemon = True
    last_resort.start()
    os.write(_STDERR, f"{sentence}\n".encode())
    faulthandler.dump_traceback(file=_STDERR, all_threads=True)
    os._exit(EXIT_LOOP_BLOCKED)
