"""Cursor into the pod changes of a snapshot, for counts that are updated incrementally.

Topology spread and inter-pod affinity count pods by domain. A shared evaluation is updated after every placement, and
then only the placed pod is added to the earlier counts. Cost: a few operations for each changed pod.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

from bayplan.snapshot import PodChange, Snapshot

_versions = count(1)


def next_version() -> int:
    """Return a unique number. Two counts with one version are the same count."""
    return next(_versions)


_MAX_INCREMENTAL_CHANGES = 64
"""If more pods than this changed, counting all of them is not slower."""


class JournalCursor:
    """Position of a count in the changes of a snapshot. `basis`: everything else that the count was computed from."""

    __slots__ = ("basis", "layout", "pods", "renewed")

    def __init__(self, layout: int, renewed: int, basis: Hashable, pods: int) -> None:
        self.layout = layout
        self.renewed = renewed
        self.basis = basis
        self.pods = pods

    @classmethod
    def at(cls, snapshot: Snapshot, basis: Hashable) -> JournalCursor:
        return cls(snapshot.layout, snapshot.renewed.end, basis, snapshot.pods.version)

    def copy(self) -> JournalCursor:
        return JournalCursor(self.layout, self.renewed, self.basis, self.pods)

    def invalidate(self) -> None:
        self.layout = -1

    def changes_since(self, snapshot: Snapshot, basis: Hashable) -> list[PodChange] | None:
        """Return the pod changes since the last call; None if everything must be counted again."""
        if snapshot.layout != self.layout or snapshot.renewed.end != self.renewed or basis != self.basis:
            return None
        changes = snapshot.pods.changes_since(self.pods)
        if changes is None or len(changes) > _MAX_INCREMENTAL_CHANGES:
            return None
        self.pods = snapshot.pods.version
        return changes
