"""Handler chain: authenticates and authorizes each request, then passes it to its handler.

`HttpServer` and `InProcessServer` call it. Requests for objects go to `resource_handlers`; discovery, OpenAPI, health
and version are served here. Cost: two dictionary lookups and a path split, without the handler.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from bayplan.apiserver import api_errors
from bayplan.apiserver.auth.authentication import RequestAuthenticator, parse_impersonation
from bayplan.apiserver.auth.rbac import AuthorizationAttributes, RbacAuthorizer
from bayplan.apiserver.content_negotiation import negotiate_media_type
from bayplan.apiserver.http.discovery import AGGREGATED, Discovery
from bayplan.apiserver.http.openapi_documents import OpenApiDocuments
from bayplan.apiserver.http.resource_handlers import ResourceHandlers
from bayplan.apiserver.http.responses import (
    ApiResponse,
    WatchResponse,
    not_found_response,
    pretty_json_response,
    text_response,
)
from bayplan.apiserver.http.server import RawRequest
from bayplan.apiserver.requests import (
    RequestUser,
    ResourcePath,
    ResourceRequest,
    parse_query,
    parse_resource_path,
    request_verb,
)
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource, Tree

KUBERNETES_VERSION = "v1.36.4"
"""The Kubernetes release whose responses this server reproduces."""
_HEALTH = ("/healthz", "/livez", "/readyz")
_SINGLE_CHECKS = tuple(f"{path}/" for path in _HEALTH)
_CHECKS = ("ping", "etcd")
"""Health checks. `etcd` is the store; monitoring knows this name from kube-apiserver."""


@dataclass(slots=True)
class HandlerChain:
    authenticator: RequestAuthenticator
    authorizer: RbacAuthorizer
    resources: ResourceRegistry
    discovery: Discovery
    openapi: OpenApiDocuments
    resource_handlers: ResourceHandlers

    async def __call__(self, raw: RawRequest) -> ApiResponse | WatchResponse:
        path = raw.path.rstrip("/") or "/"
        user = self._authenticate(raw)
        if (response := self._public_response(raw.method, path, raw.query)) is not None:
            return response
        resource_path = parse_resource_path(path)
        if resource_path is not None and (resource_path.plural or resource_path.name):
            return await self._handle_resource(raw, user, resource_path)
        return self._handle_non_resource(raw, user, path)

    def _authenticate(self, raw: RawRequest) -> RequestUser:
        user = self.authenticator.authenticate(
            raw.headers.get("Authorization", ""), self.authenticator.certificate_user(raw.certificate)
        )
        if "Impersonate-User" not in raw.headers and "Impersonate-Group" not in raw.headers:
            return user
        headers = {key.lower(): value for key, value in raw.headers.items()}
        impersonation = parse_impersonation(headers, raw.headers.getall("Impersonate-Group", []))
        if impersonation is None:
            return user
        for kind, name in impersonation.permissions:
            attributes = AuthorizationAttributes("impersonate", resource=kind, name=name)
            if not self.authorizer.allows(user, attributes):
                subject = f'{kind} "{name}" is forbidden: {attributes.denial_message(user)}'
                raise api_errors.StatusError(403, "Forbidden", subject, {"name": name, "kind": kind})
        return impersonation.user

    def _public_response(self, method: str, path: str, query: str) -> ApiResponse | None:
        """Responses that need no authorization: health and version."""
        if path in _HEALTH:
            return _health_response(path[1:], parse_qs(query, keep_blank_values=True), self._failures())
        if path == "/version" and method == "GET":
            return pretty_json_response(version_info())
        return None

    def _failures(self) -> dict[str, str]:
        failure = self.resource_handlers.store.failure
        return {} if failure is None else {"etcd": str(failure)}

    # Objects

    async def _handle_resource(
        self, raw: RawRequest, user: RequestUser, path: ResourcePath
    ) -> ApiResponse | WatchResponse:
        query = parse_query(raw.query)
        verb = request_verb(raw.method, path, query)
        resource = self.resources.find(path.group, path.version, path.plural)
        self._authorize(user, verb, path, resource)
        if resource is None:
            return self._unknown_resource(path.group)
        if resource.custom and resource.namespaced and not path.namespace and verb not in ("list", "watch"):
            return not_found_response()
        _check_served(resource, path, verb)
        request = ResourceRequest(verb, resource, path, query, user, raw.headers)
        if not resource.deprecated:
            return await self.resource_handlers.handle(request, raw.body)
        return await self._handle_deprecated(request, raw)

    async def _handle_deprecated(self, request: ResourceRequest, raw: RawRequest) -> ApiResponse | WatchResponse:
        """Adds the deprecation warning of the version to the response or to the refusal."""
        warning = request.resource.deprecated
        try:
            response = await self.resource_handlers.handle(request, raw.body)
        except api_errors.StatusError as refusal:
            refusal.warnings = [warning, *refusal.warnings]
            raise
        response.warnings = [warning, *response.warnings]
        return response

    def _authorize(self, user: RequestUser, verb: str, path: ResourcePath, resource: ServedResource | None) -> None:
        if user.is_master:
            return
        # A namespace belongs to itself: a right in the namespace also covers the namespace object.
        namespace = path.name if path.plural == "namespaces" and not path.group else path.namespace
        attributes = AuthorizationAttributes(verb, path.group, path.plural, path.subresource, namespace, path.name)
        if not self.authorizer.allows(user, attributes):
            subject = resource or ServedResource(path.group, path.version, "", path.plural, "")
            name = path.name if verb != "create" or path.subresource else ""
            raise api_errors.forbidden(subject, name, attributes.denial_message(user))

    # Other paths

    def _handle_non_resource(self, raw: RawRequest, user: RequestUser, path: str) -> ApiResponse:
        if not self.authorizer.allows(user, AuthorizationAttributes(raw.method.lower(), path=path)):
            raise api_errors.forbidden_url(user.name, raw.method.lower(), path)
        if path.startswith("/openapi/"):
            requested_hash = parse_query(raw.query).get("hash", "")
            return self.openapi.respond(path, requested_hash, raw.headers.get("Accept", ""))
        if (document := self.discovery.plain(path)) is not None:
            media_type = negotiate_media_type(raw.headers.get("Accept", ""))
            if path in ("/api", "/apis") and media_type.aggregated:
                return _with_etag(*self.discovery.aggregated_document(path), raw.headers)
            response = ApiResponse(document)
            response.headers["Vary"] = "Accept"
            return response
        if path == "/":
            return pretty_json_response({"paths": self.discovery.paths()})
        if path.startswith(_SINGLE_CHECKS):
            return _single_check_response(path.split("/", 2)[2], self._failures())
        resource_path = parse_resource_path(f"{path}/any")  # a version that the group does not have
        return not_found_response() if resource_path is None else self._unknown_resource(resource_path.group)

    def _unknown_resource(self, group: str) -> ApiResponse:
        """404: a Status for groups of Kubernetes, Go's plain text for all other groups."""
        if self.resources.is_built_in(group):
            raise api_errors.unknown_resource()
        return not_found_response()


def _check_served(resource: ServedResource, path: ResourcePath, verb: str) -> None:
    """Refuse verbs, scopes and sub-resources that the kind does not have."""
    if path.namespace and not resource.namespaced:
        raise api_errors.unknown_resource()
    if resource.namespaced and not path.namespace:
        if path.name:
            raise api_errors.unknown_resource()
        if verb not in ("list", "watch"):  # no write covers all namespaces
            raise api_errors.method_not_allowed()
    if not path.subresource:
        needs_name = {"create": False, "update": True, "patch": True}.get(verb, bool(path.name))
        if verb not in resource.verbs or needs_name != bool(path.name):
            raise api_errors.method_not_allowed()
        return
    sub = resource.subresource(path.subresource)
    if sub is None:
        raise api_errors.unknown_resource()
    if verb not in sub.verbs:
        raise api_errors.method_not_allowed()


def _health_response(name: str, query: Mapping[str, list[str]], failures: Collection[str]) -> ApiResponse:
    """The response of /healthz, /livez and /readyz. It is public, so it omits why a check fails."""
    excluded = set(query.get("exclude", ()))
    lines = [_health_line(check, excluded, failures) for check in _CHECKS]
    if unknown := sorted(excluded.difference(_CHECKS)):
        names = ",".join(f'"{each}"' for each in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    if not excluded.issuperset(failures):
        return text_response("\n".join([*lines, f"{name} check failed", ""]), 500)
    return text_response("\n".join([*lines, f"{name} check passed", ""]) if "verbose" in query else "ok")


def _health_line(check: str, excluded: Collection[str], failures: Collection[str]) -> str:
    if check in excluded:
        return f"[+]{check} excluded: ok"
    return f"[-]{check} failed: reason withheld" if check in failures else f"[+]{check} ok"


def _single_check_response(name: str, failures: Mapping[str, str]) -> ApiResponse:
    if name in failures:
        return text_response(f"internal server error: {failures[name]}\n", 500)
    return text_response("ok") if name in _CHECKS else not_found_response()


def version_info() -> Tree:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": KUBERNETES_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{sys.platform}/{platform.machine()}",
    }


def _with_etag(body: bytes, etag: str, headers: Mapping[str, str]) -> ApiResponse:
    quoted = f'"{etag}"'
    response = ApiResponse(body, content_type=AGGREGATED)
    response.headers |= {"Etag": quoted, "Vary": "Accept"}
    if headers.get("If-None-Match") == quoted:
        response.body, response.code = b"", 304
    return response
