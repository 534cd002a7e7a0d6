"""Upper bounds of the attached volumes of each row, and the attach limits.

NodeVolumeLimits counts the volumes of a node exactly only near the limit. Follows one snapshot: a row is updated when
its list of pods changed, limits and attachments when an object of their kind changed. Cost: one comparison for each row
if any row changed, plus the volumes of the changed rows.
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
    """Upper bounds of the attached volumes for each row of the current snapshot."""

    def __init__(self, lookup: VolumeLookup) -> None:
        self._lookup = lookup
        self.limits = RevisionCache(lookup, CsiNode, _limits_by_node)
        self.attachments = RevisionCache(lookup, VolumeAttachment, attachments_by_node)
        self._columns: NodeColumns | None = None
        self._revisions: tuple[object, ...] = ()
        self._generation = -1
        self._pods: list[list[PodInfo]] = []
        self._volumes: list[tuple[AttachableVolume, ...]] = []
        self._max_volumes = np.zeros(0, dtype=np.int64)
        self._may_fail = np.zeros(0, dtype=np.bool_)
        self._limits_by_driver: dict[str, IntVector] = {}
        self.with_csi_node = np.zeros(0, dtype=np.bool_)
        self._limited = np.zeros(0, dtype=np.bool_)
        self._attached = np.zeros(0, dtype=np.int64)

    def update(self, snapshot: Snapshot) -> None:
        """Update the columns. Each has one entry for each row of the snapshot."""
        columns = snapshot.nodes
        if columns is not self._columns:
            self._columns, self._pods, self._revisions, self._generation = columns, [], (), -1
        if snapshot.generation != self._generation or len(self._pods) != columns.count:
            self._follow_pods(columns)
            self._generation = snapshot.generation
        revisions = (
            snapshot.layout,
            columns.count,
            *(self._lookup.revision(kind) for kind in (CsiNode, VolumeAttachment)),
        )
        if revisions != self._revisions:
            self._follow_objects(columns)
            self._revisions = revisions

    def volumes(self, row: int) -> tuple[AttachableVolume, ...]:
        return self._volumes[row]

    def needs_counting(self, drivers: Iterable[str], count: int) -> BoolVector:
        """Return the rows where `count` more volumes may exceed a limit of a driver, or where counting may fail."""
        tightest = np.full(len(self._pods), UNLIMITED, dtype=np.int64)
        for driver in drivers:
            tightest = np.minimum(tightest, self._limits(driver))
        exceeds: BoolVector = self._max_volumes + self._attached + count > tightest
        return self._limited & (exceeds | self._may_fail)

    def _follow_pods(self, columns: NodeColumns) -> None:
        """Update the rows whose list of pods is another object: snapshots replace lists and do not modify them."""
        before = len(self._pods)
        pods = columns.pods
        changed = [row for row, (old, new) in enumerate(zip(self._pods, pods, strict=False)) if old is not new]
        changed += range(before, columns.count)
        self._pods = list(pods)
        del self._volumes[columns.count :]
        self._volumes += [()] * (columns.count - len(self._volumes))
        self._max_volumes = (
            np.resize(self._max_volumes, columns.count) if before else np.zeros(columns.count, dtype=np.int64)
        )
        self._may_fail = np.resize(self._may_fail, columns.count) if before else np.zeros(columns.count, np.bool_)
        for row in changed:
            volumes = self._volumes[row] = tuple(attachable_volumes(info.pod for info in pods[row]))
            self._max_volumes[row] = len(volumes)
            self._may_fail[row] = any(volume.may_raise for volume in volumes)

    def _follow_objects(self, columns: NodeColumns) -> None:
        limits, count = self.limits.get(), columns.count
        self.with_csi_node = np.fromiter((name in limits for name in columns.names), np.bool_, count)
        self._limited = np.fromiter((bool(limits.get(name)) for name in columns.names), np.bool_, count)
        self._attached = np.zeros(count, dtype=np.int64)
        for name, attachments in self.attachments.get().items():
            row = columns.index.get(name)
            if row is not None:
                self._attached[row] = len(attachments)
        self._limits_by_driver.clear()

    def _limits(self, driver: str) -> IntVector:
        column = self._limits_by_driver.get(driver)
        if column is None:
            assert self._columns is not None
            limits = self.limits.get()
            answers = (limits.get(name, {}).get(driver, UNLIMITED) for name in self._columns.names)
            column = self._limits_by_driver[driver] = np.fromiter(answers, np.int64, self._columns.count)
        return column


def _limits_by_node(lookup: VolumeLookup) -> dict[str, dict[str, int]]:
    return {name: attach_limits(csi_node) for name, csi_node in lookup.csi_nodes.items()}
