"""Which images are on which nodes, as kube-scheduler's cache counts them.

The size of an image is what the first node that reported it said. A snapshot sees the counts of the moment a row was
last copied, not of now: scores depend on that, so it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.objects.core import Node
from bayplan.snapshot import ImageState


@dataclass(slots=True)
class _Image:
    size_bytes: int
    nodes: set[str] = field(default_factory=set)


class ImageTable:
    """All images, and for each node those that it reports."""

    def __init__(self) -> None:
        self._images: dict[str, _Image] = {}
        self._of_node: dict[str, dict[str, _Image]] = {}
        self.version = 0  # changes with whatever `images_of` could say
        self._told: dict[str, tuple[int, dict[str, ImageState]]] = {}  # what `images_of` said, and at which version

    def add(self, node: Node) -> None:
        mine: dict[str, _Image] = {}
        for reported in node.status.images:
            for name in reported.names:
                image = self._images.get(name)
                if image is None:
                    image = self._images[name] = _Image(reported.size_bytes)
                image.nodes.add(node.name)
                mine[name] = image
        self._of_node[node.name] = mine
        self.version += bool(mine)

    def remove(self, node: Node) -> None:
        """Take the node out of all its images; an image that nobody has is forgotten, size and all."""
        mine = self._of_node.pop(node.name, {})
        self.version += bool(mine)
        self._told.pop(node.name, None)
        for name, image in mine.items():
            image.nodes.discard(node.name)
            if not image.nodes and self._images.get(name) is image:
                del self._images[name]

    def images_of(self, node_name: str) -> dict[str, ImageState]:
        """The node's images with their counts of now; the same dictionary while no image changes anywhere."""
        told = self._told.get(node_name)
        if told is None or told[0] != self.version:
            mine = self._of_node[node_name]
            seen = {name: ImageState(image.size_bytes, len(image.nodes)) for name, image in mine.items()}
            told = self._told[node_name] = (self.version, seen)
        return told[1]
