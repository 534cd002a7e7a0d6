"""SSL contexts of a target. A context is rebuilt when one of its files changes.

The pool asks for it when it opens a connection, which is rare. Cost: a stat of three files. The minimum is TLS 1.2
unless the caller raises it.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.auth.credentials import CredentialSource
from bayplan.client.auth.secret import Secret
from bayplan.errors import KubeconfigError

MINIMUM = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsContextCache:
    """Caches one SSL context until an input of it changes."""

    def __init__(self, target: ConnectionConfig, credentials: CredentialSource, *, minimum: str = "1.2") -> None:
        if minimum not in MINIMUM:
            raise KubeconfigError(f"TLS {minimum} is not supported; choose one of {', '.join(MINIMUM)}")
        self._target = target
        self._credentials = credentials
        self._minimum = MINIMUM[minimum]
        self._built_from: object = None
        self._context: ssl.SSLContext | None = None

    @property
    def server_name(self) -> str | None:
        """Name to verify in the certificate, also sent as SNI."""
        return self._target.server_name or self._target.url.hostname

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection; None for plain HTTP."""
        if not self._target.secure:
            return None
        now = self._inputs()
        if self._context is None or now != self._built_from:
            self._context, self._built_from = self._make(), now
        return self._context

    def _inputs(self) -> object:
        target = self._target
        return self._credentials.certificate, *map(file_stamp, (target.ca_file, target.cert_file, target.key_file))

    def _make(self) -> ssl.SSLContext:
        target = self._target
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = self._minimum
        context.set_alpn_protocols(["http/1.1"])
        if not target.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif authority := target.authority():
            self._load_authorities(context, authority)
        else:
            context.load_default_certs()
        self._load_client_certificate(context)
        return context

    def _load_authorities(self, context: ssl.SSLContext, authority: bytes) -> None:
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise KubeconfigError(
                f"{self._target.origin}: the certificate authority is not PEM; write PEM certificates"
            ) from None

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        target = self._target
        issued = self._credentials.certificate
        if issued is not None:
            self._load(context, issued[0], issued[1], "the credential program")
        elif target.cert_file or target.cert_data:
            self._load(context, target.cert_data or target.cert_file, target.key_data or target.key_file, target.origin)

    @staticmethod
    def _load(context: ssl.SSLContext, certificate: bytes | str, key: Secret | str, source: str) -> None:
        try:
            load_pair(context, certificate, key)
        except (ssl.SSLError, OSError, ValueError):
            raise KubeconfigError(
                f"{source}: the client certificate and its key cannot be used; both must be PEM, the key without a "
                "password, and belong together"
            ) from None


def load_pair(context: ssl.SSLContext, certificate: bytes | str, key: Secret | str) -> None:
    """Load a certificate and its key, each inline or from a file. OpenSSL reads pairs from files only. Inline data goes
    into in-memory files where the system has them, so that the key is not written to a disk."""
    with ExitStack() as files:
        cert_file = certificate if isinstance(certificate, str) else files.enter_context(_file(certificate))
        key_file = key if isinstance(key, str) else files.enter_context(_file(key.reveal().encode("latin-1")))
        context.load_cert_chain(cert_file, key_file, password=_no_password)


def _no_password() -> str:
    """Prevents OpenSSL's password prompt on the terminal."""
    return ""


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Path of a temporary file with this content that only its owner can read."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("bayplan"), "wb", buffering=0) as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(content)
        yield file.name


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """Value that changes when a file is written or replaced; None when there is no file."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
