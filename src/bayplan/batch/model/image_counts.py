"""Number of nodes that have each image, as Volcano counts them.

Volcano counts the nodes with an image when it reads a node, that node included, and does not count again. Nodes read
earlier therefore see lower numbers. The size is the one reported by the first node with that image name. Image locality
scores depend on both.
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
    """Nodes by image, and the image states that each node saw when it was read."""

    def __init__(self) -> None:
        self._images: dict[str, _ImageNodes] = {}
        self._states_by_node: dict[str, dict[str, ImageState]] = {}

    def update_node(self, node: Node) -> None:
        if node.name in self._states_by_node:
            self.remove_node(node.name)
        states: dict[str, ImageState] = {}
        images, own = self._images, node.name
        for listed in node.status.images:
            for name in listed.names:
                if name in states:
                    continue
                image = images.get(name)
                if image is None:
                    image = images[name] = _ImageNodes(listed.size_bytes)
                nodes = image.nodes
                nodes.add(own)
                states[name] = ImageState(image.size_bytes, len(nodes))
        self._states_by_node[own] = states

    def remove_node(self, name: str) -> None:
        for image in self._states_by_node.pop(name, ()):
            entry = self._images[image]
            entry.nodes.discard(name)
            if not entry.nodes:
                del self._images[image]

    def image_states(self, name: str) -> dict[str, ImageState]:
        return self._states_by_node.get(name, {})
