"""The ways of one process to its API server: clients with limits of their own, events, leases, and what is offered."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from bayplan import __version__
from bayplan.api_writes.crash_points import CrashPointCallback, crash_point_from_environment
from bayplan.app.leader_election import build_election, election_event_recorder
from bayplan.client import (
    CORE_EVENTS,
    EVENTS,
    WARM_CONNECTIONS,
    Client,
    ConnectionConfig,
    EventSink,
    LeaderElector,
    MultiLeaseElector,
    ServedResources,
    event_resource,
)
from bayplan.client.event_sink import MAX_EXTRA_SENDERS, SENDERS
from bayplan.client.http.transport import Observer
from bayplan.clock import LoopClock
from bayplan.config.model import LeaderElection
from bayplan.memory import trim_heap_periodically
from bayplan.objects.kinds import Kind

log = logging.getLogger(__name__)

_DISCOVERY_RETRY_S = 2.0


@dataclass(slots=True)
class ApiClients:
    """Decisions, events and the lease each have a client of their own: none waits behind another."""

    stack: AsyncExitStack
    client_factory: Callable[..., Client]
    client: Client
    event_client: Client
    event_sink: EventSink
    served_resources: ServedResources
    crash_points: CrashPointCallback
    """Told of every step at which a test may want the process to die."""

    @classmethod
    async def connect(
        cls,
        target: ConnectionConfig,
        stack: AsyncExitStack,
        kinds: Sequence[Kind],
        *,
        clock: LoopClock,
        chance: random.Random,
        observer: Observer | None,
        qps: float,
        burst: int,
        needed: Iterable[Kind] = (),
        senders: int = SENDERS,
    ) -> ApiClients:
        """Connect, and find out what the server has of these kinds; `needed`: waited for until it has them. `senders`:
        of events, beside what is more important."""
        wire = partial(Client, target, clock=clock, chance=chance, observer=observer)
        client = await stack.enter_async_context(
            wire(qps=qps, burst=burst, user_agent=f"bayplan/{__version__}/scheduler")
        )
        offered = await _discover_kinds(client, kinds, list(needed))
        telling = await stack.enter_async_context(wire(qps=qps, burst=burst, connections=SENDERS + MAX_EXTRA_SENDERS))
        sink = EventSink(telling, resource=event_resource(offered), senders=senders)
        for beside in (sink.run(), trim_heap_periodically()):
            stack.push_async_callback(_cancel_and_wait, asyncio.ensure_future(beside))
        return cls(stack, wire, client, telling, sink, offered, crash_point_from_environment(os.environ))

    def warm_connections(self, at_once: int) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Connections are opened before the first pods are bound, so many at a time: a burst need not wait for
        handshakes."""
        return partial(self.client.warm, min(at_once, WARM_CONNECTIONS)), partial(self.event_client.warm, SENDERS)

    async def build_election(
        self, leases: Sequence[tuple[LeaderElection, str]], identity: str, port: int = 0
    ) -> LeaderElector | MultiLeaseElector | None:
        """Who may decide, by these leases, each with the name in which its election is told; None: everybody.

        `port`: where the process serves what it knows, which the leader marks on its leases. Nothing is written
        without them from now on."""
        elections = []
        for lease, speaks in leases:
            if lease.leader_elect:
                client = await self.stack.enter_async_context(
                    self.client_factory(timeout_s=lease.renew_deadline.seconds / 2)
                )
                speaker = await self.stack.enter_async_context(election_event_recorder(client, speaks))
                elections.append(build_election(lease, client, identity, speaker, port))
        if not elections:
            return None
        election = elections[0] if len(elections) == 1 else MultiLeaseElector(elections, self.client.clock)
        self.client.set_guard(election)
        self.event_client.set_guard(election)
        return election


async def _cancel_and_wait(task: asyncio.Future[None]) -> None:
    """Cancel it and see it end, so that it does not find closed what is closed next."""
    task.cancel()
    await asyncio.wait([task])


async def _discover_kinds(client: Client, kinds: Sequence[Kind], needed: Sequence[Kind]) -> ServedResources:
    told: list[str] = []
    while True:
        offered = await client.wait_for_server(kinds, also=(EVENTS, CORE_EVENTS))
        missing = [f"{kind.plural}.{kind.group}" for kind in needed if offered.get(kind) is None]
        if not missing:
            break
        if missing != told:
            told = missing
            log.warning(
                "the API server has no %s; `bayplan crds | kubectl apply -f -` brings them; waiting",
                " and no ".join(missing),
            )
        await client.clock.sleep(_DISCOVERY_RETRY_S)
    for kind in offered.missing:
        log.info("the API server has no %s; what needs them is switched off", kind.plural)
    return offered
