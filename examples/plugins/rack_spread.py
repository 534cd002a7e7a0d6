"""Spreads the pods of an app over racks, so that the failure of one switch does not affect all of them.

Racks are the values of the node label `rack`, apps those of the pod label `app`. No node is rejected: when all racks
but one are full, that one is used. Cost: one count over the columns of pods, then one lookup in the column of a label.
"""

from collections.abc import Hashable

import numpy as np

from bayplan.framework import SKIP, Cycle, IntVector, NodeTable, PluginTraits, Pod, StateKey, Status, default_normalize

RACK = "rack"
APP = "app"
COUNTS: StateKey[IntVector] = StateKey("RackSpread")  # siblings in each rack; the last entry is for nodes without one


def pods_and_racks(plugin: object, cycle: Cycle) -> Hashable:  # noqa: ARG001
    """The score of a node also depends on the pods of other nodes, and on the racks of those nodes."""
    return cycle.snapshot.pods.version, cycle.snapshot.nodes_version


class RackSpread:
    """The fewer pods of the app in a node's rack, the higher the score."""

    name = "RackSpread"
    traits = PluginTraits(depends_on=pods_and_racks)

    def signature(self, pod: Pod) -> Hashable:
        return (pod.namespace, pod.labels.get(APP))

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:
        """Count once for all nodes.

        The snapshot, not `nodes`: pods of the app also run on nodes that are not feasible.
        """
        namespace, app = cycle.pod.namespace, cycle.pod.labels.get(APP)
        if app is None:
            return SKIP
        pods, racks = cycle.snapshot.pods, nodes.label(RACK)
        siblings = pods.matching(
            (self.name, namespace, app), lambda kind: kind.namespace == namespace and kind.labels.get(APP) == app
        )
        by_row = pods.count_by_row(siblings, len(cycle.snapshot))
        counts = np.zeros(len(racks.values) + 1, dtype=np.int64)
        np.add.at(counts, cycle.snapshot.table.label_ids(RACK), by_row)
        counts[-1] = counts.max()  # a node in no rack scores like the fullest one
        cycle.put(COUNTS, counts)
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        siblings: IntVector = cycle.get(COUNTS)[nodes.label_ids(RACK)]
        return siblings

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return default_normalize(scores, reverse=True)
