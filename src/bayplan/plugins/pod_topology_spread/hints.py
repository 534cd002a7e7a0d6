"""Queueing hints of PodTopologySpread.

The queue calls them once for all unschedulable pods with the same hint input: namespace and hard constraints.
"""

from __future__ import annotations

from typing import NamedTuple

from bayplan.framework.api.events import QueueingHint, queue_hint_if
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.plugins.pod_topology_spread.constraints import SpreadConstraint


class SpreadHintInput(NamedTuple):
    """Everything of a pod that the hints read."""

    namespace: str
    constraints: tuple[SpreadConstraint, ...]


def hint_on_own_update(hint_input: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """The pod itself changed: it may count now, or tolerate a taint that excludes nodes from the count."""
    tolerations_changed = isinstance(old, Pod) and isinstance(new, Pod) and old.spec.tolerations != new.spec.tolerations
    if tolerations_changed and any(constraint.honors_taints for constraint in hint_input.constraints):
        return QueueingHint.QUEUE
    return _count_changes(hint_input, old, new)


def hint_on_other_pod_change(
    hint_input: SpreadHintInput, old: KubeObject | None, new: KubeObject | None
) -> QueueingHint:
    """Another pod was added, removed or changed. Only pods of the namespace with a node or a nomination count."""
    pods = (each for each in (old, new) if isinstance(each, Pod))
    return (
        _count_changes(hint_input, old, new)
        if all(_is_counted(each, hint_input.namespace) for each in pods)
        else QueueingHint.SKIP
    )


def hint_on_node_change(hint_input: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A node was added or removed, moved to another domain, or its taints changed."""
    keys = [constraint.topology_key for constraint in hint_input.constraints]

    def has_all_keys(node: KubeObject | None) -> bool:
        return isinstance(node, Node) and all(key in node.metadata.labels for key in keys)

    if not isinstance(old, Node) or not isinstance(new, Node):
        return queue_hint_if(has_all_keys(old) or has_all_keys(new))
    if has_all_keys(old) != has_all_keys(new):
        return QueueingHint.QUEUE
    if not has_all_keys(new):
        return QueueingHint.SKIP
    moved = any(old.metadata.labels[key] != new.metadata.labels[key] for key in keys)
    return queue_hint_if(moved or old.spec.taints != new.spec.taints)


def _count_changes(hint_input: SpreadHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """Queue if a constraint counts one pod more or less."""
    if isinstance(old, Pod) and isinstance(new, Pod):
        if old.metadata.labels == new.metadata.labels:
            return QueueingHint.SKIP
        return queue_hint_if(any(each.counts(old) != each.counts(new) for each in hint_input.constraints))
    changed = new or old
    assert isinstance(changed, Pod)
    return queue_hint_if(any(each.counts(changed) for each in hint_input.constraints))


def _is_counted(changed: Pod, namespace: str) -> bool:
    has_node = bool(changed.spec.node_name or changed.status.nominated_node_name)
    return has_node and changed.metadata.namespace == namespace
