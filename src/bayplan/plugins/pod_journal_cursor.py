"""Counts of pods that are kept instead of made anew: how far did they follow, and what happened since?

Spread and affinity count pods by domain. A part that is shared is asked again after every placement, and then only the
pod that was placed has to be added to what was counted before. Cost: a few operations for each pod that changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

from bayplan.snapshot import PodChange, Snapshot

_versions = count(1)


def next_version() -> int:
    """A number that no count has had before: two counts of one version are one count."""
    return next(_versions)


_MAX_INCREMENTAL_CHANGES = 64
"""When more pods than this changed, counting all of them is as well."""


class JournalCursor:
    """Up to where a count follows a snapshot. `basis`: whatever else it was made from."""

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
        """The count is no longer right."""
        self.layout = -1

    def changes_since(self, snapshot: Snapshot, basis: Hashable) -> list[PodChange] | None:
        """The pods that came and went since, to be counted now; None where all has to be counted anew."""
        if snapshot.layout != self.layout or snapshot.renewed.end != self.renewed or basis != self.basis:
            return None
        changes = snapshot.pods.changes_since(self.pods)
        if changes is None or len(changes) > _MAX_INCREMENTAL_CHANGES:
            return None
        self.pods = snapshot.pods.version
        return changes
