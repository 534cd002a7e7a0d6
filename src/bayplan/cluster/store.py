"""Where do the objects live, and in which order did they come to be what they are?

One counter gives every write of every kind its resource version. Reading and writing are plain calls without awaiting,
so a request that reads, decides and writes in one go needs no lock. What was written is told to watches at once, or,
when there is a journal, after it has been committed there; `settled` is what a request awaits before it is answered.
Cost: a write is a dictionary store and an insertion into a sorted list; a list of one namespace is two bisections.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from bayplan.cluster.entries import Entry, Extractor, entry_from, entry_of
from bayplan.cluster.kinds import Tree
from bayplan.cluster.ring import Change, EventType, Ring

PlaceName = tuple[str, str]
"""(group, plural) of the storage: see `Resource.storage`."""


class Journal(Protocol):
    """Keeps what was written; `record` calls back once it cannot be lost."""

    def record(self, place: PlaceName, change: Change) -> None: ...

    def on_commit(self, told: Callable[[int], None]) -> None: ...

    def on_failure(self, told: Callable[[Exception], None]) -> None: ...


class Place:
    """All objects of one kind."""

    def __init__(self, name: PlaceName, *, since: int = 0) -> None:
        self.name = name
        self.ring = Ring(since=since)
        self.extract: Extractor | None = None
        self.bytes = 0
        self.changes = 0
        """How often something in here became different: as long as it stays, so does what was read here."""
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, namespace: str, name: str) -> Entry | None:
        return self._entries.get(f"{namespace}/{name}" if namespace else name)

    def entries(self, namespace: str = "", *, after: str = "") -> Iterator[Entry]:
        """In the order of their keys; of one namespace, and behind one key, if given."""
        if not self._keys:
            return iter(())
        first = bisect_left(self._keys, f"{namespace}/") if namespace else 0
        last = bisect_left(self._keys, f"{namespace}0") if namespace else len(self._keys)
        if after:
            first = max(first, bisect_left(self._keys, after))
            first += first < last and self._keys[first] == after
        return map(self._entries.__getitem__, self._keys[first:last])

    def put(self, entry: Entry) -> Entry | None:
        """Take the new state; what was there before."""
        key = entry.key
        self.changes += 1
        before = self._entries.get(key)
        if before is None:
            insort(self._keys, key)
        else:
            self.bytes -= len(before.raw)
        self._entries[key] = entry
        self.bytes += len(entry.raw)
        return before

    def remove(self, key: str) -> Entry:
        entry = self._entries.pop(key)
        self.changes += 1
        del self._keys[bisect_left(self._keys, key)]
        self.bytes -= len(entry.raw)
        return entry


class Store:
    """All objects of all kinds, and the counter."""

    def __init__(self, journal: Journal | None = None, *, version: int = 0) -> None:
        self.version = version
        self._start = version
        self._places: dict[PlaceName, Place] = {}
        self._journal = journal
        self._unsettled: list[tuple[Place, Change]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._watchers: list[Callable[[Place, Change], None]] = []
        self._fault: Exception | None = None
        if journal is not None:
            journal.on_commit(self._committed)
            journal.on_failure(self._broken)

    @property
    def told(self) -> int:
        """The version up to which watches have heard of everything."""
        return self._unsettled[0][1].version - 1 if self._unsettled else self.version

    def place(self, name: PlaceName) -> Place:
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = Place(name, since=self._start)
        return found

    def places(self) -> Sequence[Place]:
        return tuple(self._places.values())

    def restore(self, name: PlaceName, raw: bytes, version: int) -> None:
        """An object that the journal kept: no event tells of it."""
        place = self.place(name)
        place.put(entry_from(raw, version, place.extract))

    def after_each(self, told: Callable[[Place, Change], None]) -> None:
        """Call this for every change, before any watch hears of it: controllers of our own stand here."""
        self._watchers.append(told)

    # Writing.

    def put(self, place: Place, tree: Tree) -> Entry:
        """Store a new state of an object, which becomes ours."""
        metadata = tree["metadata"]
        known = place.get(metadata.get("namespace") or "", metadata["name"])
        return self.take(place, entry_of(tree, self.version + 1, place.extract, known))

    def take(self, place: Place, entry: Entry) -> Entry:
        """The same for one that has its form already, and the next version."""
        self.version += 1
        assert entry.version == self.version
        before = place.put(entry)
        self._tell(place, Change("MODIFIED" if before else "ADDED", self.version, entry, before))
        return entry

    def delete(self, place: Place, entry: Entry) -> Entry:
        """Remove an object; its last state, under the version of the deletion."""
        self.version += 1
        before = place.remove(entry.key)
        last = entry_of(entry.tree(), self.version, place.extract)
        self._tell(place, Change("DELETED", self.version, last, before))
        return last

    def _tell(self, place: Place, change: Change) -> None:
        for told in self._watchers:
            told(place, change)
        if self._journal is None:
            place.ring.append(change)
            return
        self._unsettled.append((place, change))
        self._journal.record(place.name, change)

    # Waiting for the journal.

    async def settled(self) -> None:
        """Everything that is written by now is committed."""
        if self._fault is not None:
            raise self._fault
        if not self._unsettled:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._unsettled[-1][1].version, done))
        await done

    def _committed(self, version: int) -> None:
        ready = 0
        for place, change in self._unsettled:
            if change.version > version:
                break
            place.ring.append(change)
            ready += 1
        del self._unsettled[:ready]
        still = []
        for wanted, done in self._waiting:
            if wanted > version:
                still.append((wanted, done))
            elif not done.done():
                done.set_result(None)
        self._waiting = still

    def _broken(self, fault: Exception) -> None:
        """Nothing can be kept any more: no write is acknowledged from here on."""
        self._fault = fault
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            if not done.done():
                done.set_exception(fault)

    def forget_history(self) -> int:
        """Drop the past, as etcd's compaction does; the version that is left."""
        for place in self._places.values():
            place.ring.forget(self.version)
        self._start = self.version
        return self.version


__all__ = ["Change", "Entry", "EventType", "Journal", "Place", "PlaceName", "Store"]
