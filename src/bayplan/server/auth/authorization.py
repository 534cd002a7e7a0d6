"""May they? Some paths are open to all, masters may do everything, and the API server decides the rest.

Asked for every request. Its answers are kept for ten seconds, yes and no alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bayplan.client import ACCESS_REVIEWS
from bayplan.clock import LoopClock
from bayplan.errors import ServingError
from bayplan.server.auth.authentication import Reviewer, User
from bayplan.server.auth.ttl_cache import Remembered
from bayplan.server.http.requests import Request
from bayplan.server.http.why import asked_about

CACHE_S = 10.0
ALWAYS_ALLOWED = ("/healthz", "/readyz", "/livez")
MASTERS = "system:masters"
_LONGEST_KEY = 10_000
"""Questions longer than this are not remembered: their askers would choose how much memory we need."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether, and why."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """Something that is done to objects: `Asked("list", "pods", "default")`. No namespace: in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def attributes(self) -> dict[str, Any]:
        named = {"verb": self.verb, "resource": self.resource, "namespace": self.namespace, "name": self.name}
        return {"resourceAttributes": {key: value for key, value in named.items() if value}}


class _Status(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class _AccessReview(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class Authorizer:
    """Decides about paths. Without a reviewer only open paths and masters get in."""

    def __init__(
        self,
        reviewer: Reviewer | None,
        clock: LoopClock,
        *,
        always_allowed: Sequence[str] = ALWAYS_ALLOWED,
        allowed_cache_s: float = CACHE_S,
        denied_cache_s: float = CACHE_S,
    ) -> None:
        self._reviewer = reviewer
        self._paths, self._prefixes = _paths(always_allowed)
        self._verdicts: Remembered[Verdict] = Remembered(
            clock, lambda verdict: allowed_cache_s if verdict.allowed else denied_cache_s
        )

    async def verdict(self, user: User, request: Request) -> Verdict:
        """Whether this user may have this path. `ApiError` when the API server cannot be asked."""
        path = request.path.removeprefix("/")
        if MASTERS in user.groups or path in self._paths or path.startswith(self._prefixes):
            return Verdict(True)
        if self._reviewer is None:
            return Verdict(False)
        key = user, request.method, request.path
        if len(repr(key)) > _LONGEST_KEY:
            return await self._review(user, request)
        return await self._verdicts.get(key, lambda: self._review(user, request))

    async def may(self, user: User, asked: Asked) -> bool:
        """Whether this user may do that to objects. `ApiError` when the API server cannot be asked."""
        if MASTERS in user.groups:
            return True
        if self._reviewer is None:
            return False
        verdict = await self._verdicts.get((user, asked), lambda: self._judged(user, asked.attributes()))
        return verdict.allowed

    async def _review(self, user: User, request: Request) -> Verdict:
        return await self._judged(user, _question(request))

    async def _judged(self, user: User, attributes: Mapping[str, Any]) -> Verdict:
        assert self._reviewer is not None
        spec = {
            **attributes,
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
        }
        body = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
        status = msgspec.json.decode(await self._reviewer.create(ACCESS_REVIEWS, body), type=_AccessReview).status
        return Verdict(status.allowed and not status.denied, status.reason)


def _question(request: Request) -> dict[str, dict[str, str]]:
    """What the API server is asked: whether they may have the path, or get the pod that it is about."""
    pod = asked_about(request.path)
    if pod is None:
        return {"nonResourceAttributes": {"path": request.path, "verb": request.method.lower()}}
    attributes = {"namespace": pod.namespace, "verb": "get", "version": "v1", "resource": "pods", "name": pod.name}
    return {"resourceAttributes": attributes}


def _paths(always_allowed: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Whole paths, and beginnings of paths: those that end with an asterisk."""
    whole, beginnings = set(), []
    for path in (each.removeprefix("/") for each in always_allowed):
        if "*" in path[:-1]:
            raise ServingError(f"--authorization-always-allow-paths: {path!r} may only end with *; remove others")
        if path.endswith("*"):
            beginnings.append(path[:-1])
        else:
            whole.add(path)
    return frozenset(whole), tuple(beginnings)
