"""Does this process hold every lease that it needs? Several elections that count as one.

They are taken in the order given, the same in every process, so that no two wait for each other; a lease that is taken
is held while the next one is waited for. Losing one is losing all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bayplan.client.election import Election


class Elections:
    """Fits where one `Election` does: as what a process waits for, and as the guard of its writes."""

    def __init__(self, elections: Sequence[Election]) -> None:
        self._elections = tuple(elections)
        self._holding: list[asyncio.Task[None]] = []

    @property
    def leading(self) -> bool:
        return all(each.leading for each in self._elections)

    def check(self) -> None:
        """Raise unless we may write now."""
        for each in self._elections:
            each.check()

    def overdue_s(self) -> float:
        return max((each.overdue_s() for each in self._elections), default=0.0)

    async def acquire(self) -> None:
        """Return when this process holds all of them."""
        try:
            for each in self._elections:
                await self._acquire(each)
        except BaseException:
            await self._let_go()
            raise

    async def hold(self) -> None:
        """Renew all until cancelled (then they are given up) or until one is lost: then `LeaseLost`."""
        try:
            done, _ = await asyncio.wait(self._holding, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            await self._let_go()

    async def _acquire(self, election: Election) -> None:
        acquiring = asyncio.ensure_future(election.acquire())
        try:
            done, _ = await asyncio.wait((acquiring, *self._holding), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # one that was held and is lost says so
        finally:
            acquiring.cancel()
        self._holding.append(asyncio.ensure_future(election.hold()))

    async def _let_go(self) -> None:
        for each in self._holding:
            each.cancel()
        if self._holding:
            await asyncio.wait(self._holding)
        for each in self._holding:
            if not each.cancelled():
                each.exception()  # whoever had to hear of it has
        self._holding = []
