"""A live batch engine on the manual clock and a wire server that plays the API: sessions as a test wants them.

The server keeps nothing up to date by itself: a test says what the watch tells, with `rig.hear`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from batch_world import GANGS
from bayplan.app import build_batch_engine
from bayplan.batch.conf import load
from bayplan.batch.live.assembly import Ways, followed, live_batch
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.sessions import LiveBatch
from bayplan.batch.outcome import Outcome
from bayplan.cache import Cache
from bayplan.client import Client
from bayplan.client.resources import resource_of
from bayplan.clock import ManualClock
from bayplan.objects import volcano
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.statuses import PodStatuses
from bayplan.scheduler.writing import ApiWrites
from builders import changed
from wire_server import Answer, Reply, Request, WireServer, until


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
class BatchRig:
    server: WireServer
    client: Client
    clock: ManualClock
    live: LiveBatch
    events: Heard
    refusals: list[tuple[str, str, Answer]] = field(default_factory=list)
    _known: dict[str, KubeObject] = field(default_factory=dict)
    _versions: int = 0

    def hear(self, *items: KubeObject) -> None:
        """The watch tells of objects: new ones, or new versions of those that it told of before."""
        for item in items:
            self._versions += 1
            newest = changed(item, metadata={"resource_version": str(self._versions)})
            key = f"{type(item).__name__} {item.key}"
            self.live.hear(self._known.get(key), newest)
            self._known[key] = newest

    def hear_gone(self, *items: KubeObject) -> None:
        for item in items:
            self.live.hear(self._known.pop(f"{type(item).__name__} {item.key}"), None)

    def refuse(self, method: str, ending: str, *answers: Answer) -> None:
        """Answer the next requests of this kind so, one after another."""
        self.refusals += [(method, ending, answer) for answer in answers]

    def answer(self, request: Request) -> Answer:
        for refusal in self.refusals:
            method, ending, answer = refusal
            if request.method == method and request.path.endswith(ending):
                self.refusals.remove(refusal)
                return answer
        return Reply(201 if request.method == "POST" else 200, {"metadata": {"name": "x", "resourceVersion": "9"}})

    def sent(self, method: str, ending: str = "") -> list[Any]:
        """The bodies of requests of this kind."""
        return [each.json for each in self.server.requests if each.method == method and each.path.endswith(ending)]

    def bound(self) -> dict[str, str]:
        """By pod the node that it was bound to, or tried to be."""
        return {each["metadata"]["name"]: each["target"]["name"] for each in self.sent("POST", "/binding")}

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
    *objects: KubeObject, conf: str = GANGS, options: BatchOptions | None = None
) -> AsyncIterator[BatchRig]:
    """A live engine that knows these objects."""
    clock, options, events = ManualClock(), options or BatchOptions(), Heard()
    async with WireServer() as server, server.client(clock) as client:
        engine = build_batch_engine(load(conf), Cache(), clock=clock, chance=random.Random(0))
        following = followed(engine, options)
        writes = ApiWrites(client, events, clock=clock)
        statuses = PodStatuses(client, writes, following.waiting, clock=clock, chance=random.Random(0))
        groups, queues = (resource_of(kind_of(kind)) for kind in (volcano.PodGroup, volcano.Queue))
        live = live_batch(following, Ways(client, writes, statuses, events, groups, queues), options, clock)
        rig = BatchRig(server, client, clock, live, events)
        server.route = rig.answer
        rig.hear(*sorted(objects, key=lambda item: not isinstance(item, Node)))
        try:
            yield rig
        finally:
            await live.abandon()
            engine.close()
