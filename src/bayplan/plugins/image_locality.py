"""Which nodes have the pod's images already?

Asked at Score. An image counts by its size, scaled by the share of the nodes that have it, so that one lucky node does
not get every pod. Cost: for each image of the pod, the rows that have it.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.objects.core import Pod
from bayplan.objects.images import container_count, pod_images
from bayplan.plugins.go_division import quotient
from bayplan.snapshot import IntVector, NodeInfo, NodeTable

MEBIBYTE = 1024 * 1024
MIN_THRESHOLD_BYTES = 23 * MEBIBYTE
MAX_CONTAINER_THRESHOLD_BYTES = 1000 * MEBIBYTE


class ImageLocality:
    """Prefers nodes that need to pull less."""

    name = "ImageLocality"
    looks_at_pods = False

    def signature(self, pod: Pod) -> Hashable | None:
        return tuple(sorted(pod_images(pod))), container_count(pod)

    def depends_on(self, cycle: Cycle) -> Hashable:
        """On images: how many nodes have one is learnt row by row, when something else happens there."""
        return cycle.snapshot.nodes.images_version

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        total_nodes = float(cycle.snapshot.nodes.count)
        present = np.zeros(len(nodes), dtype=np.int64)
        known = [name for name in pod_images(cycle.pod) if name in nodes.columns.image_rows]
        if not known:
            return present  # nobody has to pull less than anybody else
        for name in known:
            sizes, holders = nodes.image(name)
            # Go's order of operations: the share first, then the product, then the cut.
            present += (sizes * (holders / total_nodes)).astype(np.int64)
        scores = np.zeros(len(nodes), dtype=np.int64)
        ahead = np.flatnonzero(present >= MIN_THRESHOLD_BYTES)  # usually few rows: all others score 0
        most = MAX_CONTAINER_THRESHOLD_BYTES * container_count(cycle.pod)
        saved = np.minimum(present[ahead], most) - MIN_THRESHOLD_BYTES
        scores[ahead] = quotient(MAX_SCORE * saved, most - MIN_THRESHOLD_BYTES)
        return scores

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        """The same for one node: for bringing what is known of a few rows up to date."""
        images = node.images
        if not images:
            return 0
        total_nodes = float(cycle.snapshot.nodes.count)
        found = [images[name] for name in pod_images(cycle.pod) if name in images]
        present = sum(int(state.size_bytes * (state.node_count / total_nodes)) for state in found)
        if present < MIN_THRESHOLD_BYTES:
            return 0
        most = MAX_CONTAINER_THRESHOLD_BYTES * container_count(cycle.pod)
        return MAX_SCORE * (min(present, most) - MIN_THRESHOLD_BYTES) // (most - MIN_THRESHOLD_BYTES)
