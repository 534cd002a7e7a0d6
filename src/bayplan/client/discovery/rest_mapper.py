"""REST mapper: finds the resource that the user means by `po`, `deploy` or `deployments.apps`.

Commands build it once. Cost: two requests where the server has aggregated discovery (`apidiscovery.k8s.io`), else one
per group. It contains the kinds of CustomResourceDefinitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches

import msgspec

from bayplan.client.discovery.discovery_client import ApiGroup, get_document, server_resources
from bayplan.client.http.transport import Transport
from bayplan.client.resources import GroupVersionResource
from bayplan.errors import BayplanError, NotFound, ServerError, UsageError
from bayplan.objects.meta import ObjectMeta

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


class NoKindMatch(BayplanError):
    """The server has no kind of this name."""


class KindMapping(msgspec.Struct, frozen=True):
    """One kind as the server offers it, with its singular, short names and categories."""

    resource: GroupVersionResource
    kind: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        singular = self.singular or self.kind.lower()
        return (self.resource.plural, singular, *self.short_names)

    def matches_name(self, name: str) -> str:
        """Name of an object as kubectl prints it: `deployment.apps/web`."""
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"{self.singular or self.kind.lower()}{group}/{name}"


@dataclass(frozen=True, slots=True)
class RestMapper:
    """All kinds of a server, in its preferred versions."""

    kinds: tuple[KindMapping, ...]
    _by_name: dict[str, list[KindMapping]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.kinds:
            for name in dict.fromkeys(each.names):
                self._by_name.setdefault(name, []).append(each)

    def __iter__(self) -> Iterator[KindMapping]:
        return iter(self.kinds)

    def matching_kinds(self, word: str) -> list[KindMapping]:
        """Find the kinds of a word: one kind, or all kinds of a category such as `all`."""
        name, _, group = word.lower().partition(".")
        found = self._by_name.get(name, [])
        if group:
            found = [each for each in found if _in_group(each.resource, group)]
        if found:
            return found[:1]  # the first group with the name, as in kubectl
        members = [each for each in self.kinds if word.lower() in each.categories and "list" in each.verbs]
        if members:
            return members
        near = get_close_matches(word.lower(), self._by_name, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`bayplan get crd` lists the custom kinds"
        raise NoKindMatch(f'the server has no kind "{word}"; {hint}')

    def find_kind(self, word: str) -> KindMapping:
        """Find the only kind of a word."""
        found = self.matching_kinds(word)
        if len(found) > 1:
            raise UsageError(f'"{word}" is several kinds; name one of {", ".join(each.names[0] for each in found)}')
        return found[0]

    def kind_of_manifest(self, api_version: str, kind: str) -> KindMapping | None:
        """Find the kind of a manifest, in the version of the manifest."""
        group, _, version = api_version.rpartition("/")
        for each in self.kinds:
            resource = each.resource
            if (resource.group, each.kind) == (group, kind):
                versioned = GroupVersionResource(group, version, resource.plural, resource.namespaced, resource.kind)
                return msgspec.structs.replace(each, resource=versioned)
        return None


def _in_group(resource: GroupVersionResource, word: str) -> bool:
    """Match `apps`, or `v1.apps` as kubectl does."""
    return word in (resource.group, f"{resource.version}.{resource.group}")


async def discover_rest_mapper(transport: Transport) -> RestMapper:
    core, named = await asyncio.gather(_discover(transport, "/api"), _discover(transport, "/apis"))
    return RestMapper((*core, *named))


class _ResponseKind(msgspec.Struct, frozen=True):
    kind: str = ""


class _AggregatedResource(msgspec.Struct, frozen=True, rename="camel"):
    resource: str = ""
    response_kind: _ResponseKind = _ResponseKind()
    scope: str = ""
    singular_resource: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()


class _AggregatedVersion(msgspec.Struct, frozen=True):
    version: str = ""
    resources: tuple[_AggregatedResource, ...] = ()


class _AggregatedGroup(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    versions: tuple[_AggregatedVersion, ...] = ()


class _DiscoveryDocument(msgspec.Struct, frozen=True):
    """Both forms of discovery: `items` if aggregated, else `groups` or `versions` to request next."""

    kind: str = ""
    items: tuple[_AggregatedGroup, ...] = ()
    groups: tuple[ApiGroup, ...] = ()
    versions: tuple[str, ...] = ()


async def _discover(transport: Transport, path: str) -> list[KindMapping]:
    document = await get_document(transport, path, _DiscoveryDocument, accept=_AGGREGATED)
    if document.kind == "APIGroupDiscoveryList":
        return list(_aggregated(document.items))
    groups = [("", version) for version in document.versions] if path == "/api" else []
    groups += [(group.name, group.preferred_version.version) for group in document.groups]
    found = await asyncio.gather(*(_plain(transport, group, version) for group, version in groups))
    return [kind for kinds in found for kind in kinds]


def _aggregated(groups: Iterable[_AggregatedGroup]) -> Iterator[KindMapping]:
    for group in groups:
        seen: set[str] = set()
        for version in group.versions:  # the preferred version first; a kind may exist in a later version only
            for each in version.resources:
                if each.resource in seen:
                    continue
                seen.add(each.resource)
                resource = GroupVersionResource(
                    group.metadata.name, version.version, each.resource, each.scope == "Namespaced"
                )
                yield KindMapping(
                    resource,
                    each.response_kind.kind,
                    each.singular_resource,
                    each.short_names,
                    each.categories,
                    each.verbs,
                )


async def _plain(transport: Transport, group: str, version: str) -> list[KindMapping]:
    try:
        found = await server_resources(transport, group, version)
    except (NotFound, ServerError):
        return []  # an aggregated API group whose server is unavailable
    return [
        KindMapping(
            GroupVersionResource(group, version, each.name, each.namespaced),
            each.kind,
            each.singular_name,
            each.short_names,
            each.categories,
            each.verbs or (),
        )
        for each in found
    ]
