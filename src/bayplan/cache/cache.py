"""The one mutable model of the cluster: nodes, pods on them, pods assumed to be on them, and everything else.

Both engines place pods here at once (`assume`), long before the API server knows; what the watch brings later
confirms, replaces or removes. A snapshot is brought up to date by copying the rows that changed since it was last:
cost is rows changed, not nodes. The state of a pod and its transitions are those of kube-scheduler's cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

import numpy as np

from bayplan.cache.images import ImageTable
from bayplan.cache.node_tree import NodeTree
from bayplan.cache.removed_pods import RemovedPods
from bayplan.devices import DeviceAssumptions
from bayplan.errors import CacheError
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.snapshot import Catalog, ImageState, InternTables, NodeColumns, PodInfo, Snapshot
from bayplan.snapshot.journal import ChangeJournal
from bayplan.snapshot.pod_info import has_same_row_amounts, has_same_scheduling_fields
from bayplan.snapshot.pods import NO_TERMS
from bayplan.volumes import VolumeAssumptions

PodSwap = tuple[PodInfo | None, PodInfo | None]
ImagesOfNode = Callable[[str], dict[str, ImageState]]

_MAX_ROWS_IN_PLACE = 4
_ROWS_PER_SLICE = 512
"""How many rows or pods are copied before others have a turn."""
_NO_ROW = -1
_NO_SLOT = -1


class _PodState:
    """A pod that the cache counts, and whether the API server has said so."""

    __slots__ = ("affinity", "assumed", "expires_s", "images", "info", "kind", "row", "slot")

    def __init__(self, info: PodInfo, assumed: bool) -> None:
        self.info = info
        self.assumed = assumed
        self.expires_s: float | None = None
        self.images = -1  # at which version of the images it came
        self.slot = _NO_SLOT  # none while its node is unknown; then what follows means nothing
        self.row = _NO_ROW
        self.kind = self.affinity = NO_TERMS


class _SnapshotProgress:
    """How far a snapshot has followed a cache."""

    __slots__ = ("__weakref__", "cache", "content", "images", "layout", "rows", "slots")

    def __init__(self, cache: Cache, images: int) -> None:
        self.cache = cache
        self.rows = self.slots = self.layout = -1
        self.images = images  # at which version of the images all rows were shown
        self.content: list[int] = []  # for each row of the snapshot, which content of the node it shows


class Cache:
    """The cluster as Bayplan believes it to be."""

    def __init__(self, *, assumed_ttl_s: float | None = None) -> None:
        self.vocabulary = InternTables()
        self.catalog = Catalog()
        self.volumes = VolumeAssumptions(self.catalog)
        self.devices = DeviceAssumptions()
        self._assumed_ttl_s = assumed_ttl_s
        self._nodes = NodeColumns(self.vocabulary)
        self._slots: list[_PodState | None] = []
        self._tree = NodeTree()
        self._images = ImageTable()
        self._states: dict[str, _PodState] = {}
        self.assumed_count = 0
        """Pods that the API server has not shown on their nodes yet."""
        self._strangers: dict[str, list[PodInfo]] = {}  # pods on nodes that are not known (yet, or any more)
        self._aside = RemovedPods()
        self._free_slots: list[int] = []
        self._row_journal = ChangeJournal()
        self._slot_journal = ChangeJournal()
        self._layout = 0
        self._content_clock = 0
        self._content: list[int] = []  # for each row, a number that changes with the node and the pods on it
        self._seen: weakref.WeakSet[_SnapshotProgress] = weakref.WeakSet()  # held by the snapshots that they are about

    # nodes ------------------------------------------------------------------------------------------------------

    def add_node(self, node: Node) -> None:
        """A node appeared, or is told again. Pods that were waiting for it are counted on it."""
        row = self._row(node.name)
        if row != _NO_ROW:
            self.update_node(node)
            return
        row = self._nodes.add_row(node)
        self._content.append(0)
        self._tree.add(node)
        self._images.add(node)
        self._layout += 1
        for info in self._strangers.pop(node.name, ()):
            self._nodes.add_pod(row, info)
            self._take_slot(self._states[info.uid], row)
        self._touch(row)

    def update_node(self, node: Node) -> None:
        row = self._row(node.name)
        if row == _NO_ROW:
            self.add_node(node)
            return
        old = self._nodes.nodes[row]
        self._images.remove(old)
        self._tree.update(old, node)
        self._images.add(node)
        self._nodes.set_node(row, node)
        self._touch(row)

    def remove_node(self, name: str) -> None:
        """The node is gone. Its pods stay known until they go too, or until the node comes back."""
        row = self._row(name)
        if row == _NO_ROW:
            raise CacheError(f'node "{name}" is not in the cache, so it cannot be removed')
        node = self._nodes.nodes[row]
        orphans = self._nodes.pods[row]
        for info in orphans:
            self._free_slot(self._states[info.uid])
        if orphans:
            self._strangers[name] = list(orphans)
        self._images.remove(node)
        self._tree.remove(node)
        moved = self._nodes.drop_row(row)
        self._content[row] = self._content[moved]
        self._content.pop()
        self._layout += 1
        if moved != row:
            self._row_journal.append(row)
            for info in self._nodes.pods[row]:
                state = self._states[info.uid]
                state.row = row
                self._slot_journal.append(state.slot)

    def node(self, name: str) -> Node | None:
        row = self._row(name)
        return None if row == _NO_ROW else self._nodes.nodes[row]

    def node_names(self) -> list[str]:
        """The nodes that there are, in the order of their rows."""
        return list(self._nodes.index)

    @property
    def node_count(self) -> int:
        return self._nodes.count

    # pods -------------------------------------------------------------------------------------------------------

    def assume(self, info: PodInfo) -> None:
        """Count a pod on its node before the API server knows."""
        if info.uid in self._states:
            raise CacheError(f"pod {info.key} ({info.uid}) is in the cache, so can't be assumed")
        self._count_pod(info, assumed=True)

    def finish_binding(self, uid: str, now_s: float) -> None:
        """The binding was written: from now on the assumption may expire, where a limit is set."""
        state = self._states.get(uid)
        if state is not None and state.assumed and self._assumed_ttl_s is not None:
            state.expires_s = now_s + self._assumed_ttl_s

    def expire(self, now_s: float) -> list[Pod]:
        """Forget assumed pods whose binding was written long ago and never seen. Returns them."""
        late = [
            state.info
            for state in self._states.values()
            if state.assumed and state.expires_s is not None and state.expires_s <= now_s
        ]
        for info in late:
            self._uncount_pod(info.uid)
        return [info.pod for info in late]

    def forget(self, pod: Pod) -> None:
        """Take an assumption back. One that is unknown is fine; one that was confirmed is not."""
        state = self._states.get(pod.uid)
        if state is None:
            return
        if not state.assumed:
            raise CacheError(f"pod {pod.key} ({pod.uid}) wasn't assumed so cannot be forgotten")
        if pod.spec.node_name and pod.spec.node_name != state.info.node_name:
            raise CacheError(
                f"pod {pod.key} ({pod.uid}) was assumed on {state.info.node_name} but assigned to {pod.spec.node_name}"
            )
        self._uncount_pod(pod.uid)

    def add_pod(self, pod: Pod) -> None:
        """The API server shows a pod on a node."""
        state = self._states.get(pod.uid)
        if state is not None and not state.assumed:
            raise CacheError(f"pod {pod.key} ({pod.uid}) was already in added state")
        if state is not None:
            if self._is_as_assumed(state, pod):
                state.info.pod, state.assumed, state.expires_s = pod, False, None
                self.assumed_count -= 1
                return
            if state.info.node_name == pod.spec.node_name:
                self._replace_pod(state, pod)
                return
            self._uncount_pod(pod.uid)
        self._count_pod(PodInfo(pod), assumed=False)

    def _is_as_assumed(self, state: _PodState, pod: Pod) -> bool:
        """Whether taking the assumption off and counting the pod would leave all as it is, the order of pods and what
        their node knows of images included: most confirmations are so, and then the next decision has nothing to read.
        """
        if state.slot == _NO_SLOT or state.images != self._images.version:
            return False
        return self._nodes.pods[state.row][-1] is state.info and has_same_scheduling_fields(state.info.pod, pod)

    def update_pod(self, pod: Pod) -> Pod | None:
        """The API server shows another version of a pod on its node. Returns the one before, if both
        `has_same_row_amounts`."""
        state = self._states.get(pod.uid)
        if state is None or state.assumed:
            raise CacheError(f"pod {pod.key} ({pod.uid}) is not added to the cache, so cannot be updated")
        if state.info.node_name != pod.spec.node_name:
            raise CacheError(
                f"pod {pod.key} ({pod.uid}) moved from {state.info.node_name} to {pod.spec.node_name}, "
                "which no API server allows: the cache can no longer be trusted, restart the scheduler"
            )
        before = state.info.pod
        return before if self._replace_pod(state, pod) else None

    def _replace_pod(self, state: _PodState, pod: Pod) -> bool:
        """Take a pod off and on again, as another version; most of them differ in nothing that columns show (true)."""
        known = state.info
        if state.slot == _NO_SLOT or not has_same_row_amounts(known.pod, pod):
            kinds = self.vocabulary.kinds
            kept = kinds.acquire(
                known.namespaced_labels
            )  # or a version of the same labels would be of another kind to snapshots
            self._uncount_pod(known.uid)
            self._count_pod(PodInfo(pod), assumed=False)
            kinds.release(kept)
            return False
        self._states[known.uid] = self._states.pop(known.uid)  # the last to come
        self.assumed_count -= state.assumed
        state.assumed, state.expires_s = False, None
        state.info = info = known.with_new_version(pod)
        state.images = self._images.version
        self._nodes.replace_pod(state.row, known, info)
        self._slot_journal.append(state.slot)
        self._touch(state.row)
        return True

    def remove_pod(self, pod: Pod) -> None:
        if pod.uid not in self._states:
            raise CacheError(f"pod {pod.key} ({pod.uid}) is not found in the cache, so cannot be removed from it")
        self._uncount_pod(pod.uid)

    def remove_temporarily(self, uids: Iterable[str]) -> None:
        """Count pods that are on a node on none for a while, to find out who would fit without them; all stay known."""
        for uid in uids:
            state = self._states.get(uid)
            if state is None or state.slot == _NO_SLOT:
                continue
            row = state.row
            self._aside.add(uid, state.info.node_name, self._nodes.pods[row])
            self._nodes.remove_pod(row, state.info)
            self._free_slot(state)
            self._touch(row)

    def restore_removed(self, uids: Iterable[str]) -> None:
        """Count pods again that were set aside; once all are back, in the order in which they were."""
        for uid in uids:
            if not self._aside.remove(uid):
                continue
            state = self._states[uid]
            row = self._row(state.info.node_name)
            if row == _NO_ROW:
                self._strangers.setdefault(state.info.node_name, []).append(state.info)
                continue
            self._nodes.add_pod(row, state.info)
            self._take_slot(state, row)
            self._touch(row)
        for name, order in self._aside.orders():
            row = self._row(name)
            if row != _NO_ROW:
                self._nodes.pods[row].sort(key=order)
                self._touch(row)

    def is_assumed(self, uid: str) -> bool:
        state = self._states.get(uid)
        return state is not None and state.assumed

    def is_confirmed(self, uid: str) -> bool:
        """Whether the API server has shown the pod on its node."""
        state = self._states.get(uid)
        return state is not None and not state.assumed

    def pod(self, uid: str) -> Pod | None:
        state = self._states.get(uid)
        return None if state is None else state.info.pod

    @property
    def pod_count(self) -> int:
        return len(self._states)

    def pods(self) -> Iterator[Pod]:
        return (state.info.pod for state in self._states.values())

    @property
    def generation(self) -> tuple[int, int]:
        """Changes whenever a node, or a pod on one, comes, goes or changes."""
        return self._content_clock, self._layout

    # everything else --------------------------------------------------------------------------------------------

    def upsert(self, item: KubeObject) -> None:
        """Any other object was added or changed."""
        self.catalog.upsert(item)
        if isinstance(item, ResourceClaim):
            self.devices.observe(item, revision=self.catalog.revision(ResourceClaim))
        self.volumes.observe(item)

    def delete(self, item: KubeObject) -> None:
        """Any other object was deleted."""
        self.catalog.delete(item)
        if isinstance(item, ResourceClaim):
            self.devices.delete(item.key, revision=self.catalog.revision(ResourceClaim))
        self.volumes.observe(item)

    # snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A new snapshot of now."""
        snapshot = Snapshot(self.vocabulary, self.catalog)
        self.refresh(snapshot)
        return snapshot

    def refresh(
        self,
        snapshot: Snapshot,
        *,
        rows: Iterable[int] = (),
        slots: Iterable[int] = (),
        changes: list[PodSwap] | None = None,
        images: ImagesOfNode | None = None,
    ) -> None:
        """Bring a snapshot up to date by copying what changed; `rows` and `slots`: what its owner changed in it.

        `changes` gets every pod that came, went or changed, as the snapshot had it and as it has it now. `images`: by
        the name of a node what its owner wants it to know of images, where that is not what the cache tells nodes.
        """
        seen = self._progress_of(snapshot)
        if not rows and not slots and changes is None and self._add_one_pod(snapshot, seen):
            return
        noted = self._row_journal.since(seen.rows) if seen.layout == self._layout else None
        if noted is not None and rows:
            noted.update(rows)
        if noted is not None and len(noted) <= _MAX_ROWS_IN_PLACE:
            self._refresh_in_place(snapshot, seen, noted, images or self._images.images_of)
        else:
            self._refresh_rows(snapshot, seen, rows, images)
        self._refresh_pods(snapshot, seen, slots, changes)
        if seen.layout != self._layout:
            index = self._nodes.index
            snapshot.order = np.fromiter((index[name] for name in self._tree.names()), np.intp, self._nodes.count)
            snapshot.layout = seen.layout = self._layout
        snapshot.generation = self._content_clock
        if self.vocabulary.has_released and all(self._is_up_to_date(other) for other in self._seen):
            self.vocabulary.reuse_released_ids()

    def refresh_in_slices(
        self,
        snapshot: Snapshot,
        *,
        rows: Iterable[int] = (),
        slots: Iterable[int] = (),
        changes: list[PodSwap] | None = None,
        images: ImagesOfNode | None = None,
        at_once: int = _ROWS_PER_SLICE,
    ) -> Generator[None, None, bool]:
        """Bring a snapshot that is far behind nearly up to date, in slices of so many rows or pods.

        A large cluster at once would hold everybody else for a second. The cache may change between two slices; that
        is left for the next `refresh`, before which nobody may read the snapshot. False in the end: nodes came or went
        meanwhile, and that `refresh` needs the same `rows` and `slots`.
        """
        seen, layout, came = self._progress_of(snapshot), self._layout, self._row_journal.end
        behind = self._stale_rows(snapshot, seen, rows, images)
        rows = list(behind)
        for start in range(0, len(rows), at_once):
            self._copy_rows(snapshot, seen, {row: behind[row] for row in rows[start : start + at_once]})
            yield
            if self._layout != layout:
                return False  # rows have moved: whatever was copied may be another node's by now
        seen.rows = came
        came = self._slot_journal.end
        slots = list(self._stale_slots(snapshot, seen, slots))
        for start in range(0, len(slots), at_once):
            self._copy_slots(snapshot, slots[start : start + at_once], changes)
            yield
        seen.slots = came
        return True

    def _progress_of(self, snapshot: Snapshot) -> _SnapshotProgress:
        seen = snapshot.follower
        if not isinstance(seen, _SnapshotProgress) or seen.cache is not self:
            seen = snapshot.follower = _SnapshotProgress(self, -1 if len(snapshot) else self._images.version)
            self._seen.add(seen)
        return seen

    def _add_one_pod(self, snapshot: Snapshot, seen: _SnapshotProgress) -> bool:
        """The usual case, by the shortest way: since last time one pod came, and nothing else happened."""
        row, slot = self._row_journal.single_since(seen.rows), self._slot_journal.single_since(seen.slots)
        if row < 0 or slot < 0 or seen.layout != self._layout or self.vocabulary.has_released:
            return False
        mine, theirs, state = self._nodes, snapshot.nodes, self._slots[slot]
        if state is None or theirs.nodes[row] is not mine.nodes[row] or snapshot.pods.holds(slot):
            return False
        if seen.content[row] == self._content[row]:
            return False  # a slice of `refresh_in_slices` has shown the row, and its pods were to follow
        snapshot.touched.append(row)
        theirs.set_pod(row, state.info)  # what the cache did to its own columns, on equal ones
        if seen.images != self._images.version:
            theirs.set_images(row, self._images.images_of(mine.names[row]))
        snapshot.pods.set_slot(slot, state.info, row, state.kind, state.affinity)
        seen.content[row] = self._content[row]
        seen.rows += 1
        seen.slots += 1
        snapshot.generation = self._content_clock
        return True

    def _is_up_to_date(self, seen: _SnapshotProgress) -> bool:
        """Whether a snapshot can hold no id that was given back, neither in its rows nor in its slots."""
        journals = (self._row_journal.end, self._slot_journal.end, self._layout)  # a row that goes is in no journal
        return (seen.rows, seen.slots, seen.layout) == journals

    def _refresh_in_place(
        self, snapshot: Snapshot, seen: _SnapshotProgress, rows: Iterable[int], images_of: ImagesOfNode
    ) -> None:
        """Copy a few rows that are where they were: most of the time pods came or went, and that is all."""
        mine, theirs = self._nodes, snapshot.nodes
        for row in rows:
            snapshot.touched.append(row)
            images = images_of(mine.names[row])
            if theirs.nodes[row] is mine.nodes[row]:
                theirs.copy_pods(mine, row)
                theirs.set_images(row, images)
            else:
                snapshot.renewed.append(row)
                theirs.copy_rows(mine, {row: images})
            seen.content[row] = self._content[row]
        seen.rows = self._row_journal.end

    def _refresh_rows(
        self, snapshot: Snapshot, seen: _SnapshotProgress, stale: Iterable[int], images_of: ImagesOfNode | None
    ) -> None:
        self._copy_rows(snapshot, seen, self._stale_rows(snapshot, seen, stale, images_of))
        if seen.layout != self._layout:
            snapshot.nodes.labels.forget_stale_values(self._nodes.count)
        seen.rows = self._row_journal.end

    def _stale_rows(
        self, snapshot: Snapshot, seen: _SnapshotProgress, stale: Iterable[int], images_of: ImagesOfNode | None
    ) -> dict[int, dict[str, ImageState]]:
        """The rows to be copied, each with the images that it is to show; rows that are no more are cut off."""
        count = self._nodes.count
        noted = self._row_journal.since(seen.rows) if seen.rows >= 0 else None
        rows: Iterable[int] = range(count)
        if noted is not None:
            noted.update(stale)
            rows = sorted(row for row in noted if row < count)
        # Images are looked up before anything moves: a node that merely changed rows keeps the counts it had.
        if images_of is None:
            images = {row: self._images_for(snapshot, seen.content, row) for row in rows}
        else:
            images = {row: images_of(self._nodes.names[row]) for row in rows}
        snapshot.nodes.truncate(count)
        del seen.content[count:]
        return images

    def _copy_rows(
        self, snapshot: Snapshot, seen: _SnapshotProgress, images: Mapping[int, dict[str, ImageState]]
    ) -> None:
        shown, known = snapshot.nodes.nodes, snapshot.nodes.count
        for row in images:
            snapshot.touched.append(row)
            if row >= known or shown[row] is not self._nodes.nodes[row]:
                snapshot.renewed.append(row)
            if row == len(seen.content):
                seen.content.append(0)
            seen.content[row] = self._content[row]
        snapshot.nodes.copy_rows(self._nodes, images)

    def _images_for(self, snapshot: Snapshot, content: list[int], row: int) -> dict[str, ImageState]:
        name = self._nodes.names[row]
        old = snapshot.nodes.index.get(name)
        if old is not None and content[old] == self._content[row]:
            return snapshot.nodes.images[old]
        return self._images.images_of(name)

    def _refresh_pods(
        self, snapshot: Snapshot, seen: _SnapshotProgress, stale: Iterable[int], changes: list[PodSwap] | None
    ) -> None:
        self._copy_slots(snapshot, self._stale_slots(snapshot, seen, stale), changes)
        seen.slots = self._slot_journal.end

    def _copy_slots(self, snapshot: Snapshot, slots: Iterable[int], changes: list[PodSwap] | None) -> None:
        theirs = snapshot.pods
        for slot in slots:
            before = theirs.infos[slot] if slot < theirs.slots else None
            after = self._copy_slot(snapshot, slot)
            if changes is not None and before is not after:
                changes.append((before, after))

    def _stale_slots(self, snapshot: Snapshot, seen: _SnapshotProgress, stale: Iterable[int]) -> Iterable[int]:
        noted = self._slot_journal.since(seen.slots) if seen.slots >= 0 else None
        if noted is None:
            return range(max(len(self._slots), snapshot.pods.slots))
        noted.update(stale)
        return noted

    def _copy_slot(self, snapshot: Snapshot, slot: int) -> PodInfo | None:
        """Who is in it now."""
        state = self._slots[slot] if slot < len(self._slots) else None
        if state is None:
            snapshot.pods.clear_slot(slot)
            return None
        snapshot.pods.copy_slot(slot, state.info, state.row, state.kind, state.affinity)
        return state.info

    # inside -----------------------------------------------------------------------------------------------------

    def _row(self, name: str) -> int:
        return self._nodes.index.get(name, _NO_ROW)

    def _count_pod(self, info: PodInfo, *, assumed: bool) -> None:
        if not info.uid:
            raise CacheError(f"pod {info.key} has no uid; the API server gives every pod one")
        node_name = info.node_name
        if not node_name:
            raise CacheError(f"pod {info.key} is on no node, so it cannot be counted")
        state = self._states[info.uid] = _PodState(info, assumed)
        self.assumed_count += assumed
        row = self._nodes.index.get(node_name, _NO_ROW)
        if row == _NO_ROW:
            self._strangers.setdefault(node_name, []).append(info)
            return
        self._nodes.add_pod(row, info)
        self._take_slot(state, row)
        self._touch(row)

    def _uncount_pod(self, uid: str) -> None:
        state = self._states.pop(uid)
        self.assumed_count -= state.assumed
        if self._aside.remove(uid):
            return
        info = state.info
        row = self._row(info.node_name)
        if row == _NO_ROW:
            self._forget_pod_without_node(info)
            return
        self._nodes.remove_pod(row, info)
        self._free_slot(state)
        self._touch(row)

    def _forget_pod_without_node(self, info: PodInfo) -> None:
        strangers = self._strangers[info.node_name]
        position = next(i for i, other in enumerate(strangers) if other.uid == info.uid)
        strangers[position] = strangers[-1]
        strangers.pop()
        if not strangers:
            del self._strangers[info.node_name]

    def _take_slot(self, state: _PodState, row: int) -> None:
        info = state.info
        state.row = row
        state.images = self._images.version
        state.kind = self.vocabulary.kinds.acquire(info.namespaced_labels)
        terms, _ = info.affinity, info.claim_keys  # worked out where a pod comes, not in every snapshot that shows it
        state.affinity = self.vocabulary.affinities.acquire(terms) if terms is not None else NO_TERMS
        if self._free_slots:
            state.slot = slot = self._free_slots.pop()
            self._slots[slot] = state
        else:
            state.slot = slot = len(self._slots)
            self._slots.append(state)
        self._slot_journal.append(slot)

    def _free_slot(self, state: _PodState) -> None:
        slot = state.slot
        self.vocabulary.kinds.release(state.kind)
        if state.affinity != NO_TERMS:
            self.vocabulary.affinities.release(state.affinity)
        self._slots[slot] = None
        self._free_slots.append(slot)
        state.slot = _NO_SLOT
        self._slot_journal.append(slot)

    def _touch(self, row: int) -> None:
        self._content_clock += 1
        self._content[row] = self._content_clock
        self._row_journal.append(row)
