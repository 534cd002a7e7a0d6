"""Authorization of requests: open paths, `system:masters`, and SubjectAccessReviews for the rest.

Called for every request. Decisions of the API server are cached for ten seconds, allowed and denied alike.
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
"""Longer keys are not cached: clients could otherwise fill the memory."""


@dataclass(frozen=True, slots=True)
class AuthorizationDecision:
    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResourceAttributes:
    """An action on objects: `ResourceAttributes("list", "pods", "default")`. An empty namespace means all
    namespaces."""

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
    """Authorizes paths and actions. Without a reviewer only open paths and masters are allowed."""

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
        """Whether the user may request the path. Raises `ApiError` when the API server does not answer."""
        path = request.path.removeprefix("/")
        if MASTERS in user.groups or path in self._paths or path.startswith(self._prefixes):
            return AuthorizationDecision(True)
        if self._reviewer is None:
            return AuthorizationDecision(False)
        key = user, request.method, request.path
        if len(repr(key)) > _MAX_KEY_LENGTH:
            return await self._review(user, request)
        return await self._verdicts.get(key, lambda: self._review(user, request))

    async def allows(self, user: UserInfo, action: ResourceAttributes) -> bool:
        """Whether the user may perform the action. Raises `ApiError` when the API server does not answer."""
        if MASTERS in user.groups:
            return True
        if self._reviewer is None:
            return False
        verdict = await self._verdicts.get((user, action), lambda: self._send_review(user, action.attributes()))
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
    """Attributes of the review: the path, or for `/why/` a get of the pod."""
    pod = parse_path(request.path)
    if pod is None:
        return {"nonResourceAttributes": {"path": request.path, "verb": request.method.lower()}}
    attributes = {"namespace": pod.namespace, "verb": "get", "version": "v1", "resource": "pods", "name": pod.name}
    return {"resourceAttributes": attributes}


def _parse_paths(always_allowed: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Exact paths, and prefixes of paths: those that end with an asterisk."""
    exact, prefixes = set(), []
    for path in (each.removeprefix("/") for each in always_allowed):
        if "*" in path[:-1]:
            raise ServingError(
                f"--authorization-always-allow-paths: {path!r} may only end with *; remove other asterisks"
            )
        if path.endswith("*"):
            prefixes.append(path[:-1])
        else:
            exact.add(path)
    return frozenset(exact), tuple(prefixes)
