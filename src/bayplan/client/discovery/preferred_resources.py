"""All resources of a server, each in its preferred version: client-go's ServerPreferredResources.

Used by the garbage collector (at start and when a CustomResourceDefinition changes), the namespace controller and the
quota controller. Cost: one request for the groups and one per group version.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from bayplan.client import Client, GroupVersionResource
from bayplan.client.discovery.discovery_client import ApiResource, server_groups, server_resources
from bayplan.errors import ApiError
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

_EVENTS = {("", "events"), ("events.k8s.io", "events")}
"""Events are excluded: they own no objects, and there are many of them."""


@dataclass(frozen=True, slots=True)
class PreferredResource:
    resource: GroupVersionResource
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class PreferredResources:
    """All resources of the server, except events."""

    resources: tuple[PreferredResource, ...] = ()
    failed: tuple[str, ...] = ()
    """Group versions whose discovery failed."""

    def watchable(self) -> list[GroupVersionResource]:
        """Resources that can be listed, watched and deleted."""
        wanted = {"list", "watch", "delete"}
        return [each.resource for each in self.resources if wanted <= each.verbs]

    def find(self, api_version: str, kind: str) -> GroupVersionResource | None:
        """Find the resource of an object with this apiVersion and kind."""
        group = api_version.rpartition("/")[0]
        for each in self.resources:
            known = each.resource.kind
            if known is not None and (known.group, known.name) == (group, kind):
                return each.resource
        return None


async def server_preferred_resources(client: Client) -> PreferredResources:
    """Discover all resources, each in the server's preferred version.

    A server that has just started lists only some of its groups: `ServerError` is raised until it is ready.
    """
    await client.check_ready()
    groups = [("", "v1")]
    for group in await server_groups(client.transport):
        groups += [(group.name, version) for version in group.versions_by_preference]
    answers = await asyncio.gather(*(_list_resources(client, *each) for each in groups))
    found: dict[tuple[str, str], PreferredResource] = {}
    failed = []
    for (group_name, version), listed in zip(groups, answers, strict=True):
        if listed is None:
            failed.append(f"{group_name}/{version}")
            continue
        for entry in listed:
            name = (group_name, entry.name)
            if name not in _EVENTS and name not in found:
                found[name] = _to_preferred(group_name, version, entry)
    return PreferredResources(tuple(found.values()), tuple(failed))


def _to_preferred(group: str, version: str, entry: ApiResource) -> PreferredResource:
    kind = Kind(entry.kind, entry.name, group, KubeObject, namespaced=entry.namespaced, versions=(version,))
    return PreferredResource(
        GroupVersionResource(group, version, entry.name, entry.namespaced, kind), frozenset(entry.verbs or ())
    )


async def _list_resources(client: Client, group: str, version: str) -> tuple[ApiResource, ...] | None:
    try:
        return await server_resources(client.transport, group, version)
    except ApiError as fault:
        log.info("discovery of %s failed: %s", GroupVersionResource(group, version, "").root, fault)
        return None
