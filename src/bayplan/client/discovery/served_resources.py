"""Kinds that the server offers, and the version in which Bayplan reads each.

Called once at start, and again to check whether a missing kind has been added. Cost: one request for the groups and one
per group version that Bayplan reads, some ten in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from bayplan.client.http.transport import Transport
from bayplan.client.resources import GroupVersionResource
from bayplan.errors import ApiError, NotFound
from bayplan.objects.kinds import KINDS, Kind

# v1beta1 device objects are read, too: the decoder converts them to v1.
_EXTRA_READ_VERSIONS = {"resource.k8s.io": ("v1beta1",)}

T = TypeVar("T")


class _GroupVersionName(msgspec.Struct, frozen=True):
    version: str = ""


class _ApiGroup(msgspec.Struct, frozen=True):
    name: str = ""
    versions: tuple[_GroupVersionName, ...] = ()


class _ApiGroupList(msgspec.Struct, frozen=True):
    groups: tuple[_ApiGroup, ...] = ()


class _ResourceName(msgspec.Struct, frozen=True):
    name: str = ""


class _ResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_ResourceName, ...] = ()


class _ServerVersion(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


@dataclass(frozen=True, slots=True)
class ServedResources:
    """Result of one discovery."""

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
    groups = await _groups(transport)
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
    return ServedResources(await _server_version(transport), resources, missing, frozenset(found))


async def _groups(transport: Transport) -> set[tuple[str, str]]:
    answer = await transport.request("GET", "/apis")
    groups = _read(answer.body, _ApiGroupList, "/apis").groups
    return {(group.name, each.version) for group in groups for each in group.versions}


async def _plurals(transport: Transport, group: str, version: str) -> frozenset[str]:
    path = GroupVersionResource(group, version, "").root
    try:
        answer = await transport.request("GET", path)
    except NotFound:
        return frozenset()  # an aggregated API group whose server is unavailable, or a CRD that was just deleted
    return frozenset(each.name for each in _read(answer.body, _ResourceList, path).resources)


async def _server_version(transport: Transport) -> str:
    answer = await transport.request("GET", "/version")
    return _read(answer.body, _ServerVersion, "/version").git_version


def _read(body: bytes, struct: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(body, type=struct)
    except msgspec.DecodeError:
        raise ApiError(f"GET {path} did not answer as an API server does; check the server's address") from None


def _group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version
