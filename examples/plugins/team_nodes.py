"""Reserves a group of nodes for a team: its pods prefer these nodes, and no other pods may use them.

Label the nodes `team: payments`; pods with the same label belong to the team. A taint would also repel other pods, but
every pod of the team would need the toleration. Cost: one lookup in the column of a label.
"""

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.framework import (
    MAX_SCORE,
    ActionType,
    ClusterEventWithHint,
    Cycle,
    EventResource,
    IntVector,
    NodeTable,
    PluginTraits,
    Pod,
    Rejection,
    row_local,
)

LABEL = "team"
REASON = "node(s) are kept for another team"


class TeamNodes:
    """Nodes of a team reject pods of other teams, and the team's pods prefer them."""

    name = "TeamNodes"
    events_to_register = (
        ClusterEventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL),
        ClusterEventWithHint(EventResource.UNSCHEDULABLE_POD, ActionType.UPDATE_POD_LABEL),
    )
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)

    def signature(self, pod: Pod) -> Hashable:
        return (pod.labels.get(LABEL),)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        team = cycle.pod.labels.get(LABEL)
        yield Rejection(nodes.where_label(LABEL, lambda kept_for: kept_for != team), REASON, resolvable=False)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        own = nodes.where_label_in(LABEL, [cycle.pod.labels.get(LABEL, "")])
        return own.astype(np.int64) * MAX_SCORE
