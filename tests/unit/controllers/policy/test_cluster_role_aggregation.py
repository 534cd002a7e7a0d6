"""Rules of aggregated ClusterRoles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayplan.controllers.core.api_types import Tree
from bayplan.controllers.policy.cluster_role_aggregation import CLUSTER_ROLES, ClusterRole, aggregated_rules
from bayplan.objects.kinds import convert
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers

PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
NODES = {**PODS, "resources": ["nodes"]}


def role(name: str, *rules: Tree, selects: str = "", **labels: str) -> Tree:
    tree: Tree = {"metadata": {"name": name, "labels": labels}, "rules": list(rules)}
    if selects:
        tree["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {selects: "yes"}}]}
    return tree


def test_an_aggregated_role_has_each_selected_rule_once_and_not_its_own() -> None:
    trees = [
        role("b", NODES, PODS, part="yes"),
        role("a", PODS, part="yes"),
        role("c", NODES, part="no"),
        role("whole", NODES, selects="part", part="yes"),
    ]
    roles = [convert(each, ClusterRole) for each in trees]
    assert aggregated_rules(roles[-1], roles) == [PODS, NODES]


@async_test
async def test_an_aggregated_role_follows_the_roles_that_it_selects(tmp_path: Path) -> None:
    only = ("clusterrole-aggregation-controller",)
    async with run_controllers(tmp_path, nodes=0, only=only, cleanup=False, scheduling=False) as harness:

        async def when_rules(*rules: Tree) -> Any:
            return await harness.when(CLUSTER_ROLES, "whole", lambda it: it["rules"] == [*rules])

        await harness.make(CLUSTER_ROLES, role("part", PODS, part="yes"))
        await harness.make(CLUSTER_ROLES, role("whole", selects="part"))
        written = await when_rules(PODS)
        assert "clusterrole-aggregation-controller" in [
            each["manager"] for each in written["metadata"]["managedFields"]
        ]
        await harness.patch(CLUSTER_ROLES, "part", {"rules": [NODES]})
        await when_rules(NODES)
        await harness.delete(CLUSTER_ROLES, "part")
        await harness.when(CLUSTER_ROLES, "whole", lambda it: not it["rules"])
