"""The write guard of a process with an expired lease: it refuses every write and counts the refusals."""

from __future__ import annotations

import logging

import pytest

from bayplan.client.election.held_writes import HeldWrites
from bayplan.clock import LoopClock
from bayplan.errors import LeaseLost


class StaleLease:
    """Used in place of an election that has lost its lease."""

    def __init__(self, clock: LoopClock) -> None:
        self.leading = False
        self.refused = 0
        self._held = HeldWrites(clock)

    def check(self) -> None:
        if not self.leading:
            raise LeaseLost("the lease is 20 s old")

    async def hold_back(self) -> None:
        self.refused += 1
        await self._held.wait(self)

    def report_unsent(self) -> None:
        self._held.report()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log records of level warning, and records with a traceback."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING or each.exc_info]


def unsent(count: int) -> str:
    return f"stopped leading: {count} writes were not sent; the next leader decides anew"
