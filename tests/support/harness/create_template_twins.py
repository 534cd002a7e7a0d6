"""A cluster that uses create templates, and its naive twin that does not, on manual clocks and seeded generators."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from msgspec.structs import astuple

from bayplan.apiserver.auth.credentials import ClusterCredentials
from bayplan.apiserver.embedded import EmbeddedCluster
from bayplan.apiserver.http.in_process import InProcessServer
from bayplan.apiserver.requests import ResourceRequest
from bayplan.apiserver.storage.store import Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.writes.create_templates import CreateTemplates, TemplateInput
from bayplan.apiserver.writes.status_templates import StatusTemplateInput, StatusTemplates
from bayplan.apiserver.writes.writer import WriteResult
from bayplan.clock import Clock, ManualClock

Request = tuple[str, str, bytes]


class CountingCreateTemplates(CreateTemplates):
    """Counts the creates from a template."""

    count = 0

    def create(self, ask: ResourceRequest, sought: TemplateInput) -> WriteResult | None:
        found = super().create(ask, sought)
        self.count += found is not None
        return found


class CountingStatusTemplates(StatusTemplates):
    """Counts the writes from a template, by subresource."""

    def __init__(self, store: Store, lookup: StoreLookup, clock: Clock) -> None:
        super().__init__(store, lookup, clock)
        self.counts: Counter[str] = Counter()

    def apply(self, ask: ResourceRequest, sought: StatusTemplateInput) -> WriteResult | None:
        found = super().apply(ask, sought)
        self.counts[ask.path.subresource] += found is not None
        return found


class NoCreateTemplates(CountingCreateTemplates):
    """The naive twin: no create uses a template."""

    def parse(self, ask: ResourceRequest, body: bytes) -> TemplateInput | None:  # noqa: ARG002
        return None


class NoStatusTemplates(CountingStatusTemplates):
    """The naive twin: no status write uses a template."""

    def parse_status_patch(self, ask: ResourceRequest, body: bytes) -> StatusTemplateInput | None:  # noqa: ARG002
        return None

    def parse_binding(self, ask: ResourceRequest, body: bytes) -> StatusTemplateInput | None:  # noqa: ARG002
        return None


class AdjustableClock(ManualClock):
    """A clock that a test can set back."""

    def set_back(self, seconds: float) -> None:
        self._start -= timedelta(seconds=seconds)


class TemplateTwin:
    """A cluster without sockets."""

    def __init__(self, credentials: ClusterCredentials, *, naive: bool = False) -> None:
        self.clock, chance = AdjustableClock(), random.Random(1)
        self.cluster = EmbeddedCluster(credentials, clock=self.clock, chance=chance)
        self.cluster.create_initial_objects()
        gateway, store, lookup = self.cluster.handler_chain(), self.cluster.store, self.cluster._lookup
        self.moulds = (NoCreateTemplates if naive else CountingCreateTemplates)(store, lookup, self.clock, chance)
        self.states = (NoStatusTemplates if naive else CountingStatusTemplates)(store, lookup, self.clock)
        gateway.resource_handlers.create_templates = self.moulds
        gateway.resource_handlers.status_templates = gateway.resource_handlers.subresource_handlers.status_templates = (
            self.states
        )
        self._door = InProcessServer(gateway, lambda: store.version)
        self._token = credentials.token

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes, bytes]:
        media = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        lines = f"Authorization: Bearer {self._token}\r\nContent-Type: {media}\r\nUser-Agent: x/1"
        return asyncio.run(self._door.request(method, path, lines.encode(), body))

    def everything(self) -> tuple[list[Any], list[Any]]:
        """All objects, and the history of watch events."""
        return self._objects(), self._history()

    def _objects(self) -> list[Any]:
        return [astuple(entry) for place in self.cluster.store._committed_objects.values() for entry in place.entries()]

    def _history(self) -> list[Any]:
        places = self.cluster.store._committed_objects.values()
        return [
            (each.type, each.version, each.entry.raw) for place in places for each in place.watch_cache.events_after(0)
        ]


def run_twins(credentials: ClusterCredentials, asked: Iterable[Request | float]) -> tuple[TemplateTwin, TemplateTwin]:
    """A cluster with templates and its twin, after the same requests with pauses and equal responses."""
    cast, made = TemplateTwin(credentials), TemplateTwin(credentials, naive=True)
    for each in asked:
        if isinstance(each, float):
            cast.clock.advance(each)
            made.clock.advance(each)
        else:
            assert cast.ask(*each) == made.ask(*each)
    return cast, made
