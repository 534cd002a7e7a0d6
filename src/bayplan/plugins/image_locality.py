"""Scores nodes by the images of the pod that they have.

An image counts by its size, scaled by the share of nodes that have it, so that a single node does not attract every
pod. Cost: for each image of the pod, the rows that have it.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_traits import PluginTraits
from bayplan.objects.core import Pod
from bayplan.objects.images import container_count, pod_images
from bayplan.plugins.go_division import quotient
from bayplan.snapshot import IntVector, NodeInfo, NodeTable

MEBIBYTE = 1024 * 1024
MIN_THRESHOLD_BYTES = 23 * MEBIBYTE
MAX_CONTAINER_THRESHOLD_BYTES = 1000 * MEBIBYTE


class ImageLocality:
    """Prefers nodes that must pull fewer bytes."""

    name = "ImageLocality"
    traits = PluginTraits(
        # the node counts of a row change only when the row is updated
        depends_on=lambda _plugin, cycle: cycle.snapshot.nodes.images_version,
        looks_at_pods=False,
    )

    def signature(self, pod: Pod) -> Hashable | None:
        return tuple(sorted(pod_images(pod))), container_count(pod)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        total_nodes = float(cycle.snapshot.nodes.count)
        present = np.zeros(len(nodes), dtype=np.int64)
        known = [name for name in pod_images(cycle.pod) if name in nodes.columns.image_rows]
        if not known:
            return present  # no node has any of the images
        for name in known:
            sizes, node_counts = nodes.image(name)
            # Go's order of operations: first the share, then the product, then the truncation.
            present += (sizes * (node_counts / total_nodes)).astype(np.int64)
        scores = np.zeros(len(nodes), dtype=np.int64)
        rows = np.flatnonzero(present >= MIN_THRESHOLD_BYTES)  # usually few rows; all other rows score 0
        max_threshold = MAX_CONTAINER_THRESHOLD_BYTES * container_count(cycle.pod)
        image_bytes = np.minimum(present[rows], max_threshold) - MIN_THRESHOLD_BYTES
        scores[rows] = quotient(MAX_SCORE * image_bytes, max_threshold - MIN_THRESHOLD_BYTES)
        return scores

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        """Score one node, to update a few rows."""
        images = node.images
        if not images:
            return 0
        total_nodes = float(cycle.snapshot.nodes.count)
        states = [images[name] for name in pod_images(cycle.pod) if name in images]
        present = sum(int(state.size_bytes * (state.node_count / total_nodes)) for state in states)
        if present < MIN_THRESHOLD_BYTES:
            return 0
        max_threshold = MAX_CONTAINER_THRESHOLD_BYTES * container_count(cycle.pod)
        return MAX_SCORE * (min(present, max_threshold) - MIN_THRESHOLD_BYTES) // (max_threshold - MIN_THRESHOLD_BYTES)
