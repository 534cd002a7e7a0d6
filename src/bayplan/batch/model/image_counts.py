"""On how many nodes is an image? As a node was told when it came, or changed last.

Volcano counts the nodes that have an image when it reads a node, this one included, and does not count again; so at a
first feed earlier nodes know of fewer. The size is what the first node said that reported the name. Scores of images
depend on both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.objects.core import Node
from bayplan.snapshot import ImageState


@dataclass(slots=True)
class _ImageNodes:
    size_bytes: int
    nodes: set[str] = field(default_factory=set)


class ImageNodeCounts:
    """Images by name, and what each node was told about its own."""

    def __init__(self) -> None:
        self._images: dict[str, _ImageNodes] = {}
        self._told: dict[str, dict[str, ImageState]] = {}

    def update_node(self, node: Node) -> None:
        """A node came or changed."""
        if node.name in self._told:
            self.remove_node(node.name)
        told: dict[str, ImageState] = {}
        images, own = self._images, node.name
        for listed in node.status.images:
            for name in listed.names:
                if name in told:
                    continue
                image = images.get(name)
                if image is None:
                    image = images[name] = _ImageNodes(listed.size_bytes)
                nodes = image.nodes
                nodes.add(own)
                told[name] = ImageState(image.size_bytes, len(nodes))
        self._told[own] = told

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        for image in self._told.pop(name, ()):
            held = self._images[image]
            held.nodes.discard(name)
            if not held.nodes:
                del self._images[image]

    def image_states(self, name: str) -> dict[str, ImageState]:
        return self._told.get(name, {})
