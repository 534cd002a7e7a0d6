"""Watch: a buffer between the store and one connection.

The store offers each change as it happens; the connection sends what the buffer holds. A change is matched with the
selectors when it is offered. Its line is encoded once and shared by all watches of the same format. The initial objects
are encoded when they are sent. A watch whose client reads too slowly is ended, as kube-apiserver does, so its buffer
stays bounded. Cost: a match and a list append for each watch and change; a send joins the buffered lines.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage.selection_predicate import SelectionPredicate
from bayplan.apiserver.storage.store import CommittedObjects
from bayplan.apiserver.storage.stored_objects import StoredObject, encode, make_stored_object
from bayplan.apiserver.storage.version_conversion import to_json
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent

MAX_BUFFERED_BYTES = 128 << 20
_INITIAL_BATCH = 500
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_Type = Literal["ADDED", "MODIFIED", "DELETED"]


class WatchFormat(Protocol):
    """How a watch shows objects: whole, as metadata, or as rows of a Table."""

    @property
    def shared(self) -> bool:
        """Whether the text depends on the object alone, so that all watches can share it."""
        ...

    def text(self, entry: StoredObject) -> bytes: ...

    def bookmark(self, version: int, annotations: Tree) -> Tree: ...


class ObjectFormat:
    """Whole objects, in one version."""

    shared = True

    def __init__(self, resource: ServedResource) -> None:
        self._resource = resource

    def text(self, entry: StoredObject) -> bytes:
        return to_json(self._resource, entry)

    def bookmark(self, version: int, annotations: Tree) -> Tree:
        metadata: Tree = {"resourceVersion": str(version)}
        if annotations:
            metadata["annotations"] = annotations
        return {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}


class Watch:
    """One watch: its selectors, and the lines that wait to be sent."""

    def __init__(
        self, objects: CommittedObjects, watch_format: WatchFormat, predicate: SelectionPredicate, format_key: object
    ) -> None:
        self._objects = objects
        self._format = watch_format
        self._predicate = predicate
        self._format_key = format_key
        self._matches_all = predicate.matches_all and not predicate.namespace
        self._lines: list[bytes] = []
        self._bytes = 0
        self._initial: list[StoredObject] = []
        self._initial_end = b""
        self._since = 0
        self._waiting: asyncio.Future[None] | None = None
        self.overflowed = False
        """Whether the watch was ended because its buffer was full or it cannot start."""

    def start(self, version: int, *, current: int, initial: bool) -> None:
        """Start at a version: with all current objects (`initial`), or with the changes after that version."""
        self._since = current if initial else version
        if initial:
            entries = self._objects.entries(self._predicate.namespace)
            self._initial = [entry for entry in entries if self._predicate.matches(entry)]
            self._initial.reverse()
        elif version < self._objects.watch_cache.compacted_version:
            oldest = self._objects.watch_cache.compacted_version + 1
            self._end_with_error(api_errors.expired(f"too old resource version: {version} ({oldest})"))
            return
        else:
            for change in self._objects.watch_cache.events_after(version):
                self.on_change(change)
        self._objects.watch_cache.add_listener(self.on_change)

    def stop(self) -> None:
        self._objects.watch_cache.remove_listener(self.on_change)

    def on_change(self, change: WatchCacheEvent) -> None:
        """Buffer a change if it matches this watch."""
        if change.version <= self._since:
            return
        if self._matches_all:
            self._queue_event(change.type, change)
            return
        predicate = self._predicate
        now = change.type != "DELETED" and predicate.matches(change.entry)
        before = change.before is not None and predicate.matches(change.before)
        if now:
            self._queue_event("MODIFIED" if before else "ADDED", change)
        elif before:
            self._queue_event("DELETED", change)

    async def next_lines(self, timeout_s: float | None) -> bytes | None:
        """The buffered lines, after a wait if there are none. None after the timeout or when the watch was ended."""
        if self._initial or self._initial_end:
            return self._next_initial()
        if not self._lines and not self.overflowed:
            await self._wait_for_line(timeout_s)
        if not self._lines:
            return None
        lines, self._lines, self._bytes = self._lines, [], 0
        return lines[0] if len(lines) == 1 else b"".join(lines)

    async def _wait_for_line(self, timeout_s: float | None) -> None:
        """Wait until there is a line, the watch is ended, or the timeout is over."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, _finish_wait, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def _next_initial(self) -> bytes:
        chunk, self._initial = self._initial[: -_INITIAL_BATCH - 1 : -1], self._initial[:-_INITIAL_BATCH]
        lines = [_line("ADDED", self._format.text(entry)) for entry in chunk]
        if not self._initial:
            lines.append(self._initial_end)
            self._initial_end = b""
        return b"".join(lines)

    def bookmark(self, version: int) -> None:
        self._add(_line("BOOKMARK", encode(self._format.bookmark(version, {}))))

    def queue_initial_events_end(self, version: int) -> None:
        """Add the bookmark that marks the end of the initial objects."""
        self._initial_end = _line("BOOKMARK", encode(self._format.bookmark(version, {INITIAL_EVENTS_END: "true"})))

    def _queue_event(self, kind: _Type, change: WatchCacheEvent) -> None:
        if not self._format.shared:
            self._add(self._encode(kind, change))
            return
        self._add(change.encoded_line((kind, self._format_key), lambda: self._encode(kind, change)))

    def _encode(self, kind: _Type, change: WatchCacheEvent) -> bytes:
        entry = change.entry
        if kind == "DELETED" and change.type != "DELETED":  # no longer matches: old content, new version
            assert change.before is not None
            entry = make_stored_object(change.before.tree(), change.version)
        return _line(kind, self._format.text(entry))

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > MAX_BUFFERED_BYTES:
            self._lines.clear()
            self.overflowed = True
            self.stop()
        if self._waiting is not None:
            _finish_wait(self._waiting)

    def _end_with_error(self, status_error: api_errors.StatusError) -> None:
        self._add(_line("ERROR", encode(status_error.body())))
        self.overflowed = True


def _finish_wait(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _line(kind: str, text: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), text)
