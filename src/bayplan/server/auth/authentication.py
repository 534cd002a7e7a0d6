"""Authentication of requests: by client certificate, by headers of a trusted front proxy, or by bearer token.

Called for every request; a request without credentials costs nothing. The API server reviews tokens, and results are
cached for ten seconds under a keyed hash, so no token stays in memory. A request with invalid credentials is refused; a
request without credentials is `system:anonymous`.
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
"""The cookie in which a browser keeps its token after a sign-in on the page."""
_COOKIE_PATHS = ("/page/", "/why/")
_UID = "1.3.6.1.4.1.57683.2"

Extra = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class UserInfo:
    """An authenticated user."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Extra = ()


ANONYMOUS = UserInfo("system:anonymous", groups=(UNAUTHENTICATED,))


class ReviewClient(Protocol):
    """Sends a review to the API server and returns the response, as the client does."""

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
    """Finds the user of a request. Without a reviewer tokens are ignored."""

    def __init__(self, reviewer: ReviewClient | None, clock: LoopClock, *, cache_s: float = CACHE_S) -> None:
        self._reviewer = reviewer
        self._key = secrets.token_bytes(32)
        self._tokens: TtlCache[UserInfo | None] = TtlCache(clock, lambda _: cache_s)
        self.set_authorities(ClientAuthorities())

    def set_authorities(self, trust: ClientAuthorities) -> None:
        """Trust certificates of these authorities from now on."""
        self._front_proxy = trust.front_proxy
        self._front_proxy_cas = certificates_in(trust.front_proxy.ca)
        self._client_cas = certificates_in(trust.client_ca)

    async def authenticate(self, request: HttpRequest) -> UserInfo | None:
        """The user of a request; None for invalid credentials."""
        found = _user_from_proxy_headers(request, self._front_proxy) if self._is_from_proxy(request) else None
        found = found or self._user_from_certificate(request)
        has_credentials = bool(request.peer.chain and (self._front_proxy_cas or self._client_cas))
        if found is None and (token := _bearer_token(request) or _cookie_token(request)) and self._reviewer is not None:
            found = await self._user_from_token(token)
            has_credentials = True
        if found is None:
            return None if has_credentials else ANONYMOUS
        return _add_authenticated_group(found)

    def _is_from_proxy(self, request: HttpRequest) -> bool:
        if self._front_proxy_cas.isdisjoint(request.peer.chain):
            return False
        names = self._front_proxy.allowed_names
        return not names or dict(request.peer.subject).get("commonName") in names

    def _user_from_certificate(self, request: HttpRequest) -> UserInfo | None:
        chain, subject = request.peer.chain, request.peer.subject
        if self._client_cas.isdisjoint(chain):
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
            log.error("TokenReview failed: %s", fault)
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
    """The user in the headers of a trusted front proxy."""
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
    """The bearer token of a request. The API server's proxy removes the authorization header, so requests through it
    have the token in another header."""
    scheme, _, rest = request.header("authorization").strip().partition(" ")
    return rest.partition(" ")[0] if scheme.lower() == "bearer" else request.header(FORWARDED_TOKEN.lower())


def _cookie_token(request: HttpRequest) -> str:
    """The token in the cookie. Browsers send it with every request, so it counts only for reading, and only for
    pages."""
    if request.method not in ("GET", "HEAD") or not request.path.startswith(_COOKIE_PATHS):
        return ""
    pairs = (pair.strip().partition("=") for line in request.all("cookie") for pair in line.split(";"))
    return next((value for name, _, value in pairs if name == TOKEN_COOKIE), "")


def _add_authenticated_group(user: UserInfo) -> UserInfo:
    if user.name == ANONYMOUS.name or {AUTHENTICATED, UNAUTHENTICATED} & set(user.groups):
        return user
    return UserInfo(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)
