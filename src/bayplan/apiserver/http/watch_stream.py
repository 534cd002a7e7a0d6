"""What does a watch send, and when?

A watch is a buffer between the store, which offers each change as it happens, and the connection, which takes what has
gathered whenever it can send. Whether a change concerns the watch is decided when it is offered; its line is made once
and shared by all watches of one form. What was there at the start is put into words as it is sent. Whoever reads too
slowly for too long is cut off, as Kubernetes does: the memory of the server is not theirs.
Cost: a match and a list append a watch and change; sending joins what has gathered into one write.
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
    """How a watch shows objects: as they are, or as rows of a Table."""

    @property
    def shared(self) -> bool:
        """Whether the text depends on nothing but the object, so that others can send it too."""
        ...

    def text(self, entry: StoredObject) -> bytes: ...

    def bookmark(self, version: int, annotations: Tree) -> Tree: ...


class ObjectFormat:
    """Objects as they are, in one version."""

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
    """One watch: what it wants to hear of, and the lines that wait to be sent."""

    def __init__(
        self, place: CommittedObjects, form: WatchFormat, wanted: SelectionPredicate, form_key: object
    ) -> None:
        self._place = place
        self._form = form
        self._wanted = wanted
        self._form_key = form_key
        self._wants_all = wanted.matches_all and not wanted.namespace
        self._lines: list[bytes] = []
        self._bytes = 0
        self._initial: list[StoredObject] = []
        self._initial_end = b""
        self._since = 0
        self._waiting: asyncio.Future[None] | None = None
        self.overflowed = False
        """It fell too far behind; what it sends would have a hole."""

    def start(self, version: int, *, current: int, initial: bool) -> None:
        """Begin at a version: with all that there is (`initial`), or with what came after it."""
        self._since = current if initial else version
        if initial:
            entries = self._place.entries(self._wanted.namespace)
            self._initial = [entry for entry in entries if self._wanted.matches(entry)]
            self._initial.reverse()
        elif version < self._place.watch_cache.compacted_version:
            oldest = self._place.watch_cache.compacted_version + 1
            self._end_with_error(api_errors.expired(f"too old resource version: {version} ({oldest})"))
            return
        else:
            for change in self._place.watch_cache.events_after(version):
                self.on_change(change)
        self._place.watch_cache.add_listener(self.on_change)

    def stop(self) -> None:
        self._place.watch_cache.remove_listener(self.on_change)

    def on_change(self, change: WatchCacheEvent) -> None:
        """Take a change if it concerns this watch."""
        if change.version <= self._since:
            return
        if self._wants_all:
            self._queue_event(change.type, change)
            return
        wanted = self._wanted
        now = change.type != "DELETED" and wanted.matches(change.entry)
        before = change.before is not None and wanted.matches(change.before)
        if now:
            self._queue_event("MODIFIED" if before else "ADDED", change)
        elif before:
            self._queue_event("DELETED", change)

    async def next_lines(self, timeout_s: float | None) -> bytes | None:
        """What has gathered, waiting for it if need be; None when the time is over or the watch was cut."""
        if self._initial or self._initial_end:
            return self._next_initial()
        if not self._lines and not self.overflowed:
            await self._wait_for_line(timeout_s)
        if not self._lines:
            return None
        lines, self._lines, self._bytes = self._lines, [], 0
        return lines[0] if len(lines) == 1 else b"".join(lines)

    async def _wait_for_line(self, timeout_s: float | None) -> None:
        """Wait until there is a line, the watch is cut, or the time is over."""
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
        lines = [_line("ADDED", self._form.text(entry)) for entry in chunk]
        if not self._initial:
            lines.append(self._initial_end)
            self._initial_end = b""
        return b"".join(lines)

    def bookmark(self, version: int) -> None:
        """Tell how far it has come."""
        self._add(_line("BOOKMARK", encode(self._form.bookmark(version, {}))))

    def queue_initial_events_end(self, version: int) -> None:
        """Tell, behind all that was there at the start, that this was all."""
        self._initial_end = _line("BOOKMARK", encode(self._form.bookmark(version, {INITIAL_EVENTS_END: "true"})))

    def _queue_event(self, kind: _Type, change: WatchCacheEvent) -> None:
        if not self._form.shared:
            self._add(self._make(kind, change))
            return
        self._add(change.encoded_line((kind, self._form_key), lambda: self._make(kind, change)))

    def _make(self, kind: _Type, change: WatchCacheEvent) -> bytes:
        entry = change.entry
        if kind == "DELETED" and change.type != "DELETED":  # it went out of sight: its old content, the new version
            assert change.before is not None
            entry = make_stored_object(change.before.tree(), change.version)
        return _line(kind, self._form.text(entry))

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > MAX_BUFFERED_BYTES:
            self._lines.clear()
            self.overflowed = True
            self.stop()
        if self._waiting is not None:
            _finish_wait(self._waiting)

    def _end_with_error(self, refusal: api_errors.StatusError) -> None:
        self._add(_line("ERROR", encode(refusal.body())))
        self.overflowed = True


def _finish_wait(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _line(kind: str, text: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), text)
