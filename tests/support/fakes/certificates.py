"""Certificates for tests: a certificate authority and the certificates that it signs. Not for production."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bayplan.certificates import SERVER_AUTH, CertificateAuthority, CertificatePair, common_name, key_pem, new_key

__all__ = ["Authority", "Pair", "private_key", "server_context"]

Pair = CertificatePair


class Authority(CertificateAuthority):
    """Signs certificates for servers and users."""

    def __init__(self, name: str = "bayplan tests") -> None:
        super().__init__(name, since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2120, 1, 1, tzinfo=UTC))

    def server(self, *names: str) -> Pair:
        """For a server under these host names or addresses."""
        return self.issue(common_name(names[0]), SERVER_AUTH, names)

    def user(self, name: str, *groups: str) -> Pair:
        """For a user of the API server: the common name is the user, organisations are groups."""
        organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        return self.issue(x509.Name([*organisations, *common_name(name)]), ExtendedKeyUsageOID.CLIENT_AUTH)


def private_key() -> str:
    """A new key in PEM."""
    return key_pem(new_key())


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
