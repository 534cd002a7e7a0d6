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
from bayplan.server.auth.authentication import ReviewClient, UserInfo
from bayplan.server.auth.ttl_cache import TtlCache
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.why import parse_path

CACHE_S = 10.0
ALWAYS_ALLOW_PATHS = ("/healthz", "/readyz", "/livez")
MASTERS = "system:masters"
_MAX_KEY_LENGTH = 10_000
"""Questions longer than this are not remembered: their askers would choose how much memory we need."""


@dataclass(frozen=True, slots=True)
class AuthorizationDecision:
    """Whether, and why."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResourceAttributes:
    """Something that is done to objects: `ResourceAttributes("list", "pods", "default")`. No namespace: in all of
    them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def attributes(self) -> dict[str, Any]:
        named = {"verb": self.verb, "resource": self.resource, "namespace": self.namespace, "name": self.name}
        return {"resourceAttributes": {key: value for key, value in named.items() if value}}


class _AccessReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessReviewStatus = _AccessReviewStatus()


class Authorizer:
    """Decides about paths. Without a reviewer only open paths and masters get in."""

    def __init__(
        self,
        reviewer: ReviewClient | None,
        clock: LoopClock,
        *,
        always_allowed: Sequence[str] = ALWAYS_ALLOW_PATHS,
        allowed_cache_s: float = CACHE_S,
        denied_cache_s: float = CACHE_S,
    ) -> None:
        self._reviewer = reviewer
        self._paths, self._prefixes = _parse_paths(always_allowed)
        self._verdicts: TtlCache[AuthorizationDecision] = TtlCache(
            clock, lambda verdict: allowed_cache_s if verdict.allowed else denied_cache_s
        )

    async def authorize(self, user: UserInfo, request: HttpRequest) -> AuthorizationDecision:
        """Whether this user may have this path. `ApiError` when the API server cannot be asked."""
        path = request.path.removeprefix("/")
        if MASTERS in user.groups or path in self._paths or path.startswith(self._prefixes):
            return AuthorizationDecision(True)
        if self._reviewer is None:
            return AuthorizationDecision(False)
        key = user, request.method, request.path
        if len(repr(key)) > _MAX_KEY_LENGTH:
            return await self._review(user, request)
        return await self._verdicts.get(key, lambda: self._review(user, request))

    async def allows(self, user: UserInfo, asked: ResourceAttributes) -> bool:
        """Whether this user may do that to objects. `ApiError` when the API server cannot be asked."""
        if MASTERS in user.groups:
            return True
        if self._reviewer is None:
            return False
        verdict = await self._verdicts.get((user, asked), lambda: self._send_review(user, asked.attributes()))
        return verdict.allowed

    async def _review(self, user: UserInfo, request: HttpRequest) -> AuthorizationDecision:
        return await self._send_review(user, _review_attributes(request))

    async def _send_review(self, user: UserInfo, attributes: Mapping[str, Any]) -> AuthorizationDecision:
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
        return AuthorizationDecision(status.allowed and not status.denied, status.reason)


def _review_attributes(request: HttpRequest) -> dict[str, dict[str, str]]:
    """What the API server is asked: whether they may have the path, or get the pod that it is about."""
    pod = parse_path(request.path)
    if pod is None:
        return {"nonResourceAttributes": {"path": request.path, "verb": request.method.lower()}}
    attributes = {"namespace": pod.namespace, "verb": "get", "version": "v1", "resource": "pods", "name": pod.name}
    return {"resourceAttributes": attributes}


def _parse_paths(always_allowed: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
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
