"""The objects of the API server, the resource version counter and the group commit.

Readers (get, list, watch, authorization, discovery) use `Store.committed`, which holds committed objects only. The
write path (writer, admission, quotas, garbage collection) uses `Store.uncommitted`, which also shows writes that wait
for their commit: of two updates of one version only one passes. Without a storage backend a write is committed at once
and both are the same object.

With a storage backend, writes that arrive while a commit is under way form the next group. A group is one transaction.
When it is committed, its changes are published in order: to `CommittedObjects`, to `add_commit_listener` callbacks, to
watches. Then `wait_committed` returns, and the requests are answered. When a commit fails, all uncommitted writes are
rolled back and their requests are refused. `failure` is set until a commit succeeds; the store retries with an empty
commit every RETRY_S. Reading and writing are plain calls without awaiting, so a request that reads, decides and writes
needs no lock. Cost: a write is a dictionary store and an insertion into a sorted list; a list of one namespace is two
bisections.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.storage.stored_objects import (
    FieldExtractor,
    StoredObject,
    load_stored_object,
    make_stored_object,
)
from bayplan.apiserver.storage.watch_cache import EventType, WatchCache, WatchCacheEvent
from bayplan.errors import BayplanError

LOG = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds after a failed commit until the store tries an empty commit, if no request has written meanwhile."""

GroupResource = tuple[str, str]
"""(group, plural) of the storage version: see `ServedResource.storage`."""
Changes = Sequence[tuple[GroupResource, WatchCacheEvent]]


class CommitError(BayplanError):
    """A group of writes was not committed. None of them is visible."""


class StorageBackend(Protocol):
    def commit(self, version: int, changes: Changes) -> asyncio.Future[None]:
        """Write the changes up to this version in one transaction; an empty group writes the version alone.

        The future completes when the transaction is durable. An exception means that the transaction was rolled back.
        """
        ...


class CommittedObjects:
    def __init__(self, name: GroupResource, *, since: int = 0) -> None:
        self.name = name
        self.watch_cache = WatchCache(since=since)
        self.extract: FieldExtractor | None = None
        self.change_count = 0
        """Number of changes. While it stays the same, everything that was read here is current."""
        self._entries: dict[str, StoredObject] = {}
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, namespace: str, name: str) -> StoredObject | None:
        return self._entries.get(f"{namespace}/{name}" if namespace else name)

    def entries(self, namespace: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """The objects in the order of their keys, optionally of one namespace and after one key."""
        if not self._keys:
            return iter(())
        first = bisect_left(self._keys, f"{namespace}/") if namespace else 0
        last = bisect_left(self._keys, f"{namespace}0") if namespace else len(self._keys)
        if after:
            first = max(first, bisect_left(self._keys, after))
            first += first < last and self._keys[first] == after
        return map(self._entries.__getitem__, self._keys[first:last])

    def put(self, entry: StoredObject) -> None:
        key = entry.key
        self.change_count += 1
        if key not in self._entries:
            insort(self._keys, key)
        self._entries[key] = entry

    def remove(self, key: str) -> None:
        self.change_count += 1
        del self._entries[key]
        del self._keys[bisect_left(self._keys, key)]


class UncommittedObjects:
    """The objects of one kind for the write path: the committed ones overlaid with uncommitted changes."""

    def __init__(self, objects: CommittedObjects) -> None:
        self.name = objects.name
        self.watch_cache = objects.watch_cache
        self.change_count = 0
        """As in `CommittedObjects`; a rollback counts as a change."""
        self._objects = objects
        self._pending: dict[str, WatchCacheEvent] = {}

    @property
    def extract(self) -> FieldExtractor | None:
        return self._objects.extract

    def get(self, namespace: str, name: str) -> StoredObject | None:
        change = self._pending.get(f"{namespace}/{name}" if namespace else name)
        return self._objects.get(namespace, name) if change is None else change.after

    def entries(self, namespace: str = "", *, after: str = "") -> Iterator[StoredObject]:
        committed = self._objects.entries(namespace, after=after)
        if not self._pending:
            return committed
        found = {entry.key: entry for entry in committed}
        for key, change in self._pending.items():
            if key > after and namespace in ("", change.entry.namespace):
                found.pop(key, None)
                if change.after is not None:
                    found[key] = change.after
        return (found[key] for key in sorted(found))

    def add(self, change: WatchCacheEvent) -> None:
        self.change_count += 1
        self._pending[change.entry.key] = change

    def drop(self, change: WatchCacheEvent) -> None:
        """Remove a committed change, unless a later change of the same object waits."""
        if self._pending.get(change.entry.key) is change:
            del self._pending[change.entry.key]

    def roll_back(self) -> None:
        self.change_count += bool(self._pending)
        self._pending.clear()


ResourceObjects = CommittedObjects | UncommittedObjects


class _CommitGroup:
    """Writes that are committed in one transaction, and the future of the requests that wait for it."""

    def __init__(self) -> None:
        self.changes: list[tuple[GroupResource, WatchCacheEvent]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Store:
    """All objects of all kinds, and the resource version counter."""

    def __init__(self, backend: StorageBackend | None = None, *, version: int = 0) -> None:
        self.version = version
        """The resource version of readers: that of the last committed write."""
        self.newest_version = version
        """The resource version of the last write, committed or not."""
        self.failure: CommitError | None = None
        """The error of the last commit; None if it succeeded."""
        self._start = version
        self._committed_objects: dict[GroupResource, CommittedObjects] = {}
        self._uncommitted: dict[GroupResource, UncommittedObjects] = {}
        self._backend = backend
        self._queued: _CommitGroup | None = None
        self._committing: _CommitGroup | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._commit_listeners: list[Callable[[CommittedObjects, WatchCacheEvent], None]] = []
        self._recovery_callbacks: list[Callable[[], None]] = []

    def committed_objects(self, name: GroupResource) -> CommittedObjects:
        """The objects of a kind for readers."""
        found = self._committed_objects.get(name)
        if found is None:
            found = self._committed_objects[name] = CommittedObjects(name, since=self._start)
        return found

    def uncommitted_objects(self, name: GroupResource) -> ResourceObjects:
        """The objects of a kind for the write path."""
        if self._backend is None:
            return self.committed_objects(name)
        found = self._uncommitted.get(name)
        if found is None:
            found = self._uncommitted[name] = UncommittedObjects(self.committed_objects(name))
        return found

    def restore(self, name: GroupResource, raw: bytes, version: int) -> None:
        """Load an object of the storage backend, without an event."""
        objects = self.committed_objects(name)
        objects.put(load_stored_object(raw, version, objects.extract))

    def add_commit_listener(self, callback: Callable[[CommittedObjects, WatchCacheEvent], None]) -> None:
        """Register a callback for every committed change. It runs before the watches and must not write."""
        self._commit_listeners.append(callback)

    def on_recovery(self, callback: Callable[[], None]) -> None:
        """Register a callback for the first successful commit after a failed one: the writes between are lost."""
        self._recovery_callbacks.append(callback)

    # Writes

    def put(self, name: GroupResource, tree: Tree) -> StoredObject:
        """Write a new state of an object. The tree belongs to the store afterwards."""
        metadata, objects = tree["metadata"], self.uncommitted_objects(name)
        known = objects.get(metadata.get("namespace") or "", metadata["name"])
        return self.put_entry(name, make_stored_object(tree, self.newest_version + 1, objects.extract, known))

    def put_entry(self, name: GroupResource, entry: StoredObject) -> StoredObject:
        """Write a stored object that already has the next resource version."""
        self.newest_version += 1
        assert entry.version == self.newest_version
        objects = self.uncommitted_objects(name)
        before = objects.get(entry.namespace, entry.name)
        self._write(objects, WatchCacheEvent("MODIFIED" if before else "ADDED", self.newest_version, entry, before))
        return entry

    def delete(self, name: GroupResource, entry: StoredObject) -> StoredObject:
        """Delete an object. Returns its last state with the version of the deletion."""
        self.newest_version += 1
        objects = self.uncommitted_objects(name)
        last = make_stored_object(entry.tree(), self.newest_version, objects.extract)
        self._write(
            objects, WatchCacheEvent("DELETED", self.newest_version, last, objects.get(entry.namespace, entry.name))
        )
        return last

    def _write(self, objects: ResourceObjects, change: WatchCacheEvent) -> None:
        if isinstance(objects, CommittedObjects):  # without a storage backend
            self._publish(objects, change)
            return
        objects.add(change)
        if self._queued is None:
            self._queued = _CommitGroup()
            asyncio.get_running_loop().call_soon(self._commit)  # includes all writes of this callback of the event loop
        self._queued.changes.append((objects.name, change))

    def _publish(self, objects: CommittedObjects, change: WatchCacheEvent) -> None:
        if change.type == "DELETED":
            objects.remove(change.entry.key)
        else:
            objects.put(change.entry)
        self.version = change.version
        for callback in self._commit_listeners:
            try:
                callback(objects, change)
            except Exception:  # the object is stored; the other callbacks, the watches and the writer continue
                LOG.exception("a commit listener failed at version %d of %s", change.version, change.entry.key)
        objects.watch_cache.append(change)

    # Commits

    async def wait_committed(self) -> None:
        """Wait until all writes so far are committed. Raises CommitError if they were rolled back."""
        group = self._queued or self._committing
        if group is not None:
            await asyncio.shield(group.done)

    async def close(self) -> None:
        """Wait for the running commits; no write may follow."""
        while (group := self._queued or self._committing) is not None:
            await asyncio.wait([group.done])
        if self._retry is not None:
            self._retry.cancel()

    def _commit(self) -> None:
        if self._queued is None or self._committing is not None:
            return
        assert self._backend is not None
        self._committing, self._queued = self._queued, None
        self._backend.commit(self.newest_version, self._committing.changes).add_done_callback(self._on_commit_done)

    def _on_commit_done(self, commit: asyncio.Future[None]) -> None:
        group, self._committing = self._committing, None
        if group is None or commit.cancelled():
            return
        if (error := commit.exception()) is not None:
            self._roll_back(group, error)
            return
        self._commit()  # the next commit runs while this group is published
        for name, change in group.changes:
            self._uncommitted[name].drop(change)
            self._publish(self._committed_objects[name], change)
        group.done.set_result(None)
        if self.failure is not None:
            self.failure = None
            LOG.warning("a commit succeeded: writes are accepted again")
            for callback in self._recovery_callbacks:
                callback()

    def _roll_back(self, group: _CommitGroup, error: BaseException) -> None:
        """Drop all uncommitted writes: those after the failed group depend on it."""
        if self.failure is None:
            LOG.error("commit failed: %s; writes are refused and /readyz fails until a commit succeeds", error)
        self.failure = failure = CommitError(f"the write was not committed: {error}")
        for each in self._uncommitted.values():
            each.roll_back()
        self.newest_version = self.version
        failed, self._queued = [group, *([self._queued] if self._queued else [])], None
        for each_group in failed:
            each_group.done.set_exception(failure)
            each_group.done.exception()  # possibly no request waits for it
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._commit_again)

    def _commit_again(self) -> None:
        self._retry = None
        if self.failure is not None and self._queued is None and self._committing is None:
            self._queued = _CommitGroup()
            self._commit()

    def compact(self) -> int:
        """Drop the watch caches, as etcd's compaction does. Returns the remaining version."""
        for objects in self._committed_objects.values():
            objects.watch_cache.compact(self.version)
        self._start = self.version
        return self.version


__all__ = [
    "Changes",
    "CommitError",
    "CommittedObjects",
    "EventType",
    "GroupResource",
    "ResourceObjects",
    "StorageBackend",
    "Store",
    "StoredObject",
    "UncommittedObjects",
    "WatchCacheEvent",
]
