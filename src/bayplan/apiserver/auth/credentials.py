"""Credentials of a cluster: a CA, a server certificate and an administrator token.

The first start creates them in the cluster's folder, beside the kubeconfig; only the owner can read them. Later starts
reuse them, so a kubeconfig stays valid. Cost: about 50 ms at the first start.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bayplan.apiserver.requests import MASTERS_GROUP, RequestUser
from bayplan.errors import BayplanError

ADMIN_USER_NAME = "bayplan-admin"
_VALIDITY = timedelta(days=3650)


class CredentialsError(BayplanError):
    """The credential files of a cluster cannot be read or written."""


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """The folder of the files, and the token of the administrator."""

    folder: Path
    token: str

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    def server_tls(self, client_authority: Path | None = None) -> ssl.SSLContext:
        """The TLS context of the server. Client certificates are optional."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if client_authority is not None:
            try:
                context.load_verify_locations(client_authority)
            except OSError as error:
                raise CredentialsError(f"{client_authority} is not a CA certificate: {error}; use a PEM file") from None
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def write_kubeconfig(self, path: Path, server: str, name: str) -> None:
        _write(path, json.dumps(self.kubeconfig(server, name), indent=2) + "\n")

    def kubeconfig(self, server: str, name: str = "bayplan") -> dict[str, Any]:
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": ADMIN_USER_NAME, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": ADMIN_USER_NAME}}],
        }


def load_or_create(folder: Path, names: Iterable[str], now: datetime) -> ClusterCredentials:
    """The credentials in a folder. Creates them if they are missing or the certificate lacks a name."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted = sorted(set(names))
        names_file = folder / "names.json"
        if not names_file.exists() or json.loads(names_file.read_text()) != wanted:
            _make_certificates(folder, wanted, now)
            _write(names_file, json.dumps(wanted))
        token = folder / "token"
        if not token.exists():
            _write(token, secrets.token_urlsafe(32))
        return ClusterCredentials(folder, token.read_text().strip())
    except (OSError, ValueError) as error:
        raise CredentialsError(f"cannot store credentials in {folder}: {error}; use another folder") from None


def read_tokens(path: Path) -> dict[str, RequestUser]:
    """Further users, from a file as for --token-auth-file of kube-apiserver: token,user,uid,"group1,group2"."""
    import csv

    try:
        with path.open(newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except OSError as error:
        raise CredentialsError(f"{path} cannot be read: {error.strerror}; use a readable CSV file of tokens") from None
    found = {}
    for row in rows:
        if len(row) < 3:
            raise CredentialsError(f'{path}: "{",".join(row)}" is not a valid line; use token,user,uid,"group1,group2"')
        groups = tuple(row[3].split(",")) if len(row) > 3 and row[3] else ()
        found[row[0]] = RequestUser(row[1], groups, row[2])
    return found


def admin_user() -> RequestUser:
    return RequestUser(ADMIN_USER_NAME, (MASTERS_GROUP,), ADMIN_USER_NAME)


def _write(path: Path, text: str) -> None:
    """Writes a file atomically; from its first byte only the owner can read it."""
    new = path.with_name(f"{path.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _make_certificates(folder: Path, names: list[str], now: datetime) -> None:
    from bayplan.certificates import SERVER_AUTH, CertificateAuthority, common_name

    issuer = f"bayplan-cluster@{int(now.timestamp())}"
    authority = CertificateAuthority(issuer, since=now - timedelta(hours=1), until=now + _VALIDITY)
    server = authority.issue(common_name("bayplan-cluster"), SERVER_AUTH, names)
    _write(folder / "ca.crt", authority.certificate)
    _write(folder / "server.crt", server.certificate)
    _write(folder / "server.key", server.key)
