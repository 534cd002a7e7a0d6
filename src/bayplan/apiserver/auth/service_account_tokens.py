"""Service account tokens that this cluster issues and accepts.

They are JWTs (HS256) under a key of this cluster, so no token is stored. `kubectl create token` requests one. A token
is valid until it expires or its service account is deleted. Cost: one HMAC.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime

from bayplan.apiserver.requests import RequestUser
from bayplan.apiserver.resources.kinds import Tree

ISSUER = "https://kubernetes.default.svc"
_HEAD = {"alg": "HS256", "typ": "JWT"}


class ServiceAccountTokens:
    """Issues and verifies tokens. `uid_of(namespace, name)` is the uid of the account, None if it is missing."""

    def __init__(self, secret: str, now: Callable[[], datetime], uid_of: Callable[[str, str], str | None]) -> None:
        self._key = hashlib.sha256(f"service account tokens: {secret}".encode()).digest()
        self._now = now
        self._uid_of = uid_of

    def issue(self, claims: Tree) -> str:
        text = f"{_encode_segment(json.dumps(_HEAD).encode())}.{_encode_segment(json.dumps(claims).encode())}"
        return f"{text}.{self._signature(text)}"

    def user(self, token: str) -> RequestUser | None:
        text, _, signature = token.rpartition(".")
        if text.count(".") != 1 or not hmac.compare_digest(self._signature(text).encode(), signature.encode()):
            return None
        try:
            claims = json.loads(_decode_segment(text.partition(".")[2]))
            known = claims["kubernetes.io"]
            namespace, account = known["namespace"], known["serviceaccount"]
            valid = claims["nbf"] <= self._now().timestamp() < claims["exp"]
        except (ValueError, KeyError, TypeError, binascii.Error):
            return None
        if not valid or self._uid_of(namespace, account["name"]) != account["uid"]:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        return RequestUser(claims["sub"], groups, account["uid"])

    def _signature(self, text: str) -> str:
        return _encode_segment(hmac.digest(self._key, text.encode(), "sha256"))


def _encode_segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decode_segment(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
