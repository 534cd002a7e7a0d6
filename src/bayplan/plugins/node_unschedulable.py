"""Filters out cordoned nodes, unless the pod tolerates the unschedulable taint.

Cost: one toleration check and one column of flags.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.taints import UNSCHEDULABLE, tolerated
from bayplan.snapshot import NodeTable

UNSCHEDULABLE_REASON = "node(s) were unschedulable"


def hint_on_node_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A schedulable node was added, or a node was uncordoned."""
    assert isinstance(new, Node)
    was_unavailable = old is None or (isinstance(old, Node) and old.spec.unschedulable)
    return queue_hint_if(was_unavailable and not new.spec.unschedulable)


def hint_on_own_update(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """The pod itself got the toleration for the taint."""
    assert isinstance(new, Pod)
    return queue_hint_if(new.uid == pod.uid and tolerated(UNSCHEDULABLE, new.spec.tolerations))


class NodeUnschedulable:
    """Keeps pods off cordoned nodes, unless they tolerate the cordon's taint."""

    name = "NodeUnschedulable"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    events_to_register = (
        ClusterEventWithHint(
            EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_TAINT, hint_on_node_change, hint_key=no_hint_key
        ),
        ClusterEventWithHint(
            EventResource.POD, ActionType.UPDATE_POD_TOLERATION, hint_on_own_update, hint_key=no_hint_key
        ),
    )

    def signature(self, pod: Pod) -> Hashable | None:
        return tolerated(UNSCHEDULABLE, pod.spec.tolerations)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        if not tolerated(UNSCHEDULABLE, cycle.pod.spec.tolerations):
            yield Rejection(nodes.unschedulable, UNSCHEDULABLE_REASON, resolvable=False)
