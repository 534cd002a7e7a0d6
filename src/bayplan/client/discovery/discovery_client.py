"""Requests of discovery: the groups of a server, and the resources of a group version.

The modules beside this one choose versions from the answers. Cost: one request for each call.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from bayplan.client.http.transport import JSON, Transport
from bayplan.client.resources import GroupVersionResource
from bayplan.errors import ApiError

T = TypeVar("T")


class GroupVersionForDiscovery(msgspec.Struct, frozen=True):
    version: str = ""


class ApiGroup(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    versions: tuple[GroupVersionForDiscovery, ...] = ()
    preferred_version: GroupVersionForDiscovery = GroupVersionForDiscovery()

    @property
    def versions_by_preference(self) -> list[str]:
        """The preferred version, then the other ones in the server's order."""
        return list(dict.fromkeys((self.preferred_version.version, *(each.version for each in self.versions))))


class ApiResource(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    namespaced: bool = False
    singular_name: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] | None = None


class _ApiGroupList(msgspec.Struct, frozen=True):
    groups: tuple[ApiGroup, ...] = ()


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: tuple[ApiResource, ...] = ()


async def server_groups(transport: Transport) -> tuple[ApiGroup, ...]:
    """Get the groups of the server, without the core group."""
    return (await get_document(transport, "/apis", _ApiGroupList)).groups


async def server_resources(transport: Transport, group: str, version: str) -> tuple[ApiResource, ...]:
    """Get the resources of a group version, without subresources."""
    path = GroupVersionResource(group, version, "").root
    found = (await get_document(transport, path, _ApiResourceList)).resources
    return tuple(each for each in found if "/" not in each.name)


async def get_document(transport: Transport, path: str, struct: type[T], *, accept: str = JSON) -> T:
    """Get a discovery document. Raises `ApiError` for anything else."""
    answer = await transport.request("GET", path, accept=accept)
    try:
        return msgspec.json.decode(answer.body, type=struct)
    except msgspec.DecodeError:
        raise ApiError(f"GET {path} did not answer as an API server does; check the server's address") from None
