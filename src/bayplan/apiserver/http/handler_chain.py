"""Who may have which answer? Every request passes here: recognised, allowed or refused, handed to whoever answers it.

Paths that are about objects go to `endpoints`; discovery, OpenAPI, health and the version are answered here.
Cost: two dictionary lookups and a path split, before the answer itself.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from bayplan.apiserver import api_errors
from bayplan.apiserver.auth.authentication import People, impersonated
from bayplan.apiserver.auth.rbac import Attributes, Roles
from bayplan.apiserver.content_negotiation import wanted
from bayplan.apiserver.http.discovery import AGGREGATED, Discovery
from bayplan.apiserver.http.openapi_documents import OpenApiDocuments
from bayplan.apiserver.http.resource_handlers import Endpoints
from bayplan.apiserver.http.responses import (
    Reply,
    Stream,
    indented_reply,
    page_not_found,
    text_reply,
)
from bayplan.apiserver.http.server import Raw
from bayplan.apiserver.requests import (
    Ask,
    ResourcePath,
    User,
    query_of,
    resource_path,
    verb_of,
)
from bayplan.apiserver.resources.kinds import Resource, Resources, Tree

FOLLOWED = "v1.36.4"
"""The release of Kubernetes whose answers these are."""
_HEALTH = ("/healthz", "/livez", "/readyz")
_SINGLE_CHECKS = tuple(f"{path}/" for path in _HEALTH)
_CHECKS = ("ping", "etcd")
"""What is looked at: that it answers, and its store, which has the name that monitoring knows from kube-apiserver."""


@dataclass(slots=True)
class Gateway:
    """The door of one cluster."""

    people: People
    roles: Roles
    resources: Resources
    discovery: Discovery
    openapi: OpenApiDocuments
    endpoints: Endpoints

    async def __call__(self, raw: Raw) -> Reply | Stream:
        path = raw.path.rstrip("/") or "/"
        user = self._who(raw)
        if (open_to_all := self._open_answer(raw.method, path, raw.query)) is not None:
            return open_to_all
        about = resource_path(path)
        if about is not None and (about.plural or about.name):
            return await self._about_objects(raw, user, about)
        return self._about_the_server(raw, user, path)

    def _who(self, raw: Raw) -> User:
        user = self.people.who(raw.headers.get("Authorization", ""), self.people.of_certificate(raw.certificate))
        if "Impersonate-User" not in raw.headers and "Impersonate-Group" not in raw.headers:
            return user
        headers = {key.lower(): value for key, value in raw.headers.items()}
        acting = impersonated(headers, raw.headers.getall("Impersonate-Group", []))
        if acting is None:
            return user
        for kind, name in acting.names:
            asked = Attributes("impersonate", resource=kind, name=name)
            if not self.roles.allows(user, asked):
                subject = f'{kind} "{name}" is forbidden: {asked.refusal(user)}'
                raise api_errors.Refusal(403, "Forbidden", subject, {"name": name, "kind": kind})
        return acting.user

    def _open_answer(self, method: str, path: str, query: str) -> Reply | None:
        """What everybody may know."""
        if path in _HEALTH:
            return _health(path[1:], parse_qs(query, keep_blank_values=True), self._failures())
        if path == "/version" and method == "GET":
            return indented_reply(version_info())
        return None

    def _failures(self) -> dict[str, str]:
        """The health checks that fail, with the reason."""
        failure = self.endpoints.store.failure
        return {} if failure is None else {"etcd": str(failure)}

    # Objects.

    async def _about_objects(self, raw: Raw, user: User, path: ResourcePath) -> Reply | Stream:
        query = query_of(raw.query)
        verb = verb_of(raw.method, path, query)
        resource = self.resources.find(path.group, path.version, path.plural)
        self._allow(user, verb, path, resource)
        if resource is None:
            return self._nothing_there(path.group)
        if resource.custom and resource.namespaced and not path.namespace and verb not in ("list", "watch"):
            return page_not_found()
        _check_served(resource, path, verb)
        ask = Ask(verb, resource, path, query, user, raw.headers)
        if not resource.deprecated:
            return await self.endpoints.answer(ask, raw.body)
        return await self._with_farewell(ask, raw)

    async def _with_farewell(self, ask: Ask, raw: Raw) -> Reply | Stream:
        """The answer, or the refusal, and a word about a version that is to go."""
        farewell = ask.resource.deprecated
        try:
            reply = await self.endpoints.answer(ask, raw.body)
        except api_errors.Refusal as refusal:
            refusal.warnings = [farewell, *refusal.warnings]
            raise
        reply.warnings = [farewell, *reply.warnings]
        return reply

    def _allow(self, user: User, verb: str, path: ResourcePath, resource: Resource | None) -> None:
        if user.is_master:
            return
        # A namespace is in itself, so that who may do something there may do it to the namespace too.
        namespace = path.name if path.plural == "namespaces" and not path.group else path.namespace
        asked = Attributes(verb, path.group, path.plural, path.subresource, namespace, path.name)
        if not self.roles.allows(user, asked):
            subject = resource or Resource(path.group, path.version, "", path.plural, "")
            name = path.name if verb != "create" or path.subresource else ""
            raise api_errors.forbidden(subject, name, asked.refusal(user))

    # Everything else.

    def _about_the_server(self, raw: Raw, user: User, path: str) -> Reply:
        if not self.roles.allows(user, Attributes(raw.method.lower(), path=path)):
            raise api_errors.forbidden_path(user.name, raw.method.lower(), path)
        if path.startswith("/openapi/"):
            asked_hash = query_of(raw.query).get("hash", "")
            return self.openapi.answer(path, asked_hash, raw.headers.get("Accept", ""))
        if (document := self.discovery.plain(path)) is not None:
            form = wanted(raw.headers.get("Accept", ""))
            if path in ("/api", "/apis") and form.aggregated:
                return _with_etag(*self.discovery.aggregated(path), raw.headers)
            reply = Reply(document)
            reply.headers["Vary"] = "Accept"
            return reply
        if path == "/":
            return indented_reply({"paths": self.discovery.paths()})
        if path.startswith(_SINGLE_CHECKS):
            return _single_check(path.split("/", 2)[2], self._failures())
        about = resource_path(f"{path}/any")  # a version that its group does not have
        return page_not_found() if about is None else self._nothing_there(about.group)

    def _nothing_there(self, group: str) -> Reply:
        """Groups of Kubernetes' own say so in words of their own, all others in Go's."""
        if self.resources.is_built_in(group):
            raise api_errors.no_such_resource()
        return page_not_found()


def _check_served(resource: Resource, path: ResourcePath, verb: str) -> None:
    """Refuse what the kind does not have."""
    if path.namespace and not resource.namespaced:
        raise api_errors.no_such_resource()
    if resource.namespaced and not path.namespace:
        if path.name:
            raise api_errors.no_such_resource()
        if verb not in ("list", "watch"):  # nobody writes, or clears, all namespaces at once
            raise api_errors.method_not_allowed()
    if not path.subresource:
        needs_name = {"create": False, "update": True, "patch": True}.get(verb, bool(path.name))
        if verb not in resource.verbs or needs_name != bool(path.name):
            raise api_errors.method_not_allowed()
        return
    sub = resource.subresource(path.subresource)
    if sub is None:
        raise api_errors.no_such_resource()
    if verb not in sub.verbs:
        raise api_errors.method_not_allowed()


def _health(name: str, query: Mapping[str, list[str]], failures: Collection[str]) -> Reply:
    """The answer of /healthz, /livez and /readyz. It is public, so it leaves out why a check fails."""
    left_out = set(query.get("exclude", ()))
    lines = [_health_line(check, left_out, failures) for check in _CHECKS]
    if unknown := sorted(left_out.difference(_CHECKS)):
        names = ",".join(f'"{each}"' for each in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    if not left_out.issuperset(failures):
        return text_reply("\n".join([*lines, f"{name} check failed", ""]), 500)
    return text_reply("\n".join([*lines, f"{name} check passed", ""]) if "verbose" in query else "ok")


def _health_line(check: str, left_out: Collection[str], failures: Collection[str]) -> str:
    if check in left_out:
        return f"[+]{check} excluded: ok"
    return f"[-]{check} failed: reason withheld" if check in failures else f"[+]{check} ok"


def _single_check(name: str, failures: Mapping[str, str]) -> Reply:
    if name in failures:
        return text_reply(f"internal server error: {failures[name]}\n", 500)
    return text_reply("ok") if name in _CHECKS else page_not_found()


def version_info() -> Tree:
    major, minor, _ = FOLLOWED.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": FOLLOWED,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{sys.platform}/{platform.machine()}",
    }


def _with_etag(body: bytes, etag: str, headers: Mapping[str, str]) -> Reply:
    quoted = f'"{etag}"'
    reply = Reply(body, content_type=AGGREGATED)
    reply.headers |= {"Etag": quoted, "Vary": "Accept"}
    if headers.get("If-None-Match") == quoted:
        reply.body, reply.code = b"", 304
    return reply
