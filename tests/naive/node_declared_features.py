"""Naive twin of NodeDeclaredFeatures, one node at a time."""

from __future__ import annotations

from bayplan.objects.core import Node
from bayplan.plugins.node_declared_features import NodeDeclaredFeatures
from naive.twin import Case, Twin, cases, fits_unless
from support.builders.framework import FilterResult, unresolvable


def judge(case: Case, node: Node) -> FilterResult:
    spec = case.pod.spec
    declared = node.status.declared_features
    actions = [rule.action for each in (*spec.containers, *spec.init_containers) for rule in each.restart_policy_rules]
    lacks_restart = "RestartAllContainers" in actions and "RestartAllContainersOnContainerExits" not in declared
    mixed = spec.host_network and spec.host_users is False
    lacks_users = mixed and "UserNamespacesHostNetworkSupport" not in declared
    return fits_unless((lacks_restart or lacks_users, unresolvable("node(s) didn't match Pod's required features")))


TWIN = Twin(NodeDeclaredFeatures, cases("features restart_policy_rules host_network host_users"), judge)
