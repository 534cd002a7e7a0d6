"""The snapshot that the framework's plugins read during a session, and its way back.

Tasks that a session places or evicts are put on rows and taken off them here, so that pod counts, ports, affinity and
spread are those of the moment. Rows and slots that were changed are copied anew from the cache before the next session
(`stale_rows`, `stale_slots`); bound pods come back with them. Cost: some microseconds a change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from bayplan.batch.model.tasks import Task
from bayplan.cache import Cache
from bayplan.snapshot import PodInfo, Snapshot


class SnapshotChanges:
    """One session's changes to its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.stale_rows: set[int] = set()
        self.stale_slots: set[int] = set()
        self._slots: dict[str, int] | None = None  # by uid; made when a pod that was there before goes
        self._own: dict[str, int] = {}  # slots of pods that this session added
        self._cleared: dict[int, tuple[PodInfo, int, int, int]] = {}  # pods that were there before and went
        self._free: list[int] = []

    def add(self, task: Task, row: int) -> None:
        """The task is on the row from now on."""
        info = task.info
        snapshot = self.snapshot
        slot = self._own[info.uid] = self._free.pop() if self._free else snapshot.pods.slots
        vocabulary, terms = snapshot.vocabulary, info.affinity
        snapshot.nodes.add_pod(row, info)
        kind = vocabulary.kinds.acquire(info.namespaced_labels)
        snapshot.pods.set_slot(slot, info, row, kind, vocabulary.affinities.acquire(terms) if terms is not None else -1)
        self._note(row, slot)

    def remove(self, task: Task, row: int) -> bool:
        """The task is off the row. False: it was not there."""
        uid = task.uid
        info = next((each for each in self.snapshot.nodes.pods[row] if each.uid == uid), None)
        if info is None:
            return False
        self.snapshot.nodes.remove_pod(row, info)
        slot = self._own.pop(uid, None)
        if slot is not None:
            self._give_back(slot)
            self._free.append(slot)
        else:
            slot = self._slot_of(uid)  # the cache goes on using what it stands for
            pods = self.snapshot.pods
            self._cleared[slot] = (info, row, int(pods.kinds[slot]), int(pods.affinities[slot]))
            pods.clear_slot(slot)
        self._note(row, slot)
        return True

    def restore(self) -> Iterator[None]:
        """Give back what was taken, a pod a turn; what is stale says in the end what must be copied anew."""
        for slot in self._own.values():
            self._give_back(slot)
            yield
        self._own.clear()
        for slot, pod in self._cleared.items():  # so that whoever refreshes learns what became of it meanwhile
            self.snapshot.pods.set_slot(slot, *pod)
        self._cleared.clear()

    def _note(self, row: int, slot: int) -> None:
        self.snapshot.touched.append(row)
        self.stale_rows.add(row)
        self.stale_slots.add(slot)

    def _give_back(self, slot: int) -> None:
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
    """The cluster of the moment, beside the one that a session works on: what commits are held against."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._stale_rows: set[int] = set()
        self._stale_slots: set[int] = set()

    def refresh(self, cache: Cache) -> Collection[int]:
        """Bring it up to the moment; the rows that have changed."""
        snapshot = self.snapshot
        cursor = snapshot.touched.end
        cache.refresh(snapshot, rows=self._stale_rows, slots=self._stale_slots)
        self._stale_rows.clear()
        self._stale_slots.clear()
        noted = snapshot.touched.since(cursor)
        return range(snapshot.nodes.count) if noted is None else noted

    @contextmanager
    def with_added(self, tasks: Sequence[Task]) -> Iterator[Iterator[tuple[Task, int]]]:
        """Each task with its row, and on it from then on, so that the next one sees it there; gone with the block."""
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
