"""The order in which nodes are visited: zones take turns.

Matters only where not all nodes are looked at; then neighbours in the order should not share a zone. Given the same
history of additions and removals the order is the same, as in kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from bayplan.objects.core import Node

_REGION_KEYS = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")
_ZONE_KEYS = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")


def zone_of(node: Node) -> tuple[str, str]:
    """Region and zone of a node, each empty where no label says so. The older label wins."""
    labels = node.metadata.labels
    region = next((labels[key] for key in _REGION_KEYS if key in labels), "")
    zone = next((labels[key] for key in _ZONE_KEYS if key in labels), "")
    return region, zone


class NodeTree:
    """Node names by zone, both in order of arrival."""

    def __init__(self) -> None:
        self._zones: dict[tuple[str, str], dict[str, None]] = {}  # names as keys: ordered, and quick to remove

    def add(self, node: Node) -> None:
        self._zones.setdefault(zone_of(node), {})[node.name] = None

    def remove(self, node: Node) -> None:
        zone = zone_of(node)
        names = self._zones.get(zone, {})
        names.pop(node.name, None)
        if zone in self._zones and not names:
            del self._zones[zone]

    def update(self, old: Node, new: Node) -> None:
        """A node that changes its zone goes to the end of the new one."""
        if zone_of(old) != zone_of(new):
            self.remove(old)
            self.add(new)

    def names(self) -> Iterator[str]:
        """The first of every zone, then the second of every zone, and so on."""
        for turn in zip_longest(*self._zones.values()):
            yield from (name for name in turn if name is not None)
