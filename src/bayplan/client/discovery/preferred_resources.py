"""Which kinds does this server have, all of them? For those who clean up after every kind, built in or not.

Asked at start and whenever a CustomResourceDefinition changes: one request for the groups and one for each of them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from bayplan.client import Client, Resource
from bayplan.errors import ApiError
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject

log = logging.getLogger(__name__)

_EVENTS = {("", "events"), ("events.k8s.io", "events")}
"""Nobody owns through events, and there are many of them."""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str = ""
    version: str = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    versions: tuple[_Version, ...] = ()
    preferred_version: _Version = _Version()


class _Groups(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...] = ()


class _Offer(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _Offers(msgspec.Struct, frozen=True):
    resources: tuple[_Offer, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind, and what may be done with its objects."""

    resource: Resource
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class KindsThere:
    """Everything that the server keeps; events left out."""

    offers: tuple[Offer, ...] = ()
    failed: tuple[str, ...] = ()
    """Groups that did not answer."""

    def watchable(self) -> list[Resource]:
        """What can be watched and deleted."""
        wanted = {"list", "watch", "delete"}
        return [each.resource for each in self.offers if wanted <= each.verbs]

    def find(self, api_version: str, kind: str) -> Resource | None:
        """The resource of an object that says it is of this version and kind."""
        group = api_version.rpartition("/")[0]
        for each in self.offers:
            known = each.resource.kind
            if known is not None and (known.group, known.name) == (group, kind):
                return each.resource
        return None


async def kinds_there(client: Client) -> KindsThere:
    """Ask the server for every kind, each in the version that the server prefers.

    A server that has just started lists only some of its groups: `ServerError` is raised until it is ready.
    """
    await client.check_ready()
    groups = [("", "v1")]
    answer = msgspec.json.decode((await client.transport.request("GET", "/apis")).body, type=_Groups)
    for group in answer.groups:
        preferred = group.preferred_version.version
        versions = [preferred, *(each.version for each in group.versions if each.version != preferred)]
        groups += [(group.name, version) for version in versions]
    answers = await asyncio.gather(*(_offers(client, *each) for each in groups))
    found: dict[tuple[str, str], Offer] = {}
    failed = []
    for (group_name, version), offers in zip(groups, answers, strict=True):
        if offers is None:
            failed.append(f"{group_name}/{version}")
            continue
        for offer in offers:
            name = (group_name, offer.name)
            if "/" not in offer.name and name not in _EVENTS and name not in found:
                found[name] = _offer(group_name, version, offer)
    return KindsThere(tuple(found.values()), tuple(failed))


def _offer(group: str, version: str, offer: _Offer) -> Offer:
    kind = Kind(offer.kind, offer.name, group, KubeObject, namespaced=offer.namespaced, versions=(version,))
    return Offer(Resource(group, version, offer.name, offer.namespaced, kind), frozenset(offer.verbs))


async def _offers(client: Client, group: str, version: str) -> tuple[_Offer, ...] | None:
    path = Resource(group, version, "").root
    try:
        return msgspec.json.decode((await client.transport.request("GET", path)).body, type=_Offers).resources
    except (ApiError, msgspec.DecodeError) as fault:
        log.info("%s does not say what it has: %s", path, fault)
        return None
