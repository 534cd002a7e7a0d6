"""How do controllers run on an API server? One client with a limit of its own, and a lease if there may be others."""

from __future__ import annotations

import asyncio
import platform
import random
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from bayplan import __version__
from bayplan.client import Client, Election, Target
from bayplan.clock import LoopClock, SystemClock
from bayplan.controllers import Controllers

LEASE_NAME = "kube-controller-manager"
LEASE_NAMESPACE = "kube-system"


class ControllersProcess:
    """The controllers, and whether they may work."""

    def __init__(self, controllers: Controllers, election: Election | None) -> None:
        self.controllers = controllers
        self.election = election

    async def run(self) -> None:
        """Work until cancelled, from when the lease is held; `LeaseLost` when it is held no longer."""
        if self.election is None:
            await self.controllers.run()
            return
        await self.election.acquire()
        holding = asyncio.ensure_future(self.election.hold())
        working = asyncio.ensure_future(self.controllers.run())
        try:
            await asyncio.wait((holding, working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            holding.cancel()
            answers = await asyncio.gather(holding, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def synced(self) -> None:
        """Return when everything that existed has been heard of."""
        await self.controllers.synced()


@asynccontextmanager
async def controllers_process(
    target: Target,
    *,
    only: Collection[str] | None = None,
    qps: float = 200.0,
    burst: int = 400,
    leader_elect: bool = False,
    lease_name: str = LEASE_NAME,
    clock: LoopClock | None = None,
    chance: random.Random | None = None,
) -> AsyncIterator[ControllersProcess]:
    """Controllers on an API server. `only`: their names. `leader_elect`: work only while holding a lease."""
    clock, chance = clock or SystemClock(), chance or random.Random()
    agent = f"bayplan/{__version__}/controllers"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(target, clock=clock, chance=chance, user_agent=agent, qps=qps, burst=burst)
        )
        election: Election | None = None
        if leader_elect:
            lease_client = await stack.enter_async_context(Client(target, clock=clock, chance=chance, user_agent=agent))
            identity = f"{platform.node()}_{uuid.UUID(int=chance.getrandbits(128), version=4)}"
            election = Election(lease_client, identity=identity, name=lease_name, namespace=LEASE_NAMESPACE)
            client.guard(election)
        yield ControllersProcess(Controllers(client, only=only), election)
