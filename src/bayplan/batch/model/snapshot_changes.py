"""A session's changes to the snapshot that the framework's plugins read, and their rollback.

Statements add placed tasks to rows and remove evicted ones here. Pod counts, ports, affinity and spread therefore match
the session's state. The next session copies changed rows and slots again from the cache (`stale_rows`, `stale_slots`),
including bound pods. Cost: some microseconds per change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from bayplan.batch.model.tasks import Task
from bayplan.cache import Cache
from bayplan.snapshot import PodInfo, Snapshot


class SnapshotChanges:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.stale_rows: set[int] = set()
        self.stale_slots: set[int] = set()
        self._slots: dict[str, int] | None = None  # by uid; built at the first removal of an earlier pod
        self._own: dict[str, int] = {}  # slots of pods that this session added
        self._cleared: dict[int, tuple[PodInfo, int, int, int]] = {}  # removed pods that were in the snapshot before
        self._free: list[int] = []

    def add(self, task: Task, row: int) -> None:
        info = task.info
        snapshot = self.snapshot
        slot = self._own[info.uid] = self._free.pop() if self._free else snapshot.pods.slots
        vocabulary, terms = snapshot.vocabulary, info.affinity
        snapshot.nodes.add_pod(row, info)
        kind = vocabulary.kinds.acquire(info.namespaced_labels)
        snapshot.pods.set_slot(slot, info, row, kind, vocabulary.affinities.acquire(terms) if terms is not None else -1)
        self._mark_stale(row, slot)

    def remove(self, task: Task, row: int) -> bool:
        """Remove the task from the row. Returns False if it is not there."""
        uid = task.uid
        info = next((each for each in self.snapshot.nodes.pods[row] if each.uid == uid), None)
        if info is None:
            return False
        self.snapshot.nodes.remove_pod(row, info)
        slot = self._own.pop(uid, None)
        if slot is not None:
            self._release_slot(slot)
            self._free.append(slot)
        else:
            slot = self._slot_of(uid)  # the cache still uses the ids that this slot refers to
            pods = self.snapshot.pods
            self._cleared[slot] = (info, row, int(pods.kinds[slot]), int(pods.affinities[slot]))
            pods.clear_slot(slot)
        self._mark_stale(row, slot)
        return True

    def restore(self) -> Iterator[None]:
        """Undo all changes, one pod per step. The stale rows and slots must be copied again afterwards."""
        for slot in self._own.values():
            self._release_slot(slot)
            yield
        self._own.clear()
        for slot, pod in self._cleared.items():  # so that the next refresh sees what happened to the pod meanwhile
            self.snapshot.pods.set_slot(slot, *pod)
        self._cleared.clear()

    def _mark_stale(self, row: int, slot: int) -> None:
        self.snapshot.touched.append(row)
        self.stale_rows.add(row)
        self.stale_slots.add(slot)

    def _release_slot(self, slot: int) -> None:
        pods, vocabulary = self.snapshot.pods, self.snapshot.vocabulary
        vocabulary.kinds.release(int(pods.kinds[slot]))
        affinity = int(pods.affinities[slot])
        if affinity >= 0:
            vocabulary.affinities.release(affinity)
        pods.clear_slot(slot)

    def _slot_of(self, uid: str) -> int:
        if self._slots is None:
            infos: list[PodInfo | None] = self.snapshot.pods.infos
            self._slots = {info.uid: slot for slot, info in enumerate(infos) if info is not None}
        return self._slots[uid]


class LiveSnapshot:
    """The current cluster state, kept beside the snapshot of the session. Commits are checked against it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._stale_rows: set[int] = set()
        self._stale_slots: set[int] = set()

    def refresh(self, cache: Cache) -> Collection[int]:
        """Update to the current cluster state and return the changed rows."""
        snapshot = self.snapshot
        cursor = snapshot.touched.end
        cache.refresh(snapshot, rows=self._stale_rows, slots=self._stale_slots)
        self._stale_rows.clear()
        self._stale_slots.clear()
        touched = snapshot.touched.since(cursor)
        return range(snapshot.nodes.count) if touched is None else touched

    @contextmanager
    def with_added(self, tasks: Sequence[Task]) -> Iterator[Iterator[tuple[Task, int]]]:
        """Yield each task with its row and then add it, so that the next task sees it. The block's end removes all."""
        view = SnapshotChanges(self.snapshot)
        added: list[tuple[Task, int]] = []

        def each() -> Iterator[tuple[Task, int]]:
            for task in tasks:
                row = self.snapshot.nodes.index[task.node_name]
                yield task, row
                view.add(task, row)
                added.append((task, row))

        try:
            yield each()
        finally:
            for task, row in reversed(added):
                view.remove(task, row)
            self._stale_rows |= view.stale_rows
            self._stale_slots |= view.stale_slots
