"""A cluster that casts objects, and its naive twin that makes each of them, on clocks and chances that repeat."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from msgspec.structs import astuple

from bayplan.apiserver.auth.credentials import Credentials
from bayplan.apiserver.embedded import EmbeddedCluster
from bayplan.apiserver.http.in_process import InsideDoor
from bayplan.apiserver.requests import Ask
from bayplan.apiserver.storage.store import Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.writes.create_templates import Moulds, Sought
from bayplan.apiserver.writes.status_templates import SoughtState, StateMoulds
from bayplan.apiserver.writes.writer import Written
from bayplan.clock import Clock, ManualClock

Request = tuple[str, str, bytes]


class CountingMoulds(Moulds):
    """Counts what is cast."""

    count = 0

    def cast(self, ask: Ask, sought: Sought) -> Written | None:
        found = super().cast(ask, sought)
        self.count += found is not None
        return found


class CountingStates(StateMoulds):
    """Counts what is cast, by the part that was asked for."""

    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock) -> None:
        super().__init__(store, lookup, clock)
        self.counts: Counter[str] = Counter()

    def cast(self, ask: Ask, sought: SoughtState) -> Written | None:
        found = super().cast(ask, sought)
        self.counts[ask.path.subresource] += found is not None
        return found


class NoMoulds(CountingMoulds):
    """The naive twin: every object is made."""

    def sought(self, ask: Ask, body: bytes) -> Sought | None:  # noqa: ARG002
        return None


class NoStates(CountingStates):
    """The naive twin: every state is made."""

    def reported(self, ask: Ask, body: bytes) -> SoughtState | None:  # noqa: ARG002
        return None

    def bound(self, ask: Ask, body: bytes) -> SoughtState | None:  # noqa: ARG002
        return None


class WallClock(ManualClock):
    """One that somebody may set back."""

    def set_back(self, seconds: float) -> None:
        self._start -= timedelta(seconds=seconds)


class World:
    """A cluster without sockets."""

    def __init__(self, credentials: Credentials, *, naive: bool = False) -> None:
        self.clock, chance = WallClock(), random.Random(1)
        self.cluster = EmbeddedCluster(credentials, clock=self.clock, chance=chance, housekeeping=False)
        self.cluster.furnish()
        gateway, store, lookup = self.cluster.gateway(), self.cluster.store, self.cluster._lookup
        self.moulds = (NoMoulds if naive else CountingMoulds)(store, lookup, self.clock, chance)
        self.states = (NoStates if naive else CountingStates)(store, lookup, self.clock)
        gateway.endpoints.moulds = self.moulds
        gateway.endpoints.states = gateway.endpoints.parts.states = self.states
        self._door = InsideDoor(gateway, lambda: store.version)
        self._token = credentials.token

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes, bytes]:
        media = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        lines = f"Authorization: Bearer {self._token}\r\nContent-Type: {media}\r\nUser-Agent: x/1"
        return asyncio.run(self._door.ask(method, path, lines.encode(), body))

    def everything(self) -> tuple[list[Any], list[Any]]:
        """What there is, and how it came to be."""
        return self._objects(), self._history()

    def _objects(self) -> list[Any]:
        return [astuple(entry) for place in self.cluster.store.places() for entry in place.entries()]

    def _history(self) -> list[Any]:
        places = self.cluster.store.places()
        return [(each.type, each.version, each.entry.raw) for place in places for each in place.ring.after(0)]


def asked_alike(credentials: Credentials, asked: Iterable[Request | float]) -> tuple[World, World]:
    """A cluster that casts and its twin, after both were asked the same, with pauses, and have said the same."""
    cast, made = World(credentials), World(credentials, naive=True)
    for each in asked:
        if isinstance(each, float):
            cast.clock.advance(each)
            made.clock.advance(each)
        else:
            assert cast.ask(*each) == made.ask(*each)
    return cast, made
