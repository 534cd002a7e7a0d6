"""Pods that are temporarily removed from their nodes, and the former order of the pods on these nodes.

Used by the cache while a caller computes what fits without some pods. Plugins see the pods of a node in order, so the
order is restored with the last pod. Cost: one pass over the pods of a node when its first pod is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from bayplan.snapshot import PodInfo

PodOrder = Callable[[PodInfo], int]
"""Sort key for the pods of a node. Pods that were added meanwhile are last."""


class RemovedPods:
    """Removed pods by uid."""

    def __init__(self) -> None:
        self._uids: set[str] = set()
        self._uids_by_node: dict[str, list[str]] = {}

    def add(self, uid: str, node_name: str, pods: Iterable[PodInfo]) -> None:
        """Add a removed pod. `pods`: all pods of its node, including itself."""
        self._uids_by_node.setdefault(node_name, [info.uid for info in pods])
        self._uids.add(uid)

    def remove(self, uid: str) -> bool:
        """Remove a pod from this set. Returns whether it was in it."""
        if uid not in self._uids:
            return False
        self._uids.discard(uid)
        return True

    def orders(self) -> Iterator[tuple[str, PodOrder]]:
        """Yield the former order of the pods by node, once no pod is removed anymore."""
        if self._uids:
            return
        orders_before, self._uids_by_node = self._uids_by_node, {}
        for name, uids in orders_before.items():
            positions = {uid: position for position, uid in enumerate(uids)}
            yield name, partial(_position, positions)


def _position(positions: Mapping[str, int], info: PodInfo) -> int:
    return positions.get(info.uid, len(positions))
