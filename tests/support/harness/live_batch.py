"""A live batch engine on the manual clock and a wire server that plays the API: sessions as a test wants them.

The server keeps nothing up to date by itself: a test says what the watch tells, with `rig.hear`.
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
from bayplan.batch.config.scheduler_conf import load
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.run_loop import LiveBatch
from bayplan.batch.live.run_loop_factory import Ways, followed, live_batch
from bayplan.batch.session.outcome import Outcome
from bayplan.cache import Cache
from bayplan.client.resources import resource_of
from bayplan.clock import LoopClock, ManualClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano import types as volcano
from support.builders.batch_engines import GANGS
from support.fakes.http_server import WireServer
from support.harness.async_tests import until
from support.harness.live_engine import PlayedServer


@dataclass
class Heard:
    """What people were told: (object, type, reason, note)."""

    told: list[tuple[str, str, str, str]] = field(default_factory=list)

    def tell(self, regarding: KubeObject, kind: str, reason: str, note: str) -> None:
        self.told.append((regarding.key, kind, reason, note))

    def record(self, regarding: Pod, kind: str, reason: str, action: str, note: str, related: Any = None) -> None:  # noqa: ARG002
        self.tell(regarding, kind, reason, note)

    def about(self, reason: str) -> list[tuple[str, str]]:
        """Objects and notes of events with a reason."""
        return [(key, note) for key, _, each, note in self.told if each == reason]


@dataclass
class BatchRig(PlayedServer[LiveBatch]):
    events: Heard

    async def session(self) -> Outcome:
        """One session on all that was told, and everything written that follows from it."""
        await self.live.catch_up()
        outcome = await self.live.session()
        await until(lambda: not self.live.binds.under_way and not self._writes.busy, tick=lambda: self.clock.advance(1))
        await self.live.catch_up()
        return outcome

    @property
    def _writes(self) -> ApiWrites:
        assert isinstance(self.live.writes, ApiWrites)
        return self.live.writes


@asynccontextmanager
async def batch_running(
    *objects: KubeObject, conf: str = GANGS, options: BatchOptions | None = None, real_clock: LoopClock | None = None
) -> AsyncIterator[BatchRig]:
    """A live engine that knows these objects. `real_clock`: by which its slices are measured, where they are."""
    manual, options, events = ManualClock(), options or BatchOptions(), Heard()
    clock = real_clock or manual
    async with WireServer() as server, server.client(clock) as client:
        engine = build_batch_engine(load(conf), Cache(), clock=clock, chance=random.Random(0))
        following = followed(engine, options)
        claims = resource_of(kind_of(ResourceClaim))
        writes = ApiWrites(client, events, clock=clock, claims=claims)
        statuses = PodStatuses(client, writes, following.waiting, clock=clock, chance=random.Random(0))
        groups, queues = (resource_of(kind_of(kind)) for kind in (volcano.PodGroup, volcano.Queue))
        live = live_batch(following, Ways(client, writes, statuses, events, groups, queues), options, clock)
        rig = BatchRig(server, client, manual, live, events)
        server.route = rig.answer
        rig.hear(*sorted(objects, key=lambda item: not isinstance(item, Node)))
        try:
            yield rig
        finally:
            await live.abandon()
            engine.close()
