"""The objects of the API server, the resource version counter and the group commit.

Readers (get, list, watch, authorization, discovery) use `Store.committed`, which holds committed objects only. The
write path (writer, admission, quotas, garbage collection) uses `Store.uncommitted`, which shows writes that wait for
their commit as well: of two updates of one version only one passes. Without a journal a write is committed at once and
both are the same object.

With a journal, writes that arrive while a commit is under way form the next group. A group is one transaction. When it
is committed, its changes are published in order: to the place, to `add_commit_listener` callbacks, to watches. Then
`wait_committed` returns, and the requests are answered. When a commit fails, all uncommitted writes are rolled back and
their requests are refused; `failure` is set until a commit succeeds, which the store tries once in RETRY_S. Reading and
writing are plain calls without awaiting, so a request that reads, decides and writes needs no lock. Cost: a write is a
dictionary store and an insertion into a sorted list; a list of one namespace is two bisections."""

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
"""How long after a failed commit the store tries an empty one, if no request has written meanwhile."""

GroupResource = tuple[str, str]
"""(group, plural) of the storage: see `Resource.storage`."""
Changes = Sequence[tuple[GroupResource, WatchCacheEvent]]


class CommitError(BayplanError):
    """A group of writes could not be committed. None of them is visible."""


class StorageBackend(Protocol):
    """Durable storage of the objects."""

    def commit(self, version: int, changes: Changes) -> asyncio.Future[None]:
        """Write the changes, which lead to this version, in one transaction; an empty group writes the version alone.

        The result is there once the transaction is durable. An exception means that nothing of it was kept.
        """
        ...


class CommittedObjects:
    """The committed objects of one kind."""

    def __init__(self, name: GroupResource, *, since: int = 0) -> None:
        self.name = name
        self.watch_cache = WatchCache(since=since)
        self.extract: FieldExtractor | None = None
        self.change_count = 0
        """How often something in here became different: as long as it stays, so does what was read here."""
        self._entries: dict[str, StoredObject] = {}
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, namespace: str, name: str) -> StoredObject | None:
        return self._entries.get(f"{namespace}/{name}" if namespace else name)

    def entries(self, namespace: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """In the order of their keys; of one namespace, and behind one key, if given."""
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
    """The objects of one kind as the write path sees them: a place and, over it, the changes that are not committed."""

    def __init__(self, place: CommittedObjects) -> None:
        self.name = place.name
        self.watch_cache = place.watch_cache
        self.change_count = 0
        """As that of a place; a rollback counts as a change."""
        self._place = place
        self._pending: dict[str, WatchCacheEvent] = {}

    @property
    def extract(self) -> FieldExtractor | None:
        return self._place.extract

    def get(self, namespace: str, name: str) -> StoredObject | None:
        change = self._pending.get(f"{namespace}/{name}" if namespace else name)
        return self._place.get(namespace, name) if change is None else change.after

    def entries(self, namespace: str = "", *, after: str = "") -> Iterator[StoredObject]:
        committed = self._place.entries(namespace, after=after)
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
        """Forget a change that is committed, unless a later one of the same object waits."""
        if self._pending.get(change.entry.key) is change:
            del self._pending[change.entry.key]

    def roll_back(self) -> None:
        self.change_count += bool(self._pending)
        self._pending.clear()


ResourceObjects = CommittedObjects | UncommittedObjects


class _CommitGroup:
    """Writes that are committed in one transaction, and the requests that wait for it."""

    def __init__(self) -> None:
        self.changes: list[tuple[GroupResource, WatchCacheEvent]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Store:
    """All objects of all kinds, and the counter."""

    def __init__(self, journal: StorageBackend | None = None, *, version: int = 0) -> None:
        self.version = version
        """The version that readers see: that of the last committed write."""
        self.newest_version = version
        """The version of the last write, committed or not."""
        self.failure: CommitError | None = None
        """Why the last commit failed; None if it succeeded."""
        self._start = version
        self._places: dict[GroupResource, CommittedObjects] = {}
        self._uncommitted: dict[GroupResource, UncommittedObjects] = {}
        self._journal = journal
        self._queued: _CommitGroup | None = None
        self._committing: _CommitGroup | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._watchers: list[Callable[[CommittedObjects, WatchCacheEvent], None]] = []
        self._recovered: list[Callable[[], None]] = []

    def committed(self, name: GroupResource) -> CommittedObjects:
        """What readers see of a kind."""
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = CommittedObjects(name, since=self._start)
        return found

    def uncommitted(self, name: GroupResource) -> ResourceObjects:
        """What the write path sees of a kind."""
        if self._journal is None:
            return self.committed(name)
        found = self._uncommitted.get(name)
        if found is None:
            found = self._uncommitted[name] = UncommittedObjects(self.committed(name))
        return found

    def all_committed(self) -> Sequence[CommittedObjects]:
        return tuple(self._places.values())

    def restore(self, name: GroupResource, raw: bytes, version: int) -> None:
        """An object that the journal kept: no event tells of it."""
        place = self.committed(name)
        place.put(load_stored_object(raw, version, place.extract))

    def add_commit_listener(self, callback: Callable[[CommittedObjects, WatchCacheEvent], None]) -> None:
        """Call this for every committed change, before any watch receives it. It must not write."""
        self._watchers.append(callback)

    def on_recovery(self, recovered: Callable[[], None]) -> None:
        """Call this when a commit succeeds after one that failed: what was written between is lost."""
        self._recovered.append(recovered)

    # Writing.

    def put(self, name: GroupResource, tree: Tree) -> StoredObject:
        """Write a new state of an object; the tree belongs to the store from here on."""
        metadata, place = tree["metadata"], self.uncommitted(name)
        known = place.get(metadata.get("namespace") or "", metadata["name"])
        return self.put_entry(name, make_stored_object(tree, self.newest_version + 1, place.extract, known))

    def put_entry(self, name: GroupResource, entry: StoredObject) -> StoredObject:
        """The same for an entry that carries the next version already."""
        self.newest_version += 1
        assert entry.version == self.newest_version
        place = self.uncommitted(name)
        before = place.get(entry.namespace, entry.name)
        self._write(place, WatchCacheEvent("MODIFIED" if before else "ADDED", self.newest_version, entry, before))
        return entry

    def delete(self, name: GroupResource, entry: StoredObject) -> StoredObject:
        """Remove an object; its last state, under the version of the deletion."""
        self.newest_version += 1
        place = self.uncommitted(name)
        last = make_stored_object(entry.tree(), self.newest_version, place.extract)
        self._write(
            place, WatchCacheEvent("DELETED", self.newest_version, last, place.get(entry.namespace, entry.name))
        )
        return last

    def _write(self, place: ResourceObjects, change: WatchCacheEvent) -> None:
        if isinstance(place, CommittedObjects):  # there is no journal
            self._publish(place, change)
            return
        place.add(change)
        if self._queued is None:
            self._queued = _CommitGroup()
            asyncio.get_running_loop().call_soon(self._commit)  # with all that is written in this turn of the loop
        self._queued.changes.append((place.name, change))

    def _publish(self, place: CommittedObjects, change: WatchCacheEvent) -> None:
        if change.type == "DELETED":
            place.remove(change.entry.key)
        else:
            place.put(change.entry)
        self.version = change.version
        for callback in self._watchers:
            try:
                callback(place, change)
            except Exception:  # the object is stored; the other callbacks, the watches and the writer go on
                LOG.exception("a callback failed on version %d of %s", change.version, change.entry.key)
        place.watch_cache.append(change)

    # Committing.

    async def wait_committed(self) -> None:
        """Return when everything that is written by now is committed. Raises CommitError if it was rolled back."""
        group = self._queued or self._committing
        if group is not None:
            await asyncio.shield(group.done)

    async def close(self) -> None:
        """Wait for the commits under way; no write may follow."""
        while (group := self._queued or self._committing) is not None:
            await asyncio.wait([group.done])
        if self._retry is not None:
            self._retry.cancel()

    def _commit(self) -> None:
        if self._queued is None or self._committing is not None:
            return
        assert self._journal is not None
        self._committing, self._queued = self._queued, None
        self._journal.commit(self.newest_version, self._committing.changes).add_done_callback(self._committed)

    def _committed(self, written: asyncio.Future[None]) -> None:
        group, self._committing = self._committing, None
        if group is None or written.cancelled():
            return
        if (error := written.exception()) is not None:
            self._roll_back(group, error)
            return
        self._commit()  # the next group is on its way while this one is published
        for name, change in group.changes:
            self._uncommitted[name].drop(change)
            self._publish(self._places[name], change)
        group.done.set_result(None)
        if self.failure is not None:
            self.failure = None
            LOG.warning("a commit succeeded: writes are accepted again")
            for recovered in self._recovered:
                recovered()

    def _roll_back(self, group: _CommitGroup, error: BaseException) -> None:
        """Drop all uncommitted writes: those behind the failed group were made in the light of it."""
        if self.failure is None:
            LOG.error("commit failed: %s; writes are refused and /readyz fails until a commit succeeds", error)
        self.failure = failure = CommitError(f"the write was not committed: {error}")
        for each in self._uncommitted.values():
            each.roll_back()
        self.newest_version = self.version
        failed, self._queued = [group, *([self._queued] if self._queued else [])], None
        for each_group in failed:
            each_group.done.set_exception(failure)
            each_group.done.exception()  # it may be that no request waits for it
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._commit_again)

    def _commit_again(self) -> None:
        self._retry = None
        if self.failure is not None and self._queued is None and self._committing is None:
            self._queued = _CommitGroup()
            self._commit()

    def compact(self) -> int:
        """Drop the past, as etcd's compaction does; the version that is left."""
        for place in self._places.values():
            place.watch_cache.compact(self.version)
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
