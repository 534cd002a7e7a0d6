"""Several elections that count as one: a process decides while it holds all of its leases.

All leases are observed from the start, so that all of them expire for a candidate at the same time when their holder is
dead. Taking two leases takes no longer than taking one. Deadlocks are impossible. Every process takes the leases in the
same order, and only when all of them are free. When another process takes one first, this process releases the ones it
took. So no process keeps one lease while another process holds the next. Losing one means losing all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from bayplan.client.election.held_writes import HeldWrites
from bayplan.client.election.leader_elector import LeaderElector
from bayplan.clock import LoopClock

log = logging.getLogger(__name__)


class MultiLeaseElector:
    """Elector over several leases, with the interface of `LeaderElector`."""

    def __init__(self, elections: Sequence[LeaderElector], clock: LoopClock) -> None:
        self._elections = tuple(elections)
        self._clock = clock
        self._held_writes = HeldWrites(clock)
        self._renewals: list[asyncio.Task[None]] = []

    @property
    def leading(self) -> bool:
        return all(each.leading for each in self._elections)

    def check(self) -> None:
        """Raise `LeaseLost` unless this process may write now."""
        for each in self._elections:
            each.check()

    async def hold_back(self) -> None:
        """As `LeaderElector.hold_back`: after the loss of one lease the other leases are released."""
        if not (any(each.lost for each in self._elections) or all(each.claimed for each in self._elections)):
            self.check()
        await self._held_writes.wait(self)

    def report_unsent(self) -> None:
        """Log how many writes were held back and never sent."""
        self._held_writes.report()

    def retain(self) -> None:
        for each in self._elections:
            each.retain()

    def overdue_s(self) -> float:
        return max((each.overdue_s() for each in self._elections), default=0.0)

    async def observe(self) -> None:
        """Read all leases until cancelled."""
        await asyncio.gather(*(each.observe() for each in self._elections))

    async def acquire(self) -> None:
        """Return when this process holds all leases."""
        log.info("attempting to acquire leader leases %s", ", ".join(str(each.lock) for each in self._elections))
        try:
            while not await self._acquire_all():
                await self._clock.sleep(min(each.pause_s() for each in self._elections))
        except BaseException:
            await self._release_all()
            raise

    async def renew_until_lost(self) -> None:
        """Renew all until cancelled (they are released) or until one is lost: then `LeaseLost`."""
        try:
            done, _ = await asyncio.wait(self._renewals, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            await self._release_all()

    async def _acquire_all(self) -> bool:
        """Try once. Returns False when another process holds one of them; then this process holds none."""
        if not all(await asyncio.gather(*(each.can_acquire() for each in self._elections))):
            return False
        for each in self._elections:
            if not await self._acquire_one(each):
                await self._release_all()
                return False
        return True

    async def _acquire_one(self, election: LeaderElector) -> bool:
        """Take one lease while the earlier ones are renewed."""
        attempt = asyncio.ensure_future(election.try_acquire())
        try:
            done, _ = await asyncio.wait((attempt, *self._renewals), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # raises if a lease that was held is lost
        finally:
            attempt.cancel()
        acquired = attempt.result()
        if acquired:
            self._renewals.append(asyncio.ensure_future(election.renew_until_lost()))
        return acquired

    async def _release_all(self) -> None:
        for each in self._renewals:
            each.cancel()
        if self._renewals:
            await asyncio.wait(self._renewals)
        for each in self._renewals:
            if not each.cancelled():
                each.exception()  # retrieved, so that asyncio does not log it; its waiter has raised it
        self._renewals = []
