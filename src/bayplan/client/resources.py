"""Under which path does an object lie? Groups, versions and plurals as URLs.

Asked for every request; costs a format. `KINDS` of `bayplan.objects` says what we read; what we only write is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, urlencode

from bayplan.objects.kinds import Kind


@dataclass(frozen=True, slots=True)
class GroupVersionResource:
    """One kind as one server offers it: the version is chosen."""

    group: str
    version: str
    plural: str
    namespaced: bool = True
    kind: Kind | None = None
    """How its objects are read, when they are."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, of a collection (no name), or of a collection across namespaces (no namespace)."""
        path = (
            f"{self.root}/namespaces/{_path_segment(namespace)}/{self.plural}"
            if namespace
            else f"{self.root}/{self.plural}"
        )
        if name:
            path = f"{path}/{_path_segment(name)}"
        return f"{path}/{subresource}" if subresource else path

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))  # who writes asks for its decoder each time

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _path_segment(name: str) -> str:
    """Names in Kubernetes need no quoting; a name from elsewhere must not become a path."""
    return name if name.isascii() and name.replace("-", "").replace(".", "").isalnum() else quote(name, safe="")


def query(options: Mapping[str, str | int | bool | None]) -> str:
    """The query string for what is set, with its question mark."""
    texts = {"bool": lambda value: "true" if value else "false"}
    given = {key: texts.get(type(value).__name__, str)(value) for key, value in options.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


@cache
def resource_of(kind: Kind, version: str = "") -> GroupVersionResource:
    """A kind at one of its versions, the best when none is named."""
    return GroupVersionResource(kind.group, version or kind.versions[0], kind.plural, kind.namespaced, kind)


EVENTS = GroupVersionResource("events.k8s.io", "v1", "events")
CORE_EVENTS = GroupVersionResource("", "v1", "events")
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
PODS = GroupVersionResource("", "v1", "pods")
TOKEN_REVIEWS = GroupVersionResource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
