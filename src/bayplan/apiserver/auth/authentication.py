"""Authentication: bearer tokens, client certificates and impersonation.

A request without credentials is `system:anonymous`, which may only read health and version. An unknown token is refused
with 401. Cost: a dictionary lookup.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.apiserver import api_errors
from bayplan.apiserver.auth.service_account_tokens import ServiceAccountTokens
from bayplan.apiserver.requests import AUTHENTICATED_GROUP, RequestUser

ANONYMOUS = RequestUser("system:anonymous", ("system:unauthenticated",))
_EXTRA = "impersonate-extra-"


@dataclass(frozen=True, slots=True)
class ImpersonationRequest:
    """The user of the impersonation headers; the caller needs the listed permissions."""

    user: RequestUser
    permissions: tuple[tuple[str, str], ...]
    """(resource, name) of each required permission: users, groups, userextras."""


class RequestAuthenticator:
    def __init__(self, tokens: Mapping[str, RequestUser], accounts: ServiceAccountTokens | None = None) -> None:
        self._tokens = {token.encode(): _with_authenticated_group(user) for token, user in tokens.items()}
        self._accounts = accounts

    def authenticate_token(self, token: str) -> RequestUser | None:
        given = token.encode()
        found = None
        for known, user in self._tokens.items():  # compares with every token, so that the time reveals nothing
            if hmac.compare_digest(known, given):
                found = user
        if found is None and self._accounts is not None:
            found = self._accounts.user(token)
        return found

    @staticmethod
    def certificate_user(certificate: Mapping[str, Any] | None) -> RequestUser | None:
        """The user of a verified client certificate: name from CN, groups from O."""
        if not certificate:
            return None
        parts = [pair for rdn in certificate.get("subject", ()) for pair in rdn]
        name = next((value for key, value in parts if key == "commonName"), "")
        return RequestUser(name, tuple(value for key, value in parts if key == "organizationName")) if name else None

    def authenticate(self, authorization: str, certificate: RequestUser | None) -> RequestUser:
        if certificate is not None:
            return _with_authenticated_group(certificate)
        scheme, _, token = authorization.strip().partition(" ")
        if not authorization:
            return ANONYMOUS
        user = self.authenticate_token(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise api_errors.unauthorized()
        return _with_authenticated_group(user)


def parse_impersonation(headers: Mapping[str, str], groups: Sequence[str]) -> ImpersonationRequest | None:
    """The impersonated user from the headers (names in lower case)."""
    name = headers.get("impersonate-user", "")
    extra = {key[len(_EXTRA) :]: (value,) for key, value in headers.items() if key.startswith(_EXTRA)}
    if not name:
        if groups or extra or headers.get("impersonate-uid"):
            raise api_errors.bad_request("requested impersonation without impersonating a user")
        return None
    names = [("users", name), *(("groups", group) for group in groups)]
    names += [(f"userextras/{key}", value) for key, values in extra.items() for value in values]
    user = RequestUser(name, tuple(groups), headers.get("impersonate-uid", ""), extra)
    return ImpersonationRequest(_with_authenticated_group(user), tuple(names))


def _with_authenticated_group(user: RequestUser) -> RequestUser:
    if AUTHENTICATED_GROUP in user.groups or user.name == ANONYMOUS.name:
        return user
    return RequestUser(user.name, (*user.groups, AUTHENTICATED_GROUP), user.uid, user.extra)
