"""Image states by node, counted as in kube-scheduler's cache.

The size of an image is the size that the first node reported. A snapshot shows the counts of the time when the row was
copied, not the current ones: image scores depend on this.
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
    """All images, and the images that each node reports."""

    def __init__(self) -> None:
        self._images: dict[str, _Image] = {}
        self._images_by_node: dict[str, dict[str, _Image]] = {}
        self.version = 0  # changes with every possible result of `images_of`
        self._states: dict[str, tuple[int, dict[str, ImageState]]] = {}  # results of `images_of` with their version

    def add(self, node: Node) -> None:
        node_images: dict[str, _Image] = {}
        for reported in node.status.images:
            for name in reported.names:
                image = self._images.get(name)
                if image is None:
                    image = self._images[name] = _Image(reported.size_bytes)
                image.nodes.add(node.name)
                node_images[name] = image
        self._images_by_node[node.name] = node_images
        self.version += bool(node_images)

    def remove(self, node: Node) -> None:
        """Remove the node from its images. An image without nodes is dropped with its size."""
        node_images = self._images_by_node.pop(node.name, {})
        self.version += bool(node_images)
        self._states.pop(node.name, None)
        for name, image in node_images.items():
            image.nodes.discard(node.name)
            if not image.nodes and self._images.get(name) is image:
                del self._images[name]

    def images_of(self, node_name: str) -> dict[str, ImageState]:
        """Return the node's images with their current counts: one dictionary until an image changes on any node."""
        cached = self._states.get(node_name)
        if cached is None or cached[0] != self.version:
            node_images = self._images_by_node[node_name]
            states = {name: ImageState(image.size_bytes, len(image.nodes)) for name, image in node_images.items()}
            cached = self._states[node_name] = (self.version, states)
        return cached[1]
