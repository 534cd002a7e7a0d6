"""May an event cure a pod that PodTopologySpread rejected?

Asked by the queue, once for all parked pods of one stance: the namespace and the hard constraints are all that counts.
"""

from __future__ import annotations

from typing import NamedTuple

from bayplan.framework.api.events import QueueingHint, queue_hint_if
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.plugins.pod_topology_spread.constraints import SpreadConstraint


class SpreadHintInput(NamedTuple):
    """All that hints look at in a pod."""

    namespace: str
    constraints: tuple[SpreadConstraint, ...]


def hint_on_own_update(stance: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """The pod itself changed: it may count now, or tolerate a taint that keeps nodes out of the count."""
    retolerated = isinstance(old, Pod) and isinstance(new, Pod) and old.spec.tolerations != new.spec.tolerations
    if retolerated and any(constraint.honors_taints for constraint in stance.constraints):
        return QueueingHint.QUEUE
    return _count_changes(stance, old, new)


def hint_on_other_pod_change(stance: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """Another pod came, went or changed. Only those of the namespace count that take room somewhere."""
    pods = (each for each in (old, new) if isinstance(each, Pod))
    return (
        _count_changes(stance, old, new)
        if all(_is_counted(each, stance.namespace) for each in pods)
        else QueueingHint.SKIP
    )


def hint_on_node_change(stance: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A node came or went, moved to another domain, or its taints changed."""
    keys = [constraint.topology_key for constraint in stance.constraints]

    def keyed(node: KubeObject | None) -> bool:
        return isinstance(node, Node) and all(key in node.metadata.labels for key in keys)

    if not isinstance(old, Node) or not isinstance(new, Node):
        return queue_hint_if(keyed(old) or keyed(new))
    if keyed(old) != keyed(new):
        return QueueingHint.QUEUE
    if not keyed(new):
        return QueueingHint.SKIP
    moved = any(old.metadata.labels[key] != new.metadata.labels[key] for key in keys)
    return queue_hint_if(moved or old.spec.taints != new.spec.taints)


def _count_changes(stance: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """Whether some constraint counts a pod more, or one less."""
    if isinstance(old, Pod) and isinstance(new, Pod):
        if old.metadata.labels == new.metadata.labels:
            return QueueingHint.SKIP
        return queue_hint_if(any(each.counts(old) != each.counts(new) for each in stance.constraints))
    changed = new or old
    assert isinstance(changed, Pod)
    return queue_hint_if(any(each.counts(changed) for each in stance.constraints))


def _is_counted(changed: Pod, namespace: str) -> bool:
    settled = bool(changed.spec.node_name or changed.status.nominated_node_name)
    return settled and changed.metadata.namespace == namespace
