"""Cache: the mutable model of the cluster with nodes, their pods, assumed pods and all other objects.

Both engines place pods here immediately (`assume`), before the API server knows. Later watch events confirm, replace or
remove them. A snapshot is updated by copying the rows that changed since its last update: the cost depends on the
changed rows, not on the nodes. The states of a pod and their transitions are those of kube-scheduler's cache.
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
"""Number of rows or pods that are copied in one slice."""
_NO_ROW = -1
_NO_SLOT = -1


class _PodState:
    """A pod in the cache, and whether the API server has confirmed it."""

    __slots__ = ("affinity", "assumed", "images", "info", "kind", "row", "slot")

    def __init__(self, info: PodInfo, assumed: bool) -> None:
        self.info = info
        self.assumed = assumed
        self.images = -1  # version of the images when the pod was added
        self.slot = _NO_SLOT  # none while the node is unknown; then the fields below are invalid
        self.row = _NO_ROW
        self.kind = self.affinity = NO_TERMS


class _SnapshotProgress:
    __slots__ = ("__weakref__", "cache", "content", "images", "layout", "rows", "slots")

    def __init__(self, cache: Cache, images: int) -> None:
        self.cache = cache
        self.rows = self.slots = self.layout = -1
        self.images = images  # version of the images that all rows show
        self.content: list[int] = []  # for each row of the snapshot, the content number that it shows


class Cache:
    """The cluster state that the scheduler assumes."""

    def __init__(self) -> None:
        self.vocabulary = InternTables()
        self.catalog = Catalog()
        self.volumes = VolumeAssumptions(self.catalog)
        self.devices = DeviceAssumptions()
        self._nodes = NodeColumns(self.vocabulary)
        self._slots: list[_PodState | None] = []
        self._tree = NodeTree()
        self._images = ImageTable()
        self._states: dict[str, _PodState] = {}
        self.assumed_count = 0
        """Number of pods that the API server has not yet shown on their nodes."""
        self._pods_without_node: dict[str, list[PodInfo]] = {}  # pods on unknown nodes: not yet added, or removed
        self._removed_pods = RemovedPods()
        self._free_slots: list[int] = []
        self._row_journal = ChangeJournal()
        self._slot_journal = ChangeJournal()
        self._layout = 0
        self._content_clock = 0
        self._content: list[int] = []  # for each row, a number that changes with the node and its pods
        self._progress: weakref.WeakSet[_SnapshotProgress] = weakref.WeakSet()  # owned by their snapshots

    def add_node(self, node: Node) -> None:
        """Add a node, or update a known one. Pods that were assigned to it before are added to it."""
        row = self._row(node.name)
        if row != _NO_ROW:
            self.update_node(node)
            return
        row = self._nodes.add_row(node)
        self._content.append(0)
        self._tree.add(node)
        self._images.add(node)
        self._layout += 1
        for info in self._pods_without_node.pop(node.name, ()):
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
        """Remove a node. Its pods stay known until they are removed, or until the node returns."""
        row = self._row(name)
        if row == _NO_ROW:
            raise CacheError(f'node "{name}" is not in the cache, so it cannot be removed')
        node = self._nodes.nodes[row]
        orphans = self._nodes.pods[row]
        for info in orphans:
            self._free_slot(self._states[info.uid])
        if orphans:
            self._pods_without_node[name] = list(orphans)
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
        """Return the names of all nodes in row order."""
        return list(self._nodes.index)

    @property
    def node_count(self) -> int:
        return self._nodes.count

    def assume(self, info: PodInfo) -> None:
        """Add a pod to its node before the API server knows about the binding."""
        if info.uid in self._states:
            raise CacheError(f"pod {info.key} ({info.uid}) is in the cache, so can't be assumed")
        self._count_pod(info, assumed=True)

    def forget(self, pod: Pod) -> None:
        """Remove an assumed pod. An unknown pod is ignored; a confirmed pod is an error."""
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
        """Add a pod that the API server shows on a node."""
        state = self._states.get(pod.uid)
        if state is not None and not state.assumed:
            raise CacheError(f"pod {pod.key} ({pod.uid}) was already in added state")
        if state is not None:
            if self._matches_assumption(state, pod):
                state.info.pod, state.assumed = pod, False
                self.assumed_count -= 1
                return
            if state.info.node_name == pod.spec.node_name:
                self._replace_pod(state, pod)
                return
            self._uncount_pod(pod.uid)
        self._count_pod(PodInfo(pod), assumed=False)

    def _matches_assumption(self, state: _PodState, pod: Pod) -> bool:
        """Whether a confirmation changes nothing, neither the order of pods nor the images that the node shows.

        This is the usual case, and the next decision then has nothing to update.
        """
        if state.slot == _NO_SLOT or state.images != self._images.version:
            return False
        return self._nodes.pods[state.row][-1] is state.info and has_same_scheduling_fields(state.info.pod, pod)

    def update_pod(self, pod: Pod) -> Pod | None:
        """Update a pod on its node. Returns the previous version if both `has_same_row_amounts`."""
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
        """Replace a pod by another version. Returns whether both have the same amounts, the usual case."""
        old_info = state.info
        if state.slot == _NO_SLOT or not has_same_row_amounts(old_info.pod, pod):
            kinds = self.vocabulary.kinds
            # keeps the kind alive, so that the new version gets the same kind id
            kind_id = kinds.acquire(old_info.namespaced_labels)
            self._uncount_pod(old_info.uid)
            self._count_pod(PodInfo(pod), assumed=False)
            kinds.release(kind_id)
            return False
        self._states[old_info.uid] = self._states.pop(old_info.uid)  # moves to the end
        self.assumed_count -= state.assumed
        state.assumed = False
        state.info = info = old_info.with_new_version(pod)
        state.images = self._images.version
        self._nodes.replace_pod(state.row, old_info, info)
        self._slot_journal.append(state.slot)
        self._touch(state.row)
        return True

    def remove_pod(self, pod: Pod) -> None:
        if pod.uid not in self._states:
            raise CacheError(f"pod {pod.key} ({pod.uid}) is not found in the cache, so cannot be removed from it")
        self._uncount_pod(pod.uid)

    def remove_temporarily(self, uids: Iterable[str]) -> None:
        """Remove pods from their nodes temporarily, to find out what fits without them. They stay known."""
        for uid in uids:
            state = self._states.get(uid)
            if state is None or state.slot == _NO_SLOT:
                continue
            row = state.row
            self._removed_pods.add(uid, state.info.node_name, self._nodes.pods[row])
            self._nodes.remove_pod(row, state.info)
            self._free_slot(state)
            self._touch(row)

    def restore_removed(self, uids: Iterable[str]) -> None:
        """Restore temporarily removed pods. With the last one the former order of pods is restored."""
        for uid in uids:
            if not self._removed_pods.remove(uid):
                continue
            state = self._states[uid]
            row = self._row(state.info.node_name)
            if row == _NO_ROW:
                self._pods_without_node.setdefault(state.info.node_name, []).append(state.info)
                continue
            self._nodes.add_pod(row, state.info)
            self._take_slot(state, row)
            self._touch(row)
        for name, order in self._removed_pods.orders():
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
        """Changes with every change of a node or of a pod on a node."""
        return self._content_clock, self._layout

    def upsert(self, item: KubeObject) -> None:
        """Add or update an object of any kind as the API server shows it. Pods without a node are ignored."""
        if isinstance(item, Node):
            self.add_node(item)
        elif not isinstance(item, Pod):
            self.catalog.upsert(item)
            if isinstance(item, ResourceClaim):
                self.devices.observe(item, revision=self.catalog.revision(ResourceClaim))
            self.volumes.observe(item)
        elif item.spec.node_name:
            if self.is_confirmed(item.uid):
                self.update_pod(item)
            else:
                self.add_pod(item)

    def delete(self, item: KubeObject) -> None:
        """Delete an object of any kind, if it is known."""
        if isinstance(item, Node):
            if self._row(item.name) != _NO_ROW:
                self.remove_node(item.name)
        elif not isinstance(item, Pod):
            self.catalog.delete(item)
            if isinstance(item, ResourceClaim):
                self.devices.delete(item.key, revision=self.catalog.revision(ResourceClaim))
            self.volumes.observe(item)
        elif item.uid in self._states:
            self.remove_pod(item)

    def snapshot(self) -> Snapshot:
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
        """Update a snapshot by copying what changed. `rows` and `slots`: changes that its owner made in it.

        Every added, removed or changed pod is appended to `changes`, with its previous and its new version. `images`:
        returns the images of a node that the snapshot shows, instead of those of the cache.
        """
        progress = self._snapshot_progress(snapshot)
        if not rows and not slots and changes is None and self._add_one_pod(snapshot, progress):
            return
        changed_rows = self._row_journal.since(progress.rows) if progress.layout == self._layout else None
        if changed_rows is not None and rows:
            changed_rows.update(rows)
        if changed_rows is not None and len(changed_rows) <= _MAX_ROWS_IN_PLACE:
            self._refresh_in_place(snapshot, progress, changed_rows, images or self._images.images_of)
        else:
            self._refresh_rows(snapshot, progress, rows, images)
        self._refresh_pods(snapshot, progress, slots, changes)
        if progress.layout != self._layout:
            index = self._nodes.index
            snapshot.order = np.fromiter((index[name] for name in self._tree.names()), np.intp, self._nodes.count)
            snapshot.layout = progress.layout = self._layout
        snapshot.generation = self._content_clock
        if self.vocabulary.has_released and all(self._is_up_to_date(each) for each in self._progress):
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
        """Update a snapshot that is far behind almost completely, in slices of this many rows or pods.

        A single update of a large cluster would block the event loop for a second. The cache may change between two
        slices; the next `refresh` copies these changes, and the snapshot must not be read before. The generator returns
        False if nodes were added or removed meanwhile; that `refresh` then needs the same `rows` and `slots`.
        """
        progress, layout, journal_end = self._snapshot_progress(snapshot), self._layout, self._row_journal.end
        images_by_row = self._stale_rows(snapshot, progress, rows, images)
        rows = list(images_by_row)
        for start in range(0, len(rows), at_once):
            self._copy_rows(snapshot, progress, {row: images_by_row[row] for row in rows[start : start + at_once]})
            yield
            if self._layout != layout:
                return False  # rows have moved: a copied row may belong to another node now
        progress.rows = journal_end
        journal_end = self._slot_journal.end
        slots = list(self._stale_slots(snapshot, progress, slots))
        for start in range(0, len(slots), at_once):
            self._copy_slots(snapshot, slots[start : start + at_once], changes)
            yield
        progress.slots = journal_end
        return True

    def _snapshot_progress(self, snapshot: Snapshot) -> _SnapshotProgress:
        progress = snapshot.cache_progress
        if not isinstance(progress, _SnapshotProgress) or progress.cache is not self:
            progress = snapshot.cache_progress = _SnapshotProgress(self, -1 if len(snapshot) else self._images.version)
            self._progress.add(progress)
        return progress

    def _add_one_pod(self, snapshot: Snapshot, progress: _SnapshotProgress) -> bool:
        """Fast path of the usual case: since the last update one pod was added and nothing else changed."""
        row, slot = self._row_journal.single_since(progress.rows), self._slot_journal.single_since(progress.slots)
        if row < 0 or slot < 0 or progress.layout != self._layout or self.vocabulary.has_released:
            return False
        own, copies, state = self._nodes, snapshot.nodes, self._slots[slot]
        if state is None or copies.nodes[row] is not own.nodes[row] or snapshot.pods.holds(slot):
            return False
        if progress.content[row] == self._content[row]:
            return False  # `refresh_in_slices` has copied the row but not yet its pods
        snapshot.touched.append(row)
        copies.set_pod(row, state.info)  # the change that the cache made in its own columns
        if progress.images != self._images.version:
            copies.set_images(row, self._images.images_of(own.names[row]))
        snapshot.pods.set_slot(slot, state.info, row, state.kind, state.affinity)
        progress.content[row] = self._content[row]
        progress.rows += 1
        progress.slots += 1
        snapshot.generation = self._content_clock
        return True

    def _is_up_to_date(self, progress: _SnapshotProgress) -> bool:
        """Whether the snapshot contains no released id, neither in its rows nor in its slots."""
        # the journals do not contain removed rows
        journals = (self._row_journal.end, self._slot_journal.end, self._layout)
        return (progress.rows, progress.slots, progress.layout) == journals

    def _refresh_in_place(
        self, snapshot: Snapshot, progress: _SnapshotProgress, rows: Iterable[int], images_of: ImagesOfNode
    ) -> None:
        """Copy a few rows that have not moved. Usually only their pods changed."""
        own, copies = self._nodes, snapshot.nodes
        for row in rows:
            snapshot.touched.append(row)
            images = images_of(own.names[row])
            if copies.nodes[row] is own.nodes[row]:
                copies.copy_pods(own, row)
                copies.set_images(row, images)
            else:
                snapshot.renewed.append(row)
                copies.copy_rows(own, {row: images})
            progress.content[row] = self._content[row]
        progress.rows = self._row_journal.end

    def _refresh_rows(
        self, snapshot: Snapshot, progress: _SnapshotProgress, extra: Iterable[int], images_of: ImagesOfNode | None
    ) -> None:
        self._copy_rows(snapshot, progress, self._stale_rows(snapshot, progress, extra, images_of))
        if progress.layout != self._layout:
            snapshot.nodes.labels.forget_stale_values(self._nodes.count)
        progress.rows = self._row_journal.end

    def _stale_rows(
        self, snapshot: Snapshot, progress: _SnapshotProgress, extra: Iterable[int], images_of: ImagesOfNode | None
    ) -> dict[int, dict[str, ImageState]]:
        """Return the rows to copy with the images that they show, and drop rows that no longer exist."""
        count = self._nodes.count
        changed_rows = self._row_journal.since(progress.rows) if progress.rows >= 0 else None
        rows: Iterable[int] = range(count)
        if changed_rows is not None:
            changed_rows.update(extra)
            rows = sorted(row for row in changed_rows if row < count)
        # Images are read before rows move: a node that only moved keeps its counts.
        if images_of is None:
            images = {row: self._images_for(snapshot, progress.content, row) for row in rows}
        else:
            images = {row: images_of(self._nodes.names[row]) for row in rows}
        snapshot.nodes.truncate(count)
        del progress.content[count:]
        return images

    def _copy_rows(
        self, snapshot: Snapshot, progress: _SnapshotProgress, images: Mapping[int, dict[str, ImageState]]
    ) -> None:
        shown_nodes, shown_count = snapshot.nodes.nodes, snapshot.nodes.count
        for row in images:
            snapshot.touched.append(row)
            if row >= shown_count or shown_nodes[row] is not self._nodes.nodes[row]:
                snapshot.renewed.append(row)
            if row == len(progress.content):
                progress.content.append(0)
            progress.content[row] = self._content[row]
        snapshot.nodes.copy_rows(self._nodes, images)

    def _images_for(self, snapshot: Snapshot, content: list[int], row: int) -> dict[str, ImageState]:
        name = self._nodes.names[row]
        old = snapshot.nodes.index.get(name)
        if old is not None and content[old] == self._content[row]:
            return snapshot.nodes.images[old]
        return self._images.images_of(name)

    def _refresh_pods(
        self, snapshot: Snapshot, progress: _SnapshotProgress, extra: Iterable[int], changes: list[PodSwap] | None
    ) -> None:
        self._copy_slots(snapshot, self._stale_slots(snapshot, progress, extra), changes)
        progress.slots = self._slot_journal.end

    def _copy_slots(self, snapshot: Snapshot, slots: Iterable[int], changes: list[PodSwap] | None) -> None:
        columns = snapshot.pods
        for slot in slots:
            before = columns.infos[slot] if slot < columns.slots else None
            after = self._copy_slot(snapshot, slot)
            if changes is not None and before is not after:
                changes.append((before, after))

    def _stale_slots(self, snapshot: Snapshot, progress: _SnapshotProgress, extra: Iterable[int]) -> Iterable[int]:
        changed_slots = self._slot_journal.since(progress.slots) if progress.slots >= 0 else None
        if changed_slots is None:
            return range(max(len(self._slots), snapshot.pods.slots))
        changed_slots.update(extra)
        return changed_slots

    def _copy_slot(self, snapshot: Snapshot, slot: int) -> PodInfo | None:
        state = self._slots[slot] if slot < len(self._slots) else None
        if state is None:
            snapshot.pods.clear_slot(slot)
            return None
        snapshot.pods.copy_slot(slot, state.info, state.row, state.kind, state.affinity)
        return state.info

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
            self._pods_without_node.setdefault(node_name, []).append(info)
            return
        self._nodes.add_pod(row, info)
        self._take_slot(state, row)
        self._touch(row)

    def _uncount_pod(self, uid: str) -> None:
        state = self._states.pop(uid)
        self.assumed_count -= state.assumed
        if self._removed_pods.remove(uid):
            return
        info = state.info
        row = self._row(info.node_name)
        if row == _NO_ROW:
            self._remove_pod_without_node(info)
            return
        self._nodes.remove_pod(row, info)
        self._free_slot(state)
        self._touch(row)

    def _remove_pod_without_node(self, info: PodInfo) -> None:
        pods = self._pods_without_node[info.node_name]
        position = next(i for i, each in enumerate(pods) if each.uid == info.uid)
        pods[position] = pods[-1]
        pods.pop()
        if not pods:
            del self._pods_without_node[info.node_name]

    def _take_slot(self, state: _PodState, row: int) -> None:
        info = state.info
        state.row = row
        state.images = self._images.version
        state.kind = self.vocabulary.kinds.acquire(info.namespaced_labels)
        terms, _ = info.affinity, info.claim_keys  # computed once when the pod is added, not for every snapshot
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
