"""URL paths of API objects: group, version and plural of each resource.

The client formats one path per request. `KINDS` of `bayplan.objects` lists what Bayplan reads; resources that it only
writes are defined here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, urlencode

from bayplan.objects.kinds import Kind


@dataclass(frozen=True, slots=True)
class GroupVersionResource:
    """One kind in the version that is used with one server. The counterpart of `schema.GroupVersionResource`."""

    group: str
    version: str
    plural: str
    namespaced: bool = True
    kind: Kind | None = None
    """How the decoder reads objects of the resource; None when Bayplan only writes them."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of an object, of a collection (no name), or of a collection in all namespaces (no namespace)."""
        path = (
            f"{self.root}/namespaces/{_path_segment(namespace)}/{self.plural}"
            if namespace
            else f"{self.root}/{self.plural}"
        )
        if name:
            path = f"{path}/{_path_segment(name)}"
        return f"{path}/{subresource}" if subresource else path

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))  # each write looks up its decoder by resource

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _path_segment(name: str) -> str:
    """Quote a name for a path. Kubernetes names need no quoting; any other name must not add path segments."""
    return name if name.isascii() and name.replace("-", "").replace(".", "").isalnum() else quote(name, safe="")


def query(options: Mapping[str, str | int | bool | None]) -> str:
    """Build the query string of all options that are not None, with its question mark."""
    formats = {"bool": lambda value: "true" if value else "false"}
    texts = {key: formats.get(type(value).__name__, str)(value) for key, value in options.items() if value is not None}
    return f"?{urlencode(texts)}" if texts else ""


@cache
def resource_of(kind: Kind, version: str = "") -> GroupVersionResource:
    """Resource of a kind in the given version, or in its best version."""
    return GroupVersionResource(kind.group, version or kind.versions[0], kind.plural, kind.namespaced, kind)


EVENTS = GroupVersionResource("events.k8s.io", "v1", "events")
CORE_EVENTS = GroupVersionResource("", "v1", "events")
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
PODS = GroupVersionResource("", "v1", "pods")
TOKEN_REVIEWS = GroupVersionResource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
