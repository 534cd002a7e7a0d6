"""Which kinds does this server have, all of them? For those who clean up after every kind, built in or not.

Asked at start and whenever a CustomResourceDefinition changes: one request for the groups and one for each of them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from bayplan.client import Client, GroupVersionResource
from bayplan.errors import ApiError
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

_EVENTS = {("", "events"), ("events.k8s.io", "events")}
"""Nobody owns through events, and there are many of them."""


class _DiscoveryVersion(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str = ""
    version: str = ""


class _DiscoveryGroup(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    versions: tuple[_DiscoveryVersion, ...] = ()
    preferred_version: _DiscoveryVersion = _DiscoveryVersion()


class _DiscoveryGroupList(msgspec.Struct, frozen=True):
    groups: tuple[_DiscoveryGroup, ...] = ()


class _DiscoveryResource(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _DiscoveryResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_DiscoveryResource, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredResource:
    """One kind, and what may be done with its objects."""

    resource: GroupVersionResource
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class PreferredResources:
    """Everything that the server keeps; events left out."""

    resources: tuple[PreferredResource, ...] = ()
    failed: tuple[str, ...] = ()
    """Groups that did not answer."""

    def watchable(self) -> list[GroupVersionResource]:
        """What can be watched and deleted."""
        wanted = {"list", "watch", "delete"}
        return [each.resource for each in self.resources if wanted <= each.verbs]

    def find(self, api_version: str, kind: str) -> GroupVersionResource | None:
        """The resource of an object that says it is of this version and kind."""
        group = api_version.rpartition("/")[0]
        for each in self.resources:
            known = each.resource.kind
            if known is not None and (known.group, known.name) == (group, kind):
                return each.resource
        return None


async def server_preferred_resources(client: Client) -> PreferredResources:
    """Ask the server for every kind, each in the version that the server prefers.

    A server that has just started lists only some of its groups: `ServerError` is raised until it is ready.
    """
    await client.check_ready()
    groups = [("", "v1")]
    answer = msgspec.json.decode((await client.transport.request("GET", "/apis")).body, type=_DiscoveryGroupList)
    for group in answer.groups:
        preferred = group.preferred_version.version
        versions = [preferred, *(each.version for each in group.versions if each.version != preferred)]
        groups += [(group.name, version) for version in versions]
    answers = await asyncio.gather(*(_list_resources(client, *each) for each in groups))
    found: dict[tuple[str, str], PreferredResource] = {}
    failed = []
    for (group_name, version), offers in zip(groups, answers, strict=True):
        if offers is None:
            failed.append(f"{group_name}/{version}")
            continue
        for offer in offers:
            name = (group_name, offer.name)
            if "/" not in offer.name and name not in _EVENTS and name not in found:
                found[name] = _to_preferred(group_name, version, offer)
    return PreferredResources(tuple(found.values()), tuple(failed))


def _to_preferred(group: str, version: str, offer: _DiscoveryResource) -> PreferredResource:
    kind = Kind(offer.kind, offer.name, group, KubeObject, namespaced=offer.namespaced, versions=(version,))
    return PreferredResource(
        GroupVersionResource(group, version, offer.name, offer.namespaced, kind), frozenset(offer.verbs)
    )


async def _list_resources(client: Client, group: str, version: str) -> tuple[_DiscoveryResource, ...] | None:
    path = GroupVersionResource(group, version, "").root
    try:
        return msgspec.json.decode(
            (await client.transport.request("GET", path)).body, type=_DiscoveryResourceList
        ).resources
    except (ApiError, msgspec.DecodeError) as fault:
        log.info("%s does not say what it has: %s", path, fault)
        return None
