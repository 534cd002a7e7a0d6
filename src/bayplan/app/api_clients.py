"""Clients of one process for its API server, with rate limits of their own; event sink, elections and discovery."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from bayplan import __version__
from bayplan.api_writes.crash_points import CRASH_POINT, CrashPointCallback
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
    """Decisions, events and leases have separate clients, so that none waits for another."""

    stack: AsyncExitStack
    client_factory: Callable[..., Client]
    client: Client
    event_client: Client
    event_sink: EventSink
    served_resources: ServedResources
    crash_points: CrashPointCallback
    """Called at every crash point."""

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
        """Connect, and discover which of these kinds the server has. `needed`: kinds to wait for. `senders`: event
        requests at a time while bindings are in flight."""
        client_factory = partial(Client, target, clock=clock, chance=chance, observer=observer)
        client = await stack.enter_async_context(
            client_factory(qps=qps, burst=burst, user_agent=f"bayplan/{__version__}/scheduler")
        )
        served = await _discover_kinds(client, kinds, list(needed))
        event_client = await stack.enter_async_context(
            client_factory(qps=qps, burst=burst, connections=SENDERS + MAX_EXTRA_SENDERS)
        )
        sink = EventSink(event_client, resource=event_resource(served), senders=senders)
        for background in (sink.run(), trim_heap_periodically()):
            stack.push_async_callback(_cancel_and_wait, asyncio.ensure_future(background))
        return cls(stack, client_factory, client, event_client, sink, served, CRASH_POINT.get())

    def warm_connections(self, at_once: int) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Functions that open connections before the first pods are bound, up to `at_once`, so that a burst of bindings
        does not wait for handshakes."""
        return partial(self.client.warm, min(at_once, WARM_CONNECTIONS)), partial(self.event_client.warm, SENDERS)

    async def build_election(
        self, leases: Sequence[tuple[LeaderElection, str]], identity: str, port: int = 0
    ) -> LeaderElector | MultiLeaseElector | None:
        """The election for these leases, each with the reporter name of its events; None if none needs an election.

        `port`: the serving port, which the leader announces in annotations of its leases. From now on the guard refuses
        writes without the leases."""
        elections = []
        for lease, reporter in leases:
            if lease.leader_elect:
                client = await self.stack.enter_async_context(
                    self.client_factory(timeout_s=lease.renew_deadline.seconds / 2)
                )
                recorder = await self.stack.enter_async_context(election_event_recorder(client, reporter))
                elections.append(build_election(lease, client, identity, recorder, port))
        if not elections:
            return None
        election = elections[0] if len(elections) == 1 else MultiLeaseElector(elections, self.client.clock)
        self.client.set_guard(election)
        self.event_client.set_guard(election)
        return election


async def _cancel_and_wait(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait for its end, so that it does not use clients that are closed next."""
    task.cancel()
    await asyncio.wait([task])


async def _discover_kinds(client: Client, kinds: Sequence[Kind], needed: Sequence[Kind]) -> ServedResources:
    logged: list[str] = []
    while True:
        served = await client.wait_for_server(kinds, also=(EVENTS, CORE_EVENTS))
        missing = [f"{kind.plural}.{kind.group}" for kind in needed if served.get(kind) is None]
        if not missing:
            break
        if missing != logged:
            logged = missing
            log.warning(
                "the API server does not serve %s; install the CRDs with `bayplan crds | kubectl apply -f -`; waiting",
                " and ".join(missing),
            )
        await client.clock.sleep(_DISCOVERY_RETRY_S)
    for kind in served.missing:
        log.info("the API server does not serve %s; features that need it are disabled", kind.plural)
    return served
