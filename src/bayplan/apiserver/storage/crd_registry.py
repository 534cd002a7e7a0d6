"""Kinds of CustomResourceDefinitions.

The kinds of a definition are served from its commit until its deletion; their objects are deleted with it. The store
calls this module for every committed change of a definition. Cost: indexing all kinds anew, well under a millisecond.
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
    """Keeps the served kinds equal to the stored definitions."""

    def __init__(self, store: Store, resources: ResourceRegistry) -> None:
        self._store = store
        self._resources = resources
        for entry in store.committed_objects(CRD_RESOURCE).entries():
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
        resources = tuple(crd_resources(tree))
        self._resources.add(tree["metadata"]["name"], resources)
        stored = next((each for each in resources if each.version == _storage_version(tree)), None)
        if stored is not None:
            self._store.committed_objects(stored.storage).extract = field_extractor(stored)


def crd_resources(tree: Tree) -> Iterator[ServedResource]:
    """The kinds of a definition, one for each served version."""
    spec, names = tree["spec"], _names(tree)
    has_other_versions = len(spec["versions"]) > 1
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
            has_other_versions=has_other_versions,
            deprecated=_deprecation(spec, names["kind"], version) if version.get("deprecated") else "",
        )


def _deprecation(spec: Tree, kind: str, version: Tree) -> str:
    """The warning for a deprecated version: its `deprecationWarning`, or a text that names the newest other version."""
    if custom_warning := version.get("deprecationWarning"):
        return str(custom_warning)
    warning = f"{spec['group']}/{version['name']} {kind} is deprecated"
    rank = version_rank(version["name"])
    supported = [each["name"] for each in spec["versions"] if each.get("served") and not each.get("deprecated")]
    newer = sorted((each for each in supported if version_rank(each) < rank), key=version_rank)
    return f"{warning}; use {spec['group']}/{newer[0]} {kind}" if newer else warning


def _names(tree: Tree) -> Tree:
    """The accepted names; a new definition without accepted names has those of its spec."""
    accepted: Tree = (tree.get("status") or {}).get("acceptedNames") or {}
    requested: Tree = tree["spec"]["names"]
    return accepted if accepted.get("plural") and accepted.get("kind") else requested


def _storage_version(tree: Tree) -> str:
    return next((each["name"] for each in tree["spec"]["versions"] if each.get("storage")), "")


def _subresources(kind: str, version: Tree) -> Iterator[Subresource]:
    given = version.get("subresources") or {}
    if given.get("status") is not None:
        yield Subresource("status", kind, _UPDATE_VERBS)
    if given.get("scale") is not None:
        yield Subresource("scale", "Scale", _UPDATE_VERBS, "autoscaling", "v1")
