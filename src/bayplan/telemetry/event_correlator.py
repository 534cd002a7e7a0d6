"""Correlation of `events.k8s.io/v1` events: decides which events become requests and which join a series.

Called by the sender for each event, and every six minutes. Pure bookkeeping on a clock; one dictionary lookup per
event. An event that is repeated within six minutes becomes a series: the second occurrence is written at once, later
ones are counted and written every half an hour while the series goes on. A series ends without a write six minutes
after its last event. client-go writes at that moment, and treats events of one reason about one version of an object as
one series, whatever their notes are. Here the note counts and the version does not: a pod that fails alternately for
two reasons has two events, though each failure gives it a new version.
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
"""Maximum number of events that may become a series. Without it a burst of events stays in memory for six minutes."""

NEVER_REPEATED = frozenset({"Scheduled", "Bound"})
"""A pod is bound once. Keeping these events for six minutes would cost a fast scheduler hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class EventWrite:
    """One request: create the body, or patch the created event. If that no longer exists, the body is created."""

    namespace: str
    name: str
    body: msgspec.Struct
    patch: dict[str, Any] | None = None


class EventCorrelator(Protocol):
    """What the sender calls."""

    def observe(self, event: Event) -> EventWrite | None:
        """The write that follows from an event, if any."""
        ...

    def sweep(self) -> list[EventWrite]:
        """The writes that are due; called every six minutes."""
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
    """Correlator for `events.k8s.io/v1`."""

    def __init__(self, clock: Clock, *, max_series: int = MAX_SERIES) -> None:
        self._clock = clock
        self._max_series = max_series
        self._series: OrderedDict[Hashable, _SeriesState] = OrderedDict()
        self._refreshed = clock.now()

    def __len__(self) -> int:
        return len(self._series)

    def observe(self, event: Event) -> EventWrite | None:
        now = self._clock.now()
        if event.reason in NEVER_REPEATED:
            return _SeriesState(event, now).write()
        identity = event.identity
        series_state = self._series.get(identity)
        if series_state is None or now - series_state.at > SERIES_FINISH_AFTER:
            series_state = self._series[identity] = _SeriesState(event, now)
            if len(self._series) > self._max_series:
                self._series.popitem(last=False)
            return series_state.write()
        series_state.count += 1
        series_state.at = now
        return series_state.write() if series_state.count == 2 else None

    def sweep(self) -> list[EventWrite]:
        """Forget the series that have ended. Every half an hour, return the counts of the series that go on."""
        now = self._clock.now()
        for identity in [
            each for each, series_state in self._series.items() if now - series_state.at > SERIES_FINISH_AFTER
        ]:
            del self._series[identity]
        if now - self._refreshed < SERIES_REFRESH_INTERVAL:
            return []
        self._refreshed = now
        return [
            series_state.write() for series_state in self._series.values() if series_state.count > series_state.written
        ]
