"""Leader elections with their events."""

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
"""Timeout for send_task the last event of an election at the end of the process."""


@asynccontextmanager
async def election_event_recorder(client: Client, name: str) -> AsyncIterator[EventRecorder]:
    """Recorder of election events: core events in the name of a scheduler, flushed at the end."""
    sink = EventSink(client, resource=CORE_EVENTS, senders=1)
    send_task = asyncio.ensure_future(sink.run())
    try:
        yield EventRecorder(name, host=platform.node(), clock=client.clock, chance=client.chance, post=sink.post)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EVENT_FLUSH_TIMEOUT_S):
                await sink.drain()
    finally:
        send_task.cancel()


def build_election(
    lease: LeaderElection, client: Client, identity: str, recorder: EventRecorder, port: int = 0
) -> LeaderElector:
    """A candidate for a lease. `identity`: generated if empty. `port`: the serving port of this process."""
    identity = identity or f"{platform.node()}_{uuid.UUID(int=client.chance.getrandbits(128), version=4)}"

    def record_event(note: str) -> None:
        meta = election.lock.meta
        about = ObjectReference(
            kind="Lease",
            api_version=LEASES.api_version,
            namespace=meta.get("namespace", ""),
            name=meta.get("name", ""),
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
        )
        recorder.record(about, type=NORMAL, reason="LeaderElection", action="", note=note)

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
        record_event=record_event,
        annotations=leader_annotations(identity, port, os.environ) if port else None,
    )
    return election
