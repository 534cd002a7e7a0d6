"""The guard of a process whose lease is too old: it lets no write out, and counts those that it has refused."""

from __future__ import annotations

import logging

import pytest

from bayplan.client.election.held_writes import HeldWrites
from bayplan.clock import LoopClock
from bayplan.errors import LeaseLost


class StaleLease:
    """Fits where an election that has lost its lease does."""

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
    """Every warning, and everything with a trace."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING or each.exc_info]


def unsent(count: int) -> str:
    return f"stopped leading: {count} writes were not sent; the next leader decides anew"
