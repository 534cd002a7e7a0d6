"""Which nodes are cordoned, and does the pod mind?

Asked at Filter. Cost: one toleration check and one look at a column of flags.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import (
    Action,
    Cure,
    Hint,
    Resource,
    nothing,
    queue_if,
)
from bayplan.framework.api.plugin import Rejection, row_alone
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.taints import UNSCHEDULABLE, tolerated
from bayplan.snapshot import NodeTable

CORDONED = "node(s) were unschedulable"


def became_schedulable(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG001
    """A node came open, or was opened."""
    assert isinstance(new, Node)
    was_closed = old is None or (isinstance(old, Node) and old.spec.unschedulable)
    return queue_if(was_closed and not new.spec.unschedulable)


def now_tolerates(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG001
    """The pod itself got the toleration that it lacked."""
    assert isinstance(new, Pod)
    return queue_if(new.uid == pod.uid and tolerated(UNSCHEDULABLE, new.spec.tolerations))


class NodeUnschedulable:
    """Keeps pods off cordoned nodes, unless they tolerate the cordon's taint."""

    name = "NodeUnschedulable"
    looks_at_pods = False
    depends_on = row_alone
    cured_by = (
        Cure(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, became_schedulable, reads=nothing),
        Cure(Resource.POD, Action.UPDATE_POD_TOLERATION, now_tolerates, reads=nothing),
    )

    def signature(self, pod: Pod) -> Hashable | None:
        return tolerated(UNSCHEDULABLE, pod.spec.tolerations)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        if not tolerated(UNSCHEDULABLE, cycle.pod.spec.tolerations):
            yield Rejection(nodes.unschedulable, CORDONED, resolvable=False)
