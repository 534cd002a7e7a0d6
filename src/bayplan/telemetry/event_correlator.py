"""Correlation of `events.k8s.io/v1` events: decides which events become requests and which join a series.

Called by the sender for each event, and every six minutes. Bookkeeping on a clock; one dictionary lookup per event. An
event that is repeated within six minutes becomes a series: the second occurrence is written at once, later ones are
counted and written every half an hour while the series goes on. A series ends without a write six minutes after its
last event. client-go writes then, too, and takes events of one reason about one version of an object for one series,
whatever their notes are. Here the note counts and the version does not: a pod that fails alternately for two reasons
has two events, though each failure gives it a new version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from bayplan.clock import Clock
from bayplan.objects.meta import format_micro_time
from bayplan.telemetry.events import Event, Series

SERIES_FINISH_AFTER = timedelta(minutes=6)
SERIES_REFRESH_INTERVAL = timedelta(minutes=30)
MAX_SERIES = 16_384
"""Events that may become a series: without a bound a storm of them would be kept for six minutes."""

NEVER_REPEATED = frozenset({"Scheduled", "Bound"})
"""A pod is bound once. Keeping these events for six minutes would cost a fast scheduler hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class EventWrite:
    """One request: create the body or, with a patch, change what was created (the body, where that is gone)."""

    namespace: str
    name: str
    body: msgspec.Struct
    patch: dict[str, Any] | None = None


class EventCorrelator(Protocol):
    """What the sender asks."""

    def observe(self, event: Event) -> EventWrite | None:
        """The write that follows from an event, if any."""
        ...

    def sweep(self) -> list[EventWrite]:
        """The writes that are due by time; to be called every six minutes."""
        ...


@dataclass(slots=True)
class _SeriesState:
    event: Event
    at: datetime
    count: int = 1
    written: int = 1
    """The count that the API server has."""

    def write(self) -> EventWrite:
        meta, self.written = self.event.metadata, self.count
        if self.count == 1:
            return EventWrite(meta.namespace, meta.name, self.event)
        series = Series(self.count, format_micro_time(self.at))
        body = msgspec.structs.replace(self.event, series=series)
        return EventWrite(meta.namespace, meta.name, body, {"series": series})


class EventSeriesCorrelator:
    """Events of `events.k8s.io/v1`."""

    def __init__(self, clock: Clock, *, most: int = MAX_SERIES) -> None:
        self._clock = clock
        self._most = most
        self._kept: OrderedDict[Hashable, _SeriesState] = OrderedDict()
        self._refreshed = clock.now()

    def __len__(self) -> int:
        return len(self._kept)

    def observe(self, event: Event) -> EventWrite | None:
        now = self._clock.now()
        if event.reason in NEVER_REPEATED:
            return _SeriesState(event, now).write()
        identity = event.identity
        kept = self._kept.get(identity)
        if kept is None or now - kept.at > SERIES_FINISH_AFTER:
            kept = self._kept[identity] = _SeriesState(event, now)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return kept.write()
        kept.count += 1
        kept.at = now
        return kept.write() if kept.count == 2 else None

    def sweep(self) -> list[EventWrite]:
        """Forget the series that have ended; every half an hour write the counts of those that go on."""
        now = self._clock.now()
        for identity in [each for each, kept in self._kept.items() if now - kept.at > SERIES_FINISH_AFTER]:
            del self._kept[identity]
        if now - self._refreshed < SERIES_REFRESH_INTERVAL:
            return []
        self._refreshed = now
        return [kept.write() for kept in self._kept.values() if kept.count > kept.written]
