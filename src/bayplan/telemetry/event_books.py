"""Which events need a request, and which are one more of a series? The rules of client-go's recorder.

Asked by the sender for every event and, now and then, for what is due by itself. Pure bookkeeping on a clock: a lookup
an event. An event seen again within six minutes becomes a series: the second time is told at once, later ones are
counted and told when the series ends, six minutes after its last event, or every half an hour while it goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from bayplan.clock import Clock
from bayplan.objects.meta import micro_time
from bayplan.telemetry.events import Event, Series

FINISH = timedelta(minutes=6)
REFRESH = timedelta(minutes=30)
MOST_KEPT = 16_384
"""Events that may become a series: without a bound a storm of them would be kept for six minutes."""

_NEVER_AGAIN = {"Scheduled", "Bound", "Misconfigured", "BindingRetry", "BindingError"}
"""A version of a pod is bound, or handed to the binder, once; keeping each for six minutes would cost a fast scheduler
hundreds of megabytes. What is wrong with an object is said once, and what is said later of the same version is
something else. So is each attempt of the binder: it has a number and a node, and there are few of them."""


@dataclass(frozen=True, slots=True)
class EventWrite:
    """One request: create the body or, with a patch, change what was created (the body, where that is gone)."""

    namespace: str
    name: str
    body: msgspec.Struct
    patch: dict[str, Any] | None = None
    series: Hashable = None
    count: int = 1
    last: bool = False
    """Whether the series ends with it. Such a write is tried once; the next sweep asks for it again."""


class EventBook(Protocol):
    """What the sender asks."""

    def observe(self, event: Event) -> EventWrite | None:
        """What is to be written because of an event, if anything."""
        ...

    def sweep(self) -> list[EventWrite]:
        """What is to be written because of the time: to be asked every six minutes."""
        ...

    def written(self, write: EventWrite) -> None:
        """The request was answered, be it by a refusal."""
        ...


@dataclass(slots=True)
class _Kept:
    event: Event
    at: datetime
    count: int = 1

    def write(self, identity: Hashable, *, last: bool = False) -> EventWrite:
        meta = self.event.metadata
        if self.count == 1:
            return EventWrite(meta.namespace, meta.name, self.event, series=identity)
        series = Series(self.count, micro_time(self.at))
        body = msgspec.structs.replace(self.event, series=series)
        return EventWrite(meta.namespace, meta.name, body, {"series": series}, identity, self.count, last)


class SeriesBook:
    """Events of `events.k8s.io/v1`."""

    def __init__(self, clock: Clock, *, most: int = MOST_KEPT) -> None:
        self._clock = clock
        self._most = most
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._refreshed = clock.now()

    def __len__(self) -> int:
        return len(self._kept)

    def observe(self, event: Event) -> EventWrite | None:
        now = self._clock.now()
        if event.reason in _NEVER_AGAIN:
            return _Kept(event, now).write(None)
        identity = event.identity
        kept = self._kept.get(identity)
        if kept is None:
            kept = self._kept[identity] = _Kept(event, now)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return kept.write(identity)
        kept.count += 1
        kept.at = now
        return kept.write(identity) if kept.count == 2 else None

    def sweep(self) -> list[EventWrite]:
        """The last count of every series that ended, and every so often of those that go on."""
        now = self._clock.now()
        writes: list[EventWrite] = []
        refreshing = now - self._refreshed >= REFRESH
        for identity, kept in list(self._kept.items()):
            ended = now - kept.at > FINISH
            if kept.count == 1 and ended:
                del self._kept[identity]
            elif kept.count > 1 and (ended or refreshing):
                writes.append(kept.write(identity, last=ended))
        if refreshing:
            self._refreshed = now
        return writes

    def written(self, write: EventWrite) -> None:
        kept = self._kept.get(write.series)
        # A series that was seen while its end was told has not ended.
        if write.last and kept is not None and kept.count == write.count:
            del self._kept[write.series]
