"""Authorization header of the next request.

The transport asks for it once per request. A fixed token is a constant. A token file is read again every 50 s and after
a 401. An exec plugin runs again when its token expires or is refused. Cost while the credentials are valid: one
comparison.
"""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Protocol

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.auth.exec_plugin import ExecPlugin
from bayplan.client.auth.secret import Secret
from bayplan.clock import LoopClock
from bayplan.errors import KubeconfigError

log = logging.getLogger(__name__)

RELOAD_S = 50.0
"""The kubelet rewrites a token of ten minutes after eight minutes; this interval finds the new token in time."""


class CredentialSource(Protocol):
    """Source of the Authorization header."""

    def current(self) -> bytes | None:
        """Header line with its line break (empty: send none), or None when `renew` must be awaited first."""
        ...

    async def renew(self) -> None:
        """Fetch credentials, so that `current` returns them."""
        ...

    def invalidate(self) -> bool:
        """Drop the credentials after a 401. Returns whether a retry can succeed."""
        ...

    @property
    def certificate(self) -> tuple[bytes, Secret] | None:
        """Client certificate and key that the same source supplies."""
        ...


class StaticCredentials:
    """Fixed header line."""

    certificate: tuple[bytes, Secret] | None = None

    def __init__(self, line: bytes = b"") -> None:
        self._line = line

    def current(self) -> bytes | None:
        return self._line

    async def renew(self) -> None:
        return None

    def invalidate(self) -> bool:
        return False


class TokenFileCredentials:
    """Token in a file that another program rewrites, such as the kubelet."""

    certificate: tuple[bytes, Secret] | None = None

    def __init__(self, path: Path, clock: LoopClock, fallback: bytes | None = None) -> None:
        self._path = path
        self._clock = clock
        self._line = fallback
        """Used while the file cannot be read."""
        self._read_again = 0.0

    def current(self) -> bytes | None:
        if self._line is None or self._clock.monotonic_s() >= self._read_again:
            self._read()
        return self._line

    async def renew(self) -> None:
        self._read()

    def invalidate(self) -> bool:
        before = self._line
        self._read()
        return self._line != before

    def _read(self) -> None:
        """Read the file on the loop: it has a few hundred bytes and is most likely in the page cache."""
        self._read_again = self._clock.monotonic_s() + RELOAD_S
        try:
            self._line = bearer_header(self._token(), str(self._path))
        except KubeconfigError as fault:
            if self._line is None:
                raise
            log.warning("%s; the last token stays in use", fault)

    def _token(self) -> str:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is not text"
            raise KubeconfigError(f"cannot read the token file {self._path}: {why}; check the path") from None
        if not token:
            raise KubeconfigError(f"the token file {self._path} is empty; put a token into it")
        return token


class ExecCredentials:
    def __init__(self, plugin: ExecPlugin) -> None:
        self._plugin = plugin

    def current(self) -> bytes | None:
        current = self._plugin.current()
        return current.line if current is not None else None

    async def renew(self) -> None:
        await self._plugin.renew()

    def invalidate(self) -> bool:
        self._plugin.discard()
        return True

    @property
    def certificate(self) -> tuple[bytes, Secret] | None:
        current = self._plugin.current()
        return current.certificate if current is not None else None


def make_credentials(target: ConnectionConfig, clock: LoopClock) -> CredentialSource:
    """Choose the source in upstream's order: token file, token, user and password, exec plugin."""
    token = bearer_header(target.token.reveal(), target.origin) if target.token else None
    if target.token_file:
        return TokenFileCredentials(Path(target.token_file), clock, token)
    if token is not None:
        return StaticCredentials(token)
    if target.username or target.password:
        pair = f"{target.username}:{target.password.reveal()}".encode()
        return StaticCredentials(b"Authorization: Basic " + base64.b64encode(pair) + b"\r\n")
    if target.exec is not None and not (target.cert_file or target.cert_data):
        return ExecCredentials(ExecPlugin(target, clock))
    return StaticCredentials()


def bearer_header(token: str, source: str) -> bytes:
    """Header line of a token. The token must be one line of printable ASCII without spaces."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise KubeconfigError(
            f"{source}: the token holds characters that are invalid in a token; check that it is one line of text"
        )
    return f"Authorization: Bearer {token}\r\n".encode("ascii")
