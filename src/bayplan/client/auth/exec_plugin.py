"""Exec plugins of client.authentication.k8s.io, v1 and v1beta1.

`credentials` runs the plugin when it has no credentials, when they expire and when the server refuses them. Concurrent
requests share one run. What the plugin prints is secret: no log line and no error holds it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.auth.secret import Secret
from bayplan.clock import LoopClock
from bayplan.errors import KubeconfigError

TIMEOUT_S = 60.0


class _ExecCredentialStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecCredentialStatus | None = None


@dataclass(frozen=True, slots=True)
class CachedExecCredential:
    """Last output of the plugin."""

    line: bytes
    certificate: tuple[bytes, Secret] | None
    expires: datetime | None

    def __repr__(self) -> str:
        return f"CachedExecCredential(expires={self.expires})"


class ExecPlugin:
    """Runs the plugin and caches its credentials until they expire."""

    def __init__(self, target: ConnectionConfig, clock: LoopClock, environ: Mapping[str, str] | None = None) -> None:
        assert target.exec is not None
        self._target = target
        self._program = target.exec
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._current: CachedExecCredential | None = None
        self._lock = asyncio.Lock()

    def current(self) -> CachedExecCredential | None:
        """Cached credentials, or None when they have expired."""
        current = self._current
        if current is not None and current.expires is not None and self._clock.now() >= current.expires:
            return None
        return current

    def discard(self) -> None:
        self._current = None

    async def renew(self) -> None:
        async with self._lock:
            if self.current() is None:  # another request may have run it while this one waited
                self._current = self._read(await self._run())

    async def _run(self) -> bytes:
        command, hint = self._program.command, self._program.install_hint
        arguments = [each.reveal() for each in self._program.args]
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *arguments,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as fault:
            more = f"; {hint}" if hint and hint.isprintable() else "; install it or correct exec.command"
            raise KubeconfigError(f"cannot run the credential program {command}: {fault.strerror}{more}") from None
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except TimeoutError:
            raise self._error(f"did not end within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise self._error(f"ended with exit code {process.returncode}")
        return printed

    def _environment(self) -> dict[str, str]:
        own = {each.name: each.value.reveal() for each in self._program.env}
        return {**self._environ, **own, "KUBERNETES_EXEC_INFO": msgspec.json.encode(self._info()).decode()}

    def _info(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": False}
        if self._program.provide_cluster_info:
            spec["cluster"] = self._cluster()
        return {"kind": "ExecCredential", "apiVersion": self._program.api_version, "spec": spec}

    def _cluster(self) -> dict[str, Any]:
        target = self._target
        info = {
            "server": target.server,
            "tls-server-name": target.server_name,
            "insecure-skip-tls-verify": not target.verify,
            "certificate-authority-data": base64.b64encode(target.authority()).decode(),
            "proxy-url": target.proxy,
            "config": target.exec_config,
        }
        return {key: value for key, value in info.items() if value}

    def _read(self, printed: bytes) -> CachedExecCredential:
        try:
            credential = msgspec.json.decode(printed, type=_ExecCredential)
        except msgspec.DecodeError:  # the text of the error could repeat the secret
            raise self._error("printed output that is not an ExecCredential") from None
        if credential.kind != "ExecCredential" or credential.api_version != self._program.api_version:
            raise self._error(f"did not print an ExecCredential of {self._program.api_version}")
        status = credential.status
        if status is None or not (status.token or status.client_certificate_data or status.client_key_data):
            raise self._error("printed neither a token nor a client certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._error("printed a certificate or a key, not both")
        return self._accept(status)

    def _accept(self, status: _ExecCredentialStatus) -> CachedExecCredential:
        if not (status.token.isascii() and status.token.isprintable()):
            raise self._error("printed a token that is not one line of text")
        line = f"Authorization: Bearer {status.token}\r\n".encode("ascii") if status.token else b""
        pair = (
            (status.client_certificate_data.encode(), Secret(status.client_key_data))
            if status.client_key_data
            else None
        )
        expires = status.expiration_timestamp
        return CachedExecCredential(
            line, pair, expires.replace(tzinfo=UTC) if expires and expires.tzinfo is None else expires
        )

    def _error(self, what: str) -> KubeconfigError:
        return KubeconfigError(f"the credential program {self._program.command} {what}; run it by hand to see why")
