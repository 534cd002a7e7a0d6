"""ClusterRole aggregation: keeps the rules of a role with `aggregationRule` equal to those of the roles it selects.

A change of any ClusterRole checks all aggregated ones: a cluster has some seventy roles, and four of them aggregate.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.client import MERGE_PATCH, resource_of
from bayplan.controllers.core.api_types import Tree
from bayplan.controllers.core.controller import Controller, not_found_as_conflict
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import Api, KubeObject, LabelSelector
from bayplan.objects.selectors.label_selectors import compile_label_selector


class AggregationRule(Api, frozen=True):
    cluster_role_selectors: tuple[LabelSelector, ...] = ()


class ClusterRole(KubeObject, frozen=True):
    """A ClusterRole whose rules are not decoded."""

    rules: list[Tree] | None = None
    aggregation_rule: AggregationRule | None = None


CLUSTER_ROLES = resource_of(
    Kind("ClusterRole", "clusterroles", "rbac.authorization.k8s.io", ClusterRole, namespaced=False)
)


class ClusterRoleAggregationController(Controller):
    name = "clusterrole-aggregation-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.roles = self.informer(CLUSTER_ROLES, ClusterRole)
        self.roles.add_handler(self._on_role)

    def _on_role(self, _: ClusterRole | None, __: ClusterRole | None) -> None:
        for each in self.roles.all():
            if each.aggregation_rule is not None:
                self.enqueue(None, each)

    async def sync(self, key: Key) -> float | None:
        found = self.roles.get(*key)
        if found is None or found.aggregation_rule is None or found.metadata.deletion_timestamp is not None:
            return None
        rules = aggregated_rules(found, self.roles.all())
        if rules == (found.rules or []):
            return None
        patch = {"metadata": {"resourceVersion": found.metadata.resource_version}, "rules": rules}
        with not_found_as_conflict():
            await self.client.patch(CLUSTER_ROLES, patch, name=found.name, kind=MERGE_PATCH, field_manager=self.name)
        return None


def aggregated_rules(role: ClusterRole, roles: Iterable[ClusterRole]) -> list[Tree]:
    """The rules of the roles that the selectors of an aggregated role match, each rule once."""
    by_name = sorted(roles, key=lambda each: each.name)
    found: list[Tree] = []
    for selector in role.aggregation_rule.cluster_role_selectors if role.aggregation_rule is not None else ():
        matcher = compile_label_selector(selector)
        for source in by_name:
            if source.name != role.name and matcher.matches(source.metadata.labels):
                found += [rule for rule in source.rules or () if rule not in found]
    return found
