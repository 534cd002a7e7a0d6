"""A certificate authority for one run, with the certificates of the API server and of the proxies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support.fakes.certificates import Authority, private_key

_NAMES = ("127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of what `write` has made."""

    ca: Path
    certificate: Path
    key: Path
    accounts_key: Path


def write(folder: Path) -> Files:
    """Make an authority and one server certificate for loopback addresses."""
    authority = Authority("chaos")
    server = authority.server(*_NAMES)
    files = Files(*(folder / name for name in ("ca.crt", "server.crt", "server.key", "accounts.key")))
    files.ca.write_text(authority.certificate)
    files.certificate.write_text(server.certificate)
    files.key.write_text(server.key)
    files.accounts_key.write_text(private_key())
    return files
