"""A request as one value: its path, method and parameters.

The HTTP layer creates one for each request; authorization, routing and the handlers read it. The paths are those of
Kubernetes: `/api/v1/...` and `/apis/GROUP/VERSION/...`, then `namespaces/NS/` if present, plural, name, sub-resource.
Cost: one split of the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

import msgspec

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage.reader import parse_bool
from bayplan.codec.field_errors import FieldErrorList

AUTHENTICATED_GROUP = "system:authenticated"
MASTERS_GROUP = "system:masters"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class RequestUser:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_master(self) -> bool:
        return MASTERS_GROUP in self.groups

    def info(self) -> Tree:
        """The user as a UserInfo of the reviews."""
        shown: Tree = {"username": self.name}
        if self.uid:
            shown["uid"] = self.uid
        shown["groups"] = list(self.groups)
        if self.extra:
            shown["extra"] = {key: list(values) for key, values in self.extra.items()}
        return shown


class ResourcePath(msgspec.Struct, frozen=True):
    """The part of a path behind `/api/v1` or `/apis/GROUP/VERSION`."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""


def parse_query(text: str) -> dict[str, str]:
    """The query parameters. Of several with the same name the first is used, as in Go."""
    found: dict[str, str] = {}
    if not text:
        return found
    for key, value in parse_qsl(text, keep_blank_values=True):
        found.setdefault(key, value)
    return found


def parse_resource_path(path: str) -> ResourcePath | None:
    """Parses the path of an object or a collection. Returns None for other paths."""
    parts = path.strip("/").split("/")
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if parts[0] == "api" and len(parts) > 2:
        group, version, parts = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if parts[0] == "namespaces" and not group:
        if len(parts) > 2 and parts[2] not in ("status", "finalize"):
            namespace, parts = parts[1], parts[2:]
    elif parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    count = len(parts)
    name = parts[1] if count > 1 else ""
    sub = parts[2] if count > 2 else ""
    rest = "/".join(filter(None, parts[3:])) if count > 3 else ""
    return ResourcePath(group, version, parts[0], namespace, name, sub, rest)


def request_verb(method: str, path: ResourcePath, query: Mapping[str, str]) -> str:
    """The verb of a request, as in authorization and discovery."""
    if method not in _VERBS:
        raise api_errors.method_not_allowed()
    if path.name or path.subresource:
        return _VERBS[method]
    if method == "GET":
        return "watch" if parse_bool(query.get("watch", "")) else "list"
    return "deletecollection" if method == "DELETE" else _VERBS[method]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    manager: str = ""
    dry_run: bool = False
    validation: str = "Warn"
    force: bool | None = None

    @classmethod
    def of(cls, kind: str, query: Mapping[str, str]) -> WriteOptions:
        """Parses the options. `kind` is the kind in field errors, such as CreateOptions."""
        if not query:
            return _DEFAULT_OPTIONS
        errors = FieldErrorList()
        if (dry := query.get("dryRun", "")) not in ("", "All"):
            errors.unsupported("dryRun", [dry], ("All",))
        if (validation := query.get("fieldValidation", "")) not in ("", "Ignore", "Strict", "Warn"):
            errors.unsupported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn"))
        if len(manager := query.get("fieldManager", "")) > 128:
            errors.too_long("fieldManager", 128)
        if errors:
            raise api_errors.invalid(kind, "meta.k8s.io", "", errors)
        force = parse_bool(query["force"]) if query.get("force") else None
        return cls(manager, dry == "All", validation or "Warn", force)


_DEFAULT_OPTIONS = WriteOptions()


class WriteRequest(msgspec.Struct, frozen=True):
    resource: ServedResource
    namespace: str
    user: RequestUser
    options: WriteOptions
    manager: str = ""
    subresource: str = ""
    request_version: ServedResource | None = None
    """The version of the kind in the body, if it is not the storage version."""
    fields_tracked: bool = False
    """Whether the new state already has its managed fields."""
    warnings: list[str] = msgspec.field(default_factory=list)
    """Texts of `Warning` headers of the response."""


class ResourceRequest(msgspec.Struct, frozen=True):
    verb: str
    resource: ServedResource
    path: ResourcePath
    query: Mapping[str, str]
    user: RequestUser
    headers: Mapping[str, str]

    @property
    def namespace(self) -> str:
        return self.path.namespace

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def manager(self) -> str:
        """The field manager of a write: the parameter, otherwise the program name in the User-Agent."""
        return self.query.get("fieldManager") or self.headers.get("User-Agent", "").partition("/")[0] or "unknown"
