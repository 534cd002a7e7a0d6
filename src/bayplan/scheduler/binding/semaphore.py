"""Who may go on now, where only so many may at once? Those who wait go in the order in which they came.

Asked twice for each binding. As asyncio's semaphore, save that a turn is handed to the next right away: that one looks
at all whom it has woken in the same turn of the loop again and again, and answers come by dozens.
"""

from __future__ import annotations

import asyncio
from collections import deque


class FifoSemaphore:
    """So many at once. Whoever takes a turn gives it back."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if self._free:  # then nobody waits
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was our turn; it is the next one's now
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else whoever waited has gone
                turn.set_result(None)
                return
        self._free += 1
