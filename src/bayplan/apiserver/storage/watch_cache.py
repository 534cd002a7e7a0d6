"""Watch cache: the recent events of one kind, and the listeners of new ones.

The store appends, watches read. A watch from an older version gets the events after that version, then every new one.
The cache is bounded in events and bytes; a watch from a version before it must list again.
Cost: an append is constant, plus one call for each listener.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Literal

import msgspec

from bayplan.apiserver.storage.stored_objects import StoredObject

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

MAX_EVENTS = 20_000
MAX_BYTES = 64 << 20


class WatchCacheEvent(msgspec.Struct, eq=False, gc=False):
    """One write. `entry` is the object afterwards; for a deletion its last state with the deletion's version."""

    type: EventType
    version: int
    entry: StoredObject
    before: StoredObject | None
    encoded_lines: dict[Hashable, bytes] = msgspec.field(default_factory=dict)
    """Encoded watch lines by format: all watches of a format send the same bytes."""

    @property
    def after(self) -> StoredObject | None:
        """The object afterwards; None for a deletion."""
        return None if self.type == "DELETED" else self.entry

    def encoded_line(self, key: Hashable, encode: Callable[[], bytes]) -> bytes:
        found = self.encoded_lines.get(key)
        if found is None:
            found = self.encoded_lines[key] = encode()
        return found


EventListener = Callable[[WatchCacheEvent], None]


class WatchCache:
    """The recent events of one kind, newest last."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES, since: int = 0) -> None:
        self._events: deque[WatchCacheEvent] = deque()
        self._listeners: dict[EventListener, None] = {}
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._bytes = 0
        self.compacted_version = since
        """Events up to this version are dropped. A watch may start at this version, not before."""

    def append(self, change: WatchCacheEvent) -> None:
        self._events.append(change)
        self._bytes += len(change.entry.raw)
        while len(self._events) > self._max_events or self._bytes > self._max_bytes:
            self._drop_oldest()
        for listener in tuple(self._listeners):
            listener(change)
        change.encoded_lines.clear()  # later watches encode again; kept lines would double the memory

    def events_after(self, version: int) -> Iterator[WatchCacheEvent]:
        """The events after a version not below `compacted_version`, oldest first."""
        newer = []
        for change in reversed(self._events):
            if change.version <= version:
                break
            newer.append(change)
        return reversed(newer)

    def add_listener(self, listener: EventListener) -> None:
        self._listeners[listener] = None

    def remove_listener(self, listener: EventListener) -> None:
        self._listeners.pop(listener, None)

    def compact(self, version: int) -> None:
        """Drop the events up to a version, as etcd's compaction does."""
        while self._events and self._events[0].version <= version:
            self._drop_oldest()
        self.compacted_version = max(self.compacted_version, version)

    def _drop_oldest(self) -> None:
        change = self._events.popleft()
        self._bytes -= len(change.entry.raw)
        self.compacted_version = change.version
