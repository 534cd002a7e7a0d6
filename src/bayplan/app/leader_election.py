"""Who may decide? Elections with the events that tell people of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bayplan.client import CORE_EVENTS, LEASES, Client, ElectionTimings, EventSink, LeaderElector, leader_annotations
from bayplan.config.model import LeaderElection
from bayplan.telemetry.events import NORMAL, EventRecorder, ObjectReference

_EVENT_FLUSH_TIMEOUT_S = 2.0
"""How long the event of an election may take that tells of our end."""


@asynccontextmanager
async def election_event_recorder(client: Client, name: str) -> AsyncIterator[EventRecorder]:
    """Who speaks of elections: as core events, in the name of a scheduler, and heard out at the end."""
    sink = EventSink(client, resource=CORE_EVENTS, senders=1)
    sending = asyncio.ensure_future(sink.run())
    try:
        yield EventRecorder(name, host=platform.node(), clock=client.clock, chance=client.chance, post=sink.post)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EVENT_FLUSH_TIMEOUT_S):
                await sink.drained()
    finally:
        sending.cancel()


def build_election(
    lease: LeaderElection, client: Client, identity: str, speaker: EventRecorder, port: int = 0
) -> LeaderElector:
    """A candidate for a lease. `identity`: who we are; made up where that is not said. `port`: where we serve."""
    identity = identity or f"{platform.node()}_{uuid.UUID(int=client.chance.getrandbits(128), version=4)}"

    def tell(note: str) -> None:
        meta = election.lock.meta
        about = ObjectReference(
            kind="Lease",
            api_version=LEASES.api_version,
            namespace=meta.get("namespace", ""),
            name=meta.get("name", ""),
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
        )
        speaker.record(about, type=NORMAL, reason="LeaderElection", action="", note=note)

    election = LeaderElector(
        client,
        identity=identity,
        name=lease.resource_name,
        namespace=lease.resource_namespace,
        timings=ElectionTimings(
            lease_s=lease.lease_duration.seconds,
            renew_s=lease.renew_deadline.seconds,
            retry_s=lease.retry_period.seconds,
        ),
        tell=tell,
        marks=leader_annotations(identity, port, os.environ) if port else None,
    )
    return election
