"""Discovery documents: the served kinds, unaggregated and aggregated.

`HandlerChain` serves them. kubectl caches a document with its ETag, which changes with every CustomResourceDefinition.
Cost: each document is encoded once for each state of the kinds, then served as bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource, Subresource, Tree
from bayplan.apiserver.storage.stored_objects import encode

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Discovery:
    def __init__(self, resources: ResourceRegistry, address: str) -> None:
        self._resources = resources
        self._address = address
        self._version = -1
        self._documents: dict[str, tuple[bytes, str]] = {}

    def aggregated_document(self, root: str) -> tuple[bytes, str]:
        """The aggregated document of `/api` or `/apis`, and its ETag."""
        return self._document(f"aggregated {root}", lambda: self._build_aggregated(core=root == "/api"))

    def plain(self, path: str) -> bytes | None:
        """The unaggregated document of `/api`, `/apis`, a group or a version; None for other paths."""
        parts = path.strip("/").split("/")
        groups = self._resources.groups()
        match parts:
            case ["api"]:
                return self._document(path, self._core_versions)[0]
            case ["apis"]:
                return self._document(path, self._group_list)[0]
            case ["api", version] if version in groups.get("", ()):
                return self._document(path, lambda: self._resource_list("", version))[0]
            case ["apis", group] if group and group in groups:
                return self._document(path, lambda: {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)})[0]
            case ["apis", group, version] if group and version in groups.get(group, ()):
                return self._document(path, lambda: self._resource_list(group, version))[0]
        return None

    def paths(self) -> list[str]:
        """All paths that the root document lists."""
        groups = self._resources.groups()
        found = {"/api", "/apis", "/healthz", "/livez", "/readyz", "/openapi/v2", "/openapi/v3", "/version"}
        for group, versions in groups.items():
            root = f"/apis/{group}" if group else "/api"
            found |= {root, *(f"{root}/{version}" for version in versions)}
        return sorted(found)

    def _document(self, name: str, make: Callable[[], Tree]) -> tuple[bytes, str]:
        if self._version != self._resources.version:
            self._version = self._resources.version
            self._documents.clear()
        if name not in self._documents:
            text = encode(make()) + b"\n"
            self._documents[name] = (text, hashlib.sha256(text).hexdigest().upper())
        return self._documents[name]

    # Unaggregated

    def _core_versions(self) -> Tree:
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}

    def _group_list(self) -> Tree:
        groups = [self._group(name) for name in self._resources.groups() if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _group(self, name: str) -> Tree:
        versions = [{"groupVersion": f"{name}/{each}", "version": each} for each in self._resources.groups()[name]]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def _resource_list(self, group: str, version: str) -> Tree:
        resources: list[Tree] = []
        for resource in sorted(self._resources.of_group(group, version), key=lambda each: each.plural):
            resources.append(_plain(resource))
            resources += [_plain_subresource(resource, each) for each in resource.subresources]
        if not group:  # the core group has no apiVersion here
            return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        name = f"{group}/{version}"
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}

    # Aggregated

    def _build_aggregated(self, *, core: bool) -> Tree:
        items = [
            {
                "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
                "versions": [self._aggregated_version(group, each) for each in versions],
            }
            for group, versions in self._resources.groups().items()
            if (not group) is core
        ]
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}

    def _aggregated_version(self, group: str, version: str) -> Tree:
        found = sorted(self._resources.of_group(group, version), key=lambda each: each.plural)
        return {"version": version, "resources": [_aggregated_resource(each) for each in found], "freshness": "Current"}


def _names(resource: ServedResource) -> Tree:
    names: Tree = {}
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _plain(resource: ServedResource) -> Tree:
    return {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        **_names(resource),
    }


def _plain_subresource(resource: ServedResource, sub: Subresource) -> Tree:
    group_version = {"group": sub.group, "version": sub.version} if sub.group else {}
    return {
        "name": f"{resource.plural}/{sub.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        **group_version,
        "kind": sub.kind,
        "verbs": list(sub.verbs),
    }


def _aggregated_resource(resource: ServedResource) -> Tree:
    document: Tree = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        **_names(resource),
    }
    if resource.subresources:
        document["subresources"] = [_aggregated_subresource(resource, each) for each in resource.subresources]
    return document


def _aggregated_subresource(resource: ServedResource, sub: Subresource) -> Tree:
    group, version = (sub.group, sub.version) if sub.group else (resource.group, resource.version)
    kind = {"group": group, "version": version, "kind": sub.kind}
    return {"subresource": sub.name, "responseKind": kind, "verbs": list(sub.verbs)}
