"""Certificates for tests: a certificate authority and the certificates that it signs. Not for production."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bayplan.server.http.self_signed import (
    CLIENT_AUTH,
    SERVER_AUTH,
    EcPrivateKey,
    der_sequence,
    distinguished_name,
    extended_key_usage,
    extension,
    key_usage,
    sign_certificate,
    subject_alternative_names,
)

__all__ = ["Authority", "EcPrivateKey", "Pair", "server_context"]

_SINCE, _UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str


class Authority:
    """Signs certificates for servers and users."""

    def __init__(self, common_name: str = "bayplan tests") -> None:
        self._key = EcPrivateKey()
        self._name = distinguished_name(common_name)
        constraints = extension("2.5.29.19", der_sequence(b"\x01\x01\xff"), critical=True)
        self.certificate = self._sign(self._name, self._key, [constraints, key_usage(b"\x03\x02\x01\x86")])

    def server(self, *names: str) -> Pair:
        """For a server under these host names or addresses."""
        key = EcPrivateKey()
        return Pair(
            self._sign(
                distinguished_name(names[0]), key, [subject_alternative_names(names), extended_key_usage(SERVER_AUTH)]
            ),
            key.pem,
        )

    def user(self, common_name: str, *groups: str) -> Pair:
        """For a user of the API server: the common name is the user, organisations are groups."""
        key = EcPrivateKey()
        return Pair(
            self._sign(distinguished_name(common_name, groups), key, [extended_key_usage(CLIENT_AUTH)]), key.pem
        )

    def _sign(self, subject: bytes, key: EcPrivateKey, extensions: list[bytes]) -> str:
        return sign_certificate(self._key, self._name, subject, key, extensions, since=_SINCE, until=_UNTIL)


def server_context(folder: Path, pair: Pair, clients: str = "") -> ssl.SSLContext:
    """The TLS context of a server; with `clients`, an authority, it requires client certificates of that authority."""
    (folder / "server.crt").write_text(pair.certificate)
    (folder / "server.key").write_text(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    if clients:
        context.load_verify_locations(cadata=clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
