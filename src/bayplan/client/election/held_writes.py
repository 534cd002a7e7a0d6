"""Writes that a guard has refused: they wait for the end of the process, instead of failing one by one.

Called by elections. A process that cannot be sure of its lease either renews it after all, and the writes are sent, or
loses it, and then cancels whatever is under way: no caller has to handle or log a failure that the lease explains.
Cost: a look at the lease every half second for each write that waits, for the seconds until one of both has happened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from bayplan.clock import LoopClock

log = logging.getLogger(__name__)

_PAUSE_S = 0.5
_PAUSES = 20
"""A write whose task is not cancelled for so long fails: its process does not end with the lease."""


class _Lease(Protocol):
    @property
    def leading(self) -> bool: ...
    def check(self) -> None: ...


class HeldWrites:
    """The writes of one process, and how many of them were never sent."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._unsent = 0

    async def wait(self, lease: _Lease) -> None:
        """Return when the write may be sent after all; raises `LeaseLost` when waiting is of no use."""
        self._unsent += 1
        task = asyncio.current_task()
        for _ in range(_PAUSES):
            if task is not None and task.cancelling():
                raise asyncio.CancelledError("the lease is lost")  # it was to end anyway, and only cleans up
            await self._clock.sleep(_PAUSE_S)
            if lease.leading:
                self._unsent -= 1
                return
        lease.check()

    def report(self) -> None:
        """One line for all writes that were not sent. Called when the tasks that wait here were cancelled."""
        if self._unsent:
            log.warning("stopped leading: %d writes were not sent; the next leader decides anew", self._unsent)
        self._unsent = 0
