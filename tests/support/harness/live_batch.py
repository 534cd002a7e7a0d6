"""A live batch engine on a manual clock and a fake API server: a test runs its sessions.

The server stores nothing: a test delivers watch events with `harness.deliver`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bayplan.api_writes.pod_statuses import PodStatuses
from bayplan.api_writes.writes import ApiWrites
from bayplan.app import build_batch_engine
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.batch.live.run_loop_factory import ApiWriters, build_event_handlers, build_run_loop
from bayplan.batch.session.outcome import SessionResult
from bayplan.cache import Cache
from bayplan.client import BlockingHttpService
from bayplan.client.resources import resource_of
from bayplan.clock import LoopClock, ManualClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano import types as volcano
from support.builders.batch_engines import GANGS
from support.fakes.http_server import FakeHttpServer
from support.harness.async_tests import wait_until
from support.harness.live_engine import LiveEngineHarness


@dataclass
class RecordedBatchEvents:
    """The recorded events: (object, type, reason, note)."""

    told: list[tuple[str, str, str, str]] = field(default_factory=list)

    def record_core_event(self, regarding: KubeObject, kind: str, reason: str, note: str) -> None:
        self.told.append((regarding.key, kind, reason, note))

    def record(self, regarding: Pod, kind: str, reason: str, action: str, note: str, related: Any = None) -> None:  # noqa: ARG002
        self.record_core_event(regarding, kind, reason, note)

    def about(self, reason: str) -> list[tuple[str, str]]:
        """Objects and notes of events with a reason."""
        return [(key, note) for key, _, each, note in self.told if each == reason]


@dataclass
class LiveBatchHarness(LiveEngineHarness[BatchRunLoop]):
    events: RecordedBatchEvents

    async def session(self) -> SessionResult:
        """Run one session on all delivered events, and all of its writes."""
        await self.live.handle_pending_events()
        outcome = await self.live.run_session()
        await wait_until(
            lambda: not self.live.binds.in_flight and not self._writes.busy, tick=lambda: self.clock.advance(1)
        )
        await self.live.handle_pending_events()
        return outcome

    @property
    def _writes(self) -> ApiWrites:
        assert isinstance(self.live.writes, ApiWrites)
        return self.live.writes


@asynccontextmanager
async def run_live_batch(
    *objects: KubeObject, conf: str = GANGS, options: BatchOptions | None = None, real_clock: LoopClock | None = None
) -> AsyncIterator[LiveBatchHarness]:
    """A live engine to which these objects are delivered. `real_clock`: measures its slices, if given."""
    manual, options, events = ManualClock(), options or BatchOptions(), RecordedBatchEvents()
    clock = real_clock or manual
    async with FakeHttpServer() as server, server.client(clock) as client:
        http = BlockingHttpService(user_agent="bayplan", env={})
        engine = build_batch_engine(load_conf(conf), Cache(), clock=clock, chance=random.Random(0), outside=http)
        following = build_event_handlers(engine, options)
        claims = resource_of(kind_of(ResourceClaim))
        writes = ApiWrites(client, events, clock=clock, claims=claims)
        statuses = PodStatuses(client, writes, following.waiting, clock=clock, chance=random.Random(0))
        groups, queues = (resource_of(kind_of(kind)) for kind in (volcano.PodGroup, volcano.Queue))
        writers = ApiWriters(client, writes, statuses, events, groups, queues)
        live = build_run_loop(following, writers, options, clock, http=http)
        harness = LiveBatchHarness(server, client, manual, live, events)
        server.route = harness.answer
        harness.deliver(*sorted(objects, key=lambda item: not isinstance(item, Node)))
        try:
            yield harness
        finally:
            await live.abandon()
            await http.close_steps()
            engine.close()
