"""Correlation of events of the core group, as client-go does it.

Used where upstream records core events: by sessions, the binder, controllers and leader elections; and on servers
without `events.k8s.io`. Three filters, each bounded to 4,096 keys. Of one kind of event about one object 25 pass at
once and then one every five minutes. Ten events within ten minutes that differ only in their message become one,
"(combined from similar events)". Equal events increase the count of the first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import msgspec

from bayplan.clock import Clock
from bayplan.objects.meta import Api, format_time
from bayplan.telemetry.event_correlator import NEVER_REPEATED, EventWrite
from bayplan.telemetry.events import Event, EventMeta, ObjectReference

MAX_KEYS = 4096
BURST = 25
REFILL_S = 300.0
MAX_SIMILAR = 10
SIMILAR_INTERVAL = timedelta(minutes=10)
COMBINED = "(combined from similar events): "

T = TypeVar("T")


class EventSource(Api, frozen=True):
    component: str = ""


class CoreEvent(Api, frozen=True):
    """One `v1` Event."""

    metadata: EventMeta
    involved_object: ObjectReference
    reason: str
    message: str
    source: EventSource
    first_timestamp: str
    last_timestamp: str
    count: int
    type: str
    reporting_component: str = ""


class _LruCache(Generic[T]):
    """The most recently used items, at most `max_items`."""

    def __init__(self, max_items: int = MAX_KEYS) -> None:
        self._max_items = max_items
        self._items: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: Hashable, item: T) -> None:
        self._items[key] = item
        self._items.move_to_end(key)
        if len(self._items) > self._max_items:
            self._items.popitem(last=False)


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    at: float


@dataclass(slots=True)
class _SimilarEvents:
    at: datetime
    messages: OrderedDict[str, None] = field(default_factory=OrderedDict)


class CoreEventCorrelator:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: _LruCache[_TokenBucket] = _LruCache()
        self._similar: _LruCache[_SimilarEvents] = _LruCache()
        self._counted: _LruCache[CoreEvent] = _LruCache()

    def observe(self, event: Event) -> EventWrite | None:
        core = _core_event(event, self._clock.now())
        if core.reason in NEVER_REPEATED:
            return EventWrite(core.metadata.namespace, core.metadata.name, core)
        if not self._passes_spam_filter(core):
            return None
        core, key = self._aggregate(core)
        return self._count(core, key)

    def sweep(self) -> list[EventWrite]:
        """No writes: every event is written when it is observed."""
        return []

    def _passes_spam_filter(self, event: CoreEvent) -> bool:
        now = self._clock.monotonic_s()
        key = (*_spam_key(event), event.type)
        tokens = self._tokens.get(key) or _TokenBucket(BURST, now)
        tokens.tokens = min(BURST, tokens.tokens + (now - tokens.at) / REFILL_S)
        tokens.at = now
        self._tokens.put(key, tokens)
        if tokens.tokens < 1:
            return False
        tokens.tokens -= 1
        return True

    def _aggregate(self, event: CoreEvent) -> tuple[CoreEvent, Hashable]:
        """The event, or the one that combines all similar events; and the key under which it is counted."""
        now = self._clock.now()
        key = (*_spam_key(event), event.type, event.reason, event.reporting_component)
        similar = self._similar.get(key)
        if similar is None or now - similar.at > SIMILAR_INTERVAL:
            similar = _SimilarEvents(now)
        similar.at = now
        similar.messages[event.message] = None
        self._similar.put(key, similar)
        if len(similar.messages) < MAX_SIMILAR:
            return event, (*_spam_key(event), event.type, event.reason, event.message)
        similar.messages.popitem(last=False)
        return msgspec.structs.replace(event, message=COMBINED + event.message, reporting_component=""), key

    def _count(self, event: CoreEvent, key: Hashable) -> EventWrite:
        before = self._counted.get(key)
        if before is not None:
            event = msgspec.structs.replace(
                event, metadata=before.metadata, first_timestamp=before.first_timestamp, count=before.count + 1
            )
        self._counted.put(key, event)
        meta = event.metadata
        if before is None:
            return EventWrite(meta.namespace, meta.name, event)
        patch = {"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message}
        return EventWrite(meta.namespace, meta.name, event, patch)


def _core_event(event: Event, now: datetime) -> CoreEvent:
    return CoreEvent(
        metadata=event.metadata,
        involved_object=event.regarding,
        reason=event.reason,
        message=event.note,
        source=EventSource(event.reporting_controller),
        first_timestamp=format_time(now),
        last_timestamp=format_time(now),
        count=1,
        type=event.type,
        reporting_component=event.reporting_controller,
    )


def _spam_key(event: CoreEvent) -> tuple[str, ...]:
    """The source and the object, in any version."""
    it = event.involved_object
    return event.source.component, it.kind, it.namespace, it.name, it.uid, it.api_version
