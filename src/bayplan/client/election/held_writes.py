"""Holds back writes that the lease does not allow, instead of failing them one by one.

Called by elections. A process that is not sure of its lease either renews it, and the writes are sent, or loses it, and
then cancels all its tasks. So no caller handles or logs a failure that the lease explains. Cost: a check of the lease
every half second for each held write, for the seconds until the lease is renewed or lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from bayplan.clock import LoopClock

log = logging.getLogger(__name__)

_PAUSE_S = 0.5
_PAUSES = 20
"""A write that is still held after this many pauses fails: its process does not end with the lease."""


class _Lease(Protocol):
    @property
    def leading(self) -> bool: ...
    def check(self) -> None: ...


class HeldWrites:
    """Held writes of one process, and the number of them that were never sent."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._unsent = 0

    async def wait(self, lease: _Lease) -> None:
        """Wait until the write may be sent. Raises `LeaseLost` when that is not possible any more."""
        self._unsent += 1
        task = asyncio.current_task()
        for _ in range(_PAUSES):
            if task is not None and task.cancelling():
                raise asyncio.CancelledError("the lease is lost")  # the task was ending and only cleans up
            await self._clock.sleep(_PAUSE_S)
            if lease.leading:
                self._unsent -= 1
                return
        lease.check()

    def report(self) -> None:
        """Log one line for all writes that were not sent. Called after the tasks that wait here were cancelled."""
        if self._unsent:
            log.warning("stopped leading: %d writes were not sent; the next leader decides anew", self._unsent)
        self._unsent = 0
