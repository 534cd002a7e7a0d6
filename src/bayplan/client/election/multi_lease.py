"""Several elections that count as one: a process decides while it holds all of its leases.

All leases are observed from the start, so that all of them end for a candidate when their holder is dead: taking over
two leases takes no longer than taking over one. Deadlocks are impossible. Leases are taken in the order given, the same
in every process, and only when all of them are free; when another process is faster at one, those that were taken
before are given up. So no process keeps one lease while another process holds the next. Losing one is losing all.
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
    """Fits where one `Election` does: as what a process waits for, and as the guard of its writes."""

    def __init__(self, elections: Sequence[LeaderElector], clock: LoopClock) -> None:
        self._elections = tuple(elections)
        self._clock = clock
        self._held_writes = HeldWrites(clock)
        self._holding: list[asyncio.Task[None]] = []

    @property
    def leading(self) -> bool:
        return all(each.leading for each in self._elections)

    def check(self) -> None:
        """Raise unless we may write now."""
        for each in self._elections:
            each.check()

    async def hold_back(self) -> None:
        """As `Election.hold_back`: losing one lease is losing all, and the others are given up then."""
        if not (any(each.lost for each in self._elections) or all(each.claimed for each in self._elections)):
            self.check()
        await self._held_writes.wait(self)

    def report_unsent(self) -> None:
        """Log how many writes were held back and never sent."""
        self._held_writes.report()

    def retain(self) -> None:
        """As `Election.retain`."""
        for each in self._elections:
            each.retain()

    def overdue_s(self) -> float:
        return max((each.overdue_s() for each in self._elections), default=0.0)

    async def observe(self) -> None:
        """Read all leases until cancelled."""
        await asyncio.gather(*(each.observe() for each in self._elections))

    async def acquire(self) -> None:
        """Return when this process holds all of them."""
        log.info("attempting to acquire leader leases %s", ", ".join(str(each.lock) for each in self._elections))
        try:
            while not await self._acquire_all():
                await self._clock.sleep(min(each.pause_s() for each in self._elections))
        except BaseException:
            await self._release_all()
            raise

    async def renew_until_lost(self) -> None:
        """Renew all until cancelled (then they are given up) or until one is lost: then `LeaseLost`."""
        try:
            done, _ = await asyncio.wait(self._holding, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            await self._release_all()

    async def _acquire_all(self) -> bool:
        """One try; false when one of them is held by another process, and then none is held by this one."""
        if not all(await asyncio.gather(*(each.can_acquire() for each in self._elections))):
            return False
        for each in self._elections:
            if not await self._acquire_one(each):
                await self._release_all()
                return False
        return True

    async def _acquire_one(self, election: LeaderElector) -> bool:
        """Take one, while those before it are renewed."""
        taking = asyncio.ensure_future(election.try_acquire())
        try:
            done, _ = await asyncio.wait((taking, *self._holding), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # raises if a lease that was held is lost
        finally:
            taking.cancel()
        taken = taking.result()
        if taken:
            self._holding.append(asyncio.ensure_future(election.renew_until_lost()))
        return taken

    async def _release_all(self) -> None:
        for each in self._holding:
            each.cancel()
        if self._holding:
            await asyncio.wait(self._holding)
        for each in self._holding:
            if not each.cancelled():
                each.exception()  # it was raised already where it matters
        self._holding = []
