"""How many volumes could each row have attached at most, and how many can it attach?

Kept for NodeVolumeLimits, so that it counts the volumes of a node exactly only where the limit is near. Follows one
snapshot: a row is looked at again when its list of pods has changed, limits and attachments when an object of their
kind has. Cost: a comparison a row when some row changed, and the volumes of the changed rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bayplan.objects.storage import CsiNode, VolumeAttachment
from bayplan.snapshot import BoolVector, IntVector, NodeColumns, PodInfo, Snapshot
from bayplan.volumes.limits import AttachableVolume, attach_limits, attachable_volumes, attachments_by_node
from bayplan.volumes.lookup import RevisionCache, VolumeLookup

UNLIMITED = np.iinfo(np.int64).max


class AttachBounds:
    """Bounds on what is attached to each row of the snapshot that was followed last."""

    def __init__(self, lookup: VolumeLookup) -> None:
        self._lookup = lookup
        self.limits = RevisionCache(lookup, CsiNode, _limits_by_node)
        self.attachments = RevisionCache(lookup, VolumeAttachment, attachments_by_node)
        self._columns: NodeColumns | None = None
        self._seen: tuple[object, ...] = ()
        self._generation = -1
        self._pods: list[list[PodInfo]] = []
        self._volumes: list[tuple[AttachableVolume, ...]] = []
        self._at_most = np.zeros(0, dtype=np.int64)
        self._may_break = np.zeros(0, dtype=np.bool_)
        self._tightest: dict[str, IntVector] = {}
        self.with_csi_node = np.zeros(0, dtype=np.bool_)
        self._limited = np.zeros(0, dtype=np.bool_)
        self._attached = np.zeros(0, dtype=np.int64)

    def update(self, snapshot: Snapshot) -> None:
        """Bring the columns up to date. All of them have one entry a row of the snapshot."""
        columns = snapshot.nodes
        if columns is not self._columns:
            self._columns, self._pods, self._seen, self._generation = columns, [], (), -1
        if snapshot.generation != self._generation or len(self._pods) != columns.count:
            self._follow_pods(columns)
            self._generation = snapshot.generation
        seen = (snapshot.layout, columns.count, *(self._lookup.revision(kind) for kind in (CsiNode, VolumeAttachment)))
        if seen != self._seen:
            self._follow_objects(columns)
            self._seen = seen

    def volumes(self, row: int) -> tuple[AttachableVolume, ...]:
        """The volumes of the pods on a row that may be attached."""
        return self._volumes[row]

    def needs_counting(self, new: Iterable[str], count: int) -> BoolVector:
        """Rows where `count` more volumes of these drivers could be too many, or where counting could fail."""
        tightest = np.full(len(self._pods), UNLIMITED, dtype=np.int64)
        for driver in new:
            tightest = np.minimum(tightest, self._limit_of(driver))
        near: BoolVector = self._at_most + self._attached + count > tightest
        return self._limited & (near | self._may_break)

    def _follow_pods(self, columns: NodeColumns) -> None:
        """An entry changes when the list of pods is another one: snapshots replace lists, they do not change them."""
        before = len(self._pods)
        pods = columns.pods
        changed = [row for row, (old, new) in enumerate(zip(self._pods, pods, strict=False)) if old is not new]
        changed += range(before, columns.count)
        self._pods = list(pods)
        del self._volumes[columns.count :]
        self._volumes += [()] * (columns.count - len(self._volumes))
        self._at_most = np.resize(self._at_most, columns.count) if before else np.zeros(columns.count, dtype=np.int64)
        self._may_break = np.resize(self._may_break, columns.count) if before else np.zeros(columns.count, np.bool_)
        for row in changed:
            volumes = self._volumes[row] = tuple(attachable_volumes(info.pod for info in pods[row]))
            self._at_most[row] = len(volumes)
            self._may_break[row] = any(volume.may_raise for volume in volumes)

    def _follow_objects(self, columns: NodeColumns) -> None:
        limits, count = self.limits.get(), columns.count
        self.with_csi_node = np.fromiter((name in limits for name in columns.names), np.bool_, count)
        self._limited = np.fromiter((bool(limits.get(name)) for name in columns.names), np.bool_, count)
        self._attached = np.zeros(count, dtype=np.int64)
        for name, attachments in self.attachments.get().items():
            row = columns.index.get(name)
            if row is not None:
                self._attached[row] = len(attachments)
        self._tightest.clear()

    def _limit_of(self, driver: str) -> IntVector:
        column = self._tightest.get(driver)
        if column is None:
            assert self._columns is not None
            limits = self.limits.get()
            answers = (limits.get(name, {}).get(driver, UNLIMITED) for name in self._columns.names)
            column = self._tightest[driver] = np.fromiter(answers, np.int64, self._columns.count)
        return column


def _limits_by_node(lookup: VolumeLookup) -> dict[str, dict[str, int]]:
    return {name: attach_limits(csi_node) for name, csi_node in lookup.csi_nodes.items()}
