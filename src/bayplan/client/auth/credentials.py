"""Which Authorization header goes with a request now?

Asked once a request. A fixed token is a constant; one from a file is read again every minute and when the server says
401; one from a program is asked for anew when it expires or is refused. Costs a comparison while what is known is good.
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
"""The kubelet rewrites a token of ten minutes after eight: looking this often finds the new one in time."""


class CredentialSource(Protocol):
    """Who we are, as a header line."""

    def current(self) -> bytes | None:
        """The header line with its line break (empty: none is sent), or None when `renew` must be awaited first."""
        ...

    async def renew(self) -> None:
        """Make `current` answer."""
        ...

    def invalidate(self) -> bool:
        """The server said 401: forget what is known. Whether trying again can help."""
        ...

    @property
    def certificate(self) -> tuple[bytes, Secret] | None:
        """A client certificate and its key that came with them."""
        ...


class StaticCredentials:
    """A header that never changes."""

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
    """A token in a file that somebody else renews."""

    certificate: tuple[bytes, Secret] | None = None

    def __init__(self, path: Path, clock: LoopClock, otherwise: bytes | None = None) -> None:
        self._path = path
        self._clock = clock
        self._line = otherwise
        """What stays in use while the file cannot be read."""
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
        """A file of a few hundred bytes, most likely in memory: not worth a thread."""
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
    """Credentials that an exec plugin prints."""

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
    """Upstream's order: a token file, a token, then name and password, then the program."""
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


def bearer_header(token: str, place: str) -> bytes:
    """The header line for a token, which must be one line itself."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise KubeconfigError(
            f"{place}: the token holds characters that no token has; check that it is one line of text"
        )
    return f"Authorization: Bearer {token}\r\n".encode("ascii")
