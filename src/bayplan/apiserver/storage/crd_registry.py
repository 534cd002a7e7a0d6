"""Which kinds does a CustomResourceDefinition bring, and since when?

Its kinds are served from the moment it is stored until it is gone; the objects of a kind that is gone go with it. Asked
by the store for every change of a definition. Cost: indexing all kinds anew, well under a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.apiserver.resources.kinds import (
    ALL_VERBS,
    ResourceRegistry,
    ServedResource,
    Subresource,
    Tree,
    version_rank,
)
from bayplan.apiserver.storage.selection_predicate import field_extractor
from bayplan.apiserver.storage.store import CommittedObjects, GroupResource, Store
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent

CRD_RESOURCE: GroupResource = ("apiextensions.k8s.io", "customresourcedefinitions")
_UPDATE_VERBS = ("get", "patch", "update")


class CustomResourceRegistry:
    """Keeps the kinds that are served true to the definitions that are stored."""

    def __init__(self, store: Store, resources: ResourceRegistry) -> None:
        self._store = store
        self._resources = resources
        for entry in store.committed(CRD_RESOURCE).entries():
            self._define(entry.tree())
        store.add_commit_listener(self._on_crd_change)

    def _on_crd_change(self, place: CommittedObjects, change: WatchCacheEvent) -> None:
        if place.name != CRD_RESOURCE:
            return
        if change.type == "DELETED":
            self._resources.remove(change.entry.name)
        else:
            self._define(change.entry.tree())

    def _define(self, tree: Tree) -> None:
        brought = tuple(crd_resources(tree))
        self._resources.add(tree["metadata"]["name"], brought)
        stored = next((each for each in brought if each.version == _storage_version(tree)), None)
        if stored is not None:
            self._store.committed(stored.storage).extract = field_extractor(stored)


def crd_resources(tree: Tree) -> Iterator[ServedResource]:
    """The kinds of a definition, one a version that is served."""
    spec, names = tree["spec"], _names(tree)
    several = len(spec["versions"]) > 1
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        yield ServedResource(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular") or names["kind"].lower(),
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            namespaced=spec.get("scope") == "Namespaced",
            verbs=ALL_VERBS,
            subresources=tuple(_subresources(names["kind"], version)),
            storage_group=spec["group"],
            storage_plural=names["plural"],
            list_kind=names.get("listKind") or f"{names['kind']}List",
            definition=version,
            has_other_versions=several,
            deprecated=_deprecation(spec, names["kind"], version) if version.get("deprecated") else "",
        )


def _deprecation(spec: Tree, kind: str, version: Tree) -> str:
    """What whoever uses a version that is to go is told, in its own words or by naming the newest that stays."""
    if own := version.get("deprecationWarning"):
        return str(own)
    told = f"{spec['group']}/{version['name']} {kind} is deprecated"
    rank = version_rank(version["name"])
    stay = [each["name"] for each in spec["versions"] if each.get("served") and not each.get("deprecated")]
    newer = sorted((each for each in stay if version_rank(each) < rank), key=version_rank)
    return f"{told}; use {spec['group']}/{newer[0]} {kind}" if newer else told


def _names(tree: Tree) -> Tree:
    """The names that were accepted; a definition that just came has only those that it asks for."""
    accepted: Tree = (tree.get("status") or {}).get("acceptedNames") or {}
    asked: Tree = tree["spec"]["names"]
    return accepted if accepted.get("plural") and accepted.get("kind") else asked


def _storage_version(tree: Tree) -> str:
    return next((each["name"] for each in tree["spec"]["versions"] if each.get("storage")), "")


def _subresources(kind: str, version: Tree) -> Iterator[Subresource]:
    given = version.get("subresources") or {}
    if given.get("status") is not None:
        yield Subresource("status", kind, _UPDATE_VERBS)
    if given.get("scale") is not None:
        yield Subresource("scale", "Scale", _UPDATE_VERBS, "autoscaling", "v1")
