"""Semaphore that limits concurrent binding writes. Waiting tasks get their turn in order of arrival.

Used twice for each binding. Unlike `asyncio.Semaphore`, a release hands the turn to the next task directly.
asyncio's scans all woken tasks again on each release within one turn of the loop, and responses arrive by dozens.
"""

from __future__ import annotations

import asyncio
from collections import deque


class FifoSemaphore:
    """Allows a fixed number of holders at once. Each `acquire` needs one `release`."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if self._free:  # no task waits then
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn was handed to this task: pass it on
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else the waiting task was cancelled
                turn.set_result(None)
                return
        self._free += 1
