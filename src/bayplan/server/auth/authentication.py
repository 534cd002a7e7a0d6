"""Who asks? Somebody with a client certificate, behind a trusted proxy, or with a token that the API server knows.

Asked for every request; costs nothing for who shows nothing. Tokens are reviewed by the API server and its answers kept
for ten seconds under a keyed hash, so that no token stays in memory. Whoever shows something wrong is refused, whoever
shows nothing is `system:anonymous`.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from bayplan.client import FORWARDED_TOKEN, TOKEN_REVIEWS, GroupVersionResource
from bayplan.clock import LoopClock
from bayplan.errors import ApiError
from bayplan.server.auth.client_authorities import ClientAuthorities, FrontProxy
from bayplan.server.auth.ttl_cache import TtlCache
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.serving_tls import certificates_in, fingerprint

log = logging.getLogger(__name__)

CACHE_S = 10.0
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
_CREDENTIAL = "authentication.kubernetes.io/credential-id"
TOKEN_COOKIE = "bayplan-token"
"""Where a browser keeps its token after its user has signed in to the page."""
_COOKIE_PATHS = ("/page/", "/why/")
_UID = "1.3.6.1.4.1.57683.2"

Extra = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class UserInfo:
    """Somebody."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Extra = ()


ANONYMOUS = UserInfo("system:anonymous", groups=(UNAUTHENTICATED,))


class ReviewClient(Protocol):
    """Sends a question to the API server and brings its answer; the client does."""

    async def create(self, resource: GroupVersionResource, body: Mapping[str, Any]) -> bytes: ...


class _ReviewUserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _ReviewUserInfo = _ReviewUserInfo()
    error: str = ""


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class Authenticator:
    """Finds out who asks. Without a reviewer tokens are not looked at."""

    def __init__(self, reviewer: ReviewClient | None, clock: LoopClock, *, cache_s: float = CACHE_S) -> None:
        self._reviewer = reviewer
        self._key = secrets.token_bytes(32)
        self._tokens: TtlCache[UserInfo | None] = TtlCache(clock, lambda _: cache_s)
        self.set_authorities(ClientAuthorities())

    def set_authorities(self, trust: ClientAuthorities) -> None:
        """Believe certificates of these authorities from now on."""
        self._front = trust.front_proxy
        self._fronts = certificates_in(trust.front_proxy.ca)
        self._clients = certificates_in(trust.client_ca)

    async def authenticate(self, request: HttpRequest) -> UserInfo | None:
        """Who asks; None when what was shown proves nothing."""
        found = _user_from_proxy_headers(request, self._front) if self._from_proxy(request) else None
        found = found or self._user_from_certificate(request)
        doubtful = bool(request.peer.chain and (self._fronts or self._clients))
        if found is None and (token := _bearer_token(request) or _cookie_token(request)) and self._reviewer is not None:
            found = await self._user_from_token(token)
            doubtful = True
        if found is None:
            return None if doubtful else ANONYMOUS
        return _with_authenticated_group(found)

    def _from_proxy(self, request: HttpRequest) -> bool:
        if self._fronts.isdisjoint(request.peer.chain):
            return False
        names = self._front.allowed_names
        return not names or dict(request.peer.subject).get("commonName") in names

    def _user_from_certificate(self, request: HttpRequest) -> UserInfo | None:
        chain, subject = request.peer.chain, request.peer.subject
        if self._clients.isdisjoint(chain):
            return None
        name = dict(subject).get("commonName", "")
        groups = tuple(value for key, value in subject if key == "organizationName")
        credential: Extra = ((_CREDENTIAL, (f"X509SHA256={fingerprint(chain[0])}",)),)
        return UserInfo(name, dict(subject).get(_UID, ""), groups, credential) if name else None

    async def _user_from_token(self, token: str) -> UserInfo | None:
        key = hashlib.blake2b(token.encode("latin-1"), key=self._key).digest()
        try:
            return await self._tokens.get(key, lambda: self._review(token))
        except (ApiError, msgspec.DecodeError) as fault:
            log.error("cannot ask the API server about a token: %s", fault)
            return None

    async def _review(self, token: str) -> UserInfo | None:
        assert self._reviewer is not None
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview", "spec": {"token": token}}
        status = msgspec.json.decode(await self._reviewer.create(TOKEN_REVIEWS, body), type=_TokenReview).status
        if not status.authenticated:
            return None
        extra = tuple(sorted((status.user.extra or {}).items()))
        return UserInfo(status.user.username, status.user.uid, status.user.groups or (), extra)


def _user_from_proxy_headers(request: HttpRequest, front: FrontProxy) -> UserInfo | None:
    """For whom a trusted proxy asks."""
    name = next((value for header in front.user_headers if (value := request.header(header.lower()))), "")
    if not name:
        return None
    uid = next((value for header in front.uid_headers if (value := request.header(header.lower()))), "")
    groups = [value for header in front.group_headers for value in request.all(header.lower()) if value]
    extra: dict[str, list[str]] = {}
    for prefix in front.extra_prefixes:
        for key, value in request.headers:
            if key.startswith(prefix.lower()):
                extra.setdefault(unquote(key[len(prefix) :]), []).append(value)
    return UserInfo(name, uid, tuple(groups), tuple((key, tuple(values)) for key, values in sorted(extra.items())))


def _bearer_token(request: HttpRequest) -> str:
    """The token that was shown; one that came through the API server's proxy, which keeps its own header to itself, is
    in another."""
    scheme, _, rest = request.header("authorization").strip().partition(" ")
    return rest.partition(" ")[0] if scheme.lower() == "bearer" else request.header(FORWARDED_TOKEN.lower())


def _cookie_token(request: HttpRequest) -> str:
    """The token that a browser keeps, which it sends with everything: it opens what is only read, and only pages."""
    if request.method not in ("GET", "HEAD") or not request.path.startswith(_COOKIE_PATHS):
        return ""
    pairs = (pair.strip().partition("=") for line in request.all("cookie") for pair in line.split(";"))
    return next((value for name, _, value in pairs if name == TOKEN_COOKIE), "")


def _with_authenticated_group(user: UserInfo) -> UserInfo:
    if user.name == ANONYMOUS.name or {AUTHENTICATED, UNAUTHENTICATED} & set(user.groups):
        return user
    return UserInfo(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)
