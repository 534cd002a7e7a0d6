"""Node tree: the order in which nodes are visited, alternating between zones.

Matters only if the scheduler evaluates a sample of the nodes: consecutive nodes should be in different zones. The order
follows from the history of additions and removals, as in kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from bayplan.objects.core import Node

_REGION_KEYS = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")
_ZONE_KEYS = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")


def zone_of(node: Node) -> tuple[str, str]:
    """Return region and zone of a node, empty without a label. The older label takes precedence."""
    labels = node.metadata.labels
    region = next((labels[key] for key in _REGION_KEYS if key in labels), "")
    zone = next((labels[key] for key in _ZONE_KEYS if key in labels), "")
    return region, zone


class NodeTree:
    """Node names by zone, both in order of arrival."""

    def __init__(self) -> None:
        self._zones: dict[tuple[str, str], dict[str, None]] = {}  # names as keys: ordered, with fast removal

    def add(self, node: Node) -> None:
        self._zones.setdefault(zone_of(node), {})[node.name] = None

    def remove(self, node: Node) -> None:
        zone = zone_of(node)
        names = self._zones.get(zone, {})
        names.pop(node.name, None)
        if zone in self._zones and not names:
            del self._zones[zone]

    def update(self, old: Node, new: Node) -> None:
        """Update a node. A node that changes its zone moves to the end of the new zone."""
        if zone_of(old) != zone_of(new):
            self.remove(old)
            self.add(new)

    def names(self) -> Iterator[str]:
        """Yield the first node of every zone, then the second of every zone, and so on."""
        for names_of_turn in zip_longest(*self._zones.values()):
            yield from (name for name in names_of_turn if name is not None)
