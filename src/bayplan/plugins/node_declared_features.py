"""Filters nodes by the kubelet features that the pod's spec requires.

Filter does work only for the few pods that require a feature. Cost: each distinct set of declared features is evaluated
once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from bayplan.framework.api.cycle import Cycle, StateKey
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
from bayplan.framework.api.status import SKIP, Status
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.snapshot import NodeTable

FEATURES_MISSING = "node(s) didn't match Pod's required features"
RESTART_ALL_CONTAINERS = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_WITH_HOST_NETWORK = "UserNamespacesHostNetworkSupport"

NEEDED_FEATURES: StateKey[frozenset[str]] = StateKey("PreFilterNodeDeclaredFeatures")


def needed_features(pod: Pod) -> frozenset[str]:
    spec = pod.spec
    needed = set()
    containers = (*spec.containers, *spec.init_containers)
    if any(rule.action == "RestartAllContainers" for each in containers for rule in each.restart_policy_rules):
        needed.add(RESTART_ALL_CONTAINERS)
    if spec.host_network and spec.host_users is False:
        needed.add(USER_NAMESPACES_WITH_HOST_NETWORK)
    return frozenset(needed)


def hint_on_node_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A node was added or declares other features. The order counts too: kube-scheduler compares lists."""
    assert isinstance(new, Node)
    return queue_hint_if(not isinstance(old, Node) or old.status.declared_features != new.status.declared_features)


def hint_on_own_update(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """The pod itself changed and requires other features."""
    assert isinstance(old, Pod)
    assert isinstance(new, Pod)
    return queue_hint_if(new.uid == pod.uid and needed_features(old) != needed_features(new))


class NodeDeclaredFeatures:
    """Keeps pods off nodes whose kubelet lacks a required feature."""

    name = "NodeDeclaredFeatures"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    events_to_register = (
        ClusterEventWithHint(
            EventResource.NODE,
            ActionType.ADD | ActionType.UPDATE_NODE_DECLARED_FEATURE,
            hint_on_node_change,
            hint_key=no_hint_key,
        ),
        ClusterEventWithHint(EventResource.POD, ActionType.UPDATE, hint_on_own_update, hint_key=no_hint_key),
    )

    def signature(self, pod: Pod) -> Hashable | None:
        return needed_features(pod)

    def pre_filter(self, cycle: Cycle) -> Status | None:
        needed = needed_features(cycle.pod)
        if not needed:
            return SKIP
        cycle.put(NEEDED_FEATURES, needed)
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        needed = cycle.find(NEEDED_FEATURES)
        if needed is None:
            text = f'error reading "{NEEDED_FEATURES.name}" from cycle-state: not found'
            yield Rejection.from_error(nodes, text)
            return
        yield Rejection(~nodes.where_features(needed.issubset), FEATURES_MISSING, resolvable=False)
