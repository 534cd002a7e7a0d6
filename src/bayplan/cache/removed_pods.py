"""Who is counted on no node for a while, and in which order did the pods of those nodes stand before?

Asked by the cache while somebody finds out who would fit without some pods. Plugins see the pods of a node in an order,
so it is the same again once all are back. Cost: one look at the pods of a node whose first pod is set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from bayplan.snapshot import PodInfo

PodOrder = Callable[[PodInfo], int]
"""Sorts the pods of a node; those that came meanwhile are the last."""


class RemovedPods:
    """Pods by uid."""

    def __init__(self) -> None:
        self._uids: set[str] = set()
        self._before: dict[str, list[str]] = {}

    def add(self, uid: str, node_name: str, pods: Iterable[PodInfo]) -> None:
        """`pods`: of its node, itself among them."""
        self._before.setdefault(node_name, [info.uid for info in pods])
        self._uids.add(uid)

    def remove(self, uid: str) -> bool:
        """Whether it was here; it no longer is."""
        if uid not in self._uids:
            return False
        self._uids.discard(uid)
        return True

    def orders(self) -> Iterator[tuple[str, PodOrder]]:
        """Once nobody is left: by node, how its pods stood."""
        if self._uids:
            return
        before, self._before = self._before, {}
        for name, uids in before.items():
            places = {uid: place for place, uid in enumerate(uids)}
            yield name, partial(_place, places)


def _place(places: Mapping[str, int], info: PodInfo) -> int:
    return places.get(info.uid, len(places))
