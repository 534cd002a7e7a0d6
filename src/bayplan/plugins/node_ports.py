"""Filters nodes by the host ports of the pod.

Does work only for pods with host ports. Cost: for each requested port, the rows that use it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint, queue_hint_if
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Status, error, unschedulable
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.ports import HostPort, host_ports, ports_conflict
from bayplan.snapshot import NodeInfo, NodeTable

PORTS_IN_USE = "node(s) didn't have free ports for the requested pod ports"

WANTED_PORTS: StateKey[tuple[HostPort, ...]] = StateKey("PreFilterNodePorts")


def hint_on_pod_delete(ports: tuple[HostPort, ...], old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A pod with a node or a nomination was deleted that used one of the requested ports."""
    assert isinstance(old, Pod)
    placed = bool(old.spec.node_name or old.status.nominated_node_name)
    return queue_hint_if(placed and ports_conflict(ports, host_ports(old)))


class NodePorts:
    """Keeps pods off nodes where another pod uses one of their host ports."""

    name = "NodePorts"
    traits = PluginTraits(depends_on=row_local)
    events_to_register = (
        ClusterEventWithHint.with_hint_key(EventResource.POD, ActionType.DELETE, host_ports, hint_on_pod_delete),
        ClusterEventWithHint(EventResource.NODE, ActionType.ADD),
    )

    def signature(self, pod: Pod) -> Hashable | None:
        return frozenset(host_ports(pod))

    def pre_filter(self, cycle: Cycle) -> Status | None:
        ports = cycle.info.host_ports
        if not ports:
            return SKIP
        cycle.put(WANTED_PORTS, ports)
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        ports = cycle.find(WANTED_PORTS)
        if ports is None:
            text = f'reading "{WANTED_PORTS.name}" from cycleState: not found'
            yield Rejection.from_error(nodes, text)
            return
        used = np.zeros(len(nodes), dtype=np.bool_)
        for port in ports:
            used |= nodes.where_port_taken(port)
        yield Rejection(used, PORTS_IN_USE)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        """Filter one node, to update a few rows."""
        ports = cycle.find(WANTED_PORTS)
        if ports is None:
            return error(f'reading "{WANTED_PORTS.name}" from cycleState: not found')
        return unschedulable(PORTS_IN_USE) if ports_conflict(ports, node.ports) else None
