"""Classes of API requests, by which faults choose what they hit."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    slot: str
    method: str
    path: str
    resource: str
    name: str
    sub: str
    is_watch: bool

    @property
    def is_write(self) -> bool:
        return self.method in WRITES

    @property
    def target(self) -> str:
        """The class of the request, one of `TARGETS`; "other" for the rest."""
        if not self.is_write:
            return "watch" if self.is_watch else ("list" if not self.name else "get")
        return _write_target(self)


WRITE_TARGETS = (
    "binding",
    "bindrequest-create",
    "bindrequest-status",
    "bindrequest-delete",
    "pod-delete",
    "eviction",
    "pod-status",
    "pod-patch",
    "reservation",
    "claim-status",
    "volume",
    "configmap",
    "podgroup-status",
    "queue-status",
    "lease",
    "event",
)
TARGETS = (*WRITE_TARGETS, "watch", "list", "get")


def _write_target(request: ApiRequest) -> str:
    resource, sub, method = request.resource, request.sub, request.method
    if resource == "pods":
        if sub in ("binding", "eviction"):
            return sub
        if sub == "status":
            return "pod-status"
        if "/namespaces/kai-resource-reservation/" in request.path:
            return "reservation"
        return {"DELETE": "pod-delete", "PATCH": "pod-patch"}.get(method, "other")
    if resource == "bindrequests":
        if sub == "status":
            return "bindrequest-status"
        return {"POST": "bindrequest-create", "DELETE": "bindrequest-delete"}.get(method, "other")
    if resource in ("persistentvolumes", "persistentvolumeclaims"):
        return "volume"
    return {
        "resourceclaims": "claim-status",
        "configmaps": "configmap",
        "podgroups": "podgroup-status",
        "queues": "queue-status",
        "leases": "lease",
        "events": "event",
    }.get(resource, "other")


def classify(slot: str, method: str, path: str) -> ApiRequest:
    parts = urlsplit(path)
    query = parse_qs(parts.query)
    steps = [each for each in parts.path.split("/") if each]
    # /api/v1/… or /apis/group/version/…, then perhaps namespaces/name
    rest = steps[2:] if steps[:1] == ["api"] else steps[3:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    resource, name, sub = (*rest, "", "", "")[:3]
    is_watch = query.get("watch", ["0"])[0] in ("1", "true")
    return ApiRequest(slot, method, path, resource, name, sub, is_watch)
