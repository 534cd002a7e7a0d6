"""Filters nodes by the node name in the pod's spec.

Cost: nothing for a pod without a node name, otherwise one lookup.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.objects.core import Pod
from bayplan.snapshot import NodeTable

OTHER_NODE = "node(s) didn't match the requested node name"


class NodeName:
    """Keeps a pod with a node name off all other nodes."""

    name = "NodeName"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)

    def signature(self, pod: Pod) -> Hashable | None:
        return pod.spec.node_name

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        node_name = cycle.pod.spec.node_name
        if node_name:
            yield Rejection(~nodes.where_named((node_name,)), OTHER_NODE, resolvable=False)
