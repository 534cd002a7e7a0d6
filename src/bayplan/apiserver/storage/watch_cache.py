"""What has happened to the objects of one kind lately, and who wants to hear of it?

The store writes here, watches read: a watch that starts at an older version is given what came after it, and hears of
everything that follows. The past is bounded in events and in bytes; whoever asks for more than is kept must list anew.
Cost: appending is constant, plus one call for each watch that listens.
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
    """One write. `entry` is the object afterwards, or for a deletion its last state under the deletion's version."""

    type: EventType
    version: int
    entry: StoredObject
    before: StoredObject | None
    encoded_lines: dict[Hashable, bytes] = msgspec.field(default_factory=dict)
    """The texts that were made of it: a thousand watches send the same bytes."""

    @property
    def after(self) -> StoredObject | None:
        """The object afterwards; None for a deletion."""
        return None if self.type == "DELETED" else self.entry

    def encoded_line(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        found = self.encoded_lines.get(key)
        if found is None:
            found = self.encoded_lines[key] = make()
        return found


EventListener = Callable[[WatchCacheEvent], None]


class WatchCache:
    """The past of one kind, the newest last."""

    def __init__(self, *, most_events: int = MAX_EVENTS, most_bytes: int = MAX_BYTES, since: int = 0) -> None:
        self._changes: deque[WatchCacheEvent] = deque()
        self._listeners: dict[EventListener, None] = {}
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._bytes = 0
        self.compacted_version = since
        """The version up to which nothing is known any more; a watch may start there, not before."""

    def append(self, change: WatchCacheEvent) -> None:
        self._changes.append(change)
        self._bytes += len(change.entry.raw)
        while len(self._changes) > self._most_events or self._bytes > self._most_bytes:
            self._drop_oldest()
        for listener in tuple(self._listeners):
            listener(change)
        change.encoded_lines.clear()  # whoever comes later makes them again; they would double what is kept

    def events_after(self, version: int) -> Iterator[WatchCacheEvent]:
        """What came after a version that is not before `compacted_version`, the oldest first."""
        newer = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            newer.append(change)
        return reversed(newer)

    def add_listener(self, listener: EventListener) -> None:
        self._listeners[listener] = None

    def remove_listener(self, listener: EventListener) -> None:
        self._listeners.pop(listener, None)

    def compact(self, version: int) -> None:
        """Drop the past up to a version, as a compaction does."""
        while self._changes and self._changes[0].version <= version:
            self._drop_oldest()
        self.compacted_version = max(self.compacted_version, version)

    def _drop_oldest(self) -> None:
        change = self._changes.popleft()
        self._bytes -= len(change.entry.raw)
        self.compacted_version = change.version
