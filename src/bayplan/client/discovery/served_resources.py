"""Kinds that the server offers, and the version in which Bayplan reads each.

Called once at start, and again to check whether a missing kind has been added. Cost: one request for the groups and one
per group version that Bayplan reads, some ten in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from bayplan.client.discovery.discovery_client import get_document, server_groups, server_resources
from bayplan.client.http.transport import Transport
from bayplan.client.resources import GroupVersionResource
from bayplan.errors import NotFound
from bayplan.objects.kinds import KINDS, Kind

# v1beta1 device objects are read, too: the decoder converts them to v1.
_EXTRA_READ_VERSIONS = {"resource.k8s.io": ("v1beta1",)}


class _ServerVersion(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


@dataclass(frozen=True, slots=True)
class ServedResources:
    server_version: str
    resources: dict[tuple[str, str], GroupVersionResource]
    """Resources to read, by group and kind name."""
    missing: tuple[Kind, ...]
    """Kinds that Bayplan reads and the server does not offer."""
    writable: frozenset[tuple[str, str]]
    """Every (apiVersion, plural) that was found, including resources that Bayplan only writes."""

    def get(self, kind: Kind) -> GroupVersionResource | None:
        """Resource to list and watch for a kind, or None when the server does not offer it."""
        return self.resources.get((kind.group, kind.name))

    def offers(self, resource: GroupVersionResource) -> bool:
        return (resource.api_version, resource.plural) in self.writable


def readable_versions(kind: Kind) -> tuple[str, ...]:
    """Versions of a kind that Bayplan can read, best first."""
    return kind.versions + _EXTRA_READ_VERSIONS.get(kind.group, ())


async def discover(
    transport: Transport, kinds: Iterable[Kind] = KINDS, also: Iterable[GroupVersionResource] = ()
) -> ServedResources:
    """Discover these kinds, and other resources that Bayplan writes (`also`)."""
    kinds, also = tuple(kinds), tuple(also)
    wanted = {(kind.group, version) for kind in kinds for version in readable_versions(kind)}
    wanted |= {(each.group, each.version) for each in also}
    groups = {(group.name, each.version) for group in await server_groups(transport) for each in group.versions}
    present = sorted(pair for pair in wanted if pair[0] == "" or pair in groups)
    answers = await asyncio.gather(*(_plurals(transport, group, version) for group, version in present))
    plurals = dict(zip(present, answers, strict=True))
    resources: dict[tuple[str, str], GroupVersionResource] = {}
    for kind in kinds:
        offered = [
            version for version in readable_versions(kind) if kind.plural in plurals.get((kind.group, version), ())
        ]
        if offered:
            resources[kind.group, kind.name] = GroupVersionResource(
                kind.group, offered[0], kind.plural, kind.namespaced, kind
            )
    missing = tuple(kind for kind in kinds if (kind.group, kind.name) not in resources)
    found = {(_group_version(*pair), plural) for pair, names in plurals.items() for plural in names}
    version = await get_document(transport, "/version", _ServerVersion)
    return ServedResources(version.git_version, resources, missing, frozenset(found))


async def _plurals(transport: Transport, group: str, version: str) -> frozenset[str]:
    try:
        return frozenset(each.name for each in await server_resources(transport, group, version))
    except NotFound:
        return frozenset()  # an aggregated API group whose server is unavailable, or a CRD that was just deleted


def _group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version
