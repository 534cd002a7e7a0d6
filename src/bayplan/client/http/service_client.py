"""HTTP client for services other than the API server: extenders and plugins.

Used by callers that post to a URL of a configuration. Connections are reused. Calls are not retried: only the caller
knows whether a call may be repeated. Errors have the texts of Go's HTTP client, because users search for them. Cost:
one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.auth.credentials import make_credentials
from bayplan.client.auth.secret import Secret
from bayplan.client.http.connection import HttpResponse
from bayplan.client.http.connection_pool import ConnectionPool
from bayplan.client.http.tls import TlsContextCache
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, TimedOut, Unreachable

_NO_SERVER = ConnectionConfig(server="")
_PORTS = {"http": 80, "https": 443}
_JSON: Mapping[str, str] = {"Content-Type": "application/json"}


class ServiceCallError(BayplanError):
    """A call to a service failed. The text is Go's. `sent`: the service may have handled the request."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class HttpService:
    """Posts to URLs. `trust` holds the authorities and the credentials; its `server` is ignored."""

    def __init__(
        self,
        clock: LoopClock,
        *,
        user_agent: str,
        trust: ConnectionConfig = _NO_SERVER,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._clock = clock
        self._trust = trust
        self._env = env
        self._user_agent = user_agent
        self._pools: dict[str, _ServerPool] = {}

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, headers: Mapping[str, str] = _JSON
    ) -> HttpResponse:
        """Return the response, whatever its status. Raises `ServiceCallError` without a response."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as fault:
            raise ServiceCallError(f'parse "{url}": {fault}') from None
        if parts.scheme not in _PORTS or not parts.hostname:
            reason = "no Host in request URL" if parts.scheme in _PORTS else "unsupported protocol scheme"
            scheme = "" if parts.scheme in _PORTS else f' "{parts.scheme}"'
            raise ServiceCallError(f'Post "{url}": {reason}{scheme}')
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        server_pool = self._pool_for(f"{parts.scheme}://{host}:{port}", parts.username, parts.password)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            return await server_pool.post(path, parts.netloc.rpartition("@")[2], body, timeout_s, headers)
        except Unreachable as lost:
            raise ServiceCallError(f'Post "{url}": {_go_error_text(lost, f"{host}:{port}")}', sent=lost.sent) from None

    async def post_ok(self, url: str, body: bytes, timeout_s: float) -> bytes:
        """Return the body of a successful response. Raises `ServiceCallError` for a status of 300 or above, too."""
        answer = await self.post(url, body, timeout_s)
        if answer.status >= 300:
            raise ServiceCallError(f'Post "{url}": it answered {answer.status}')
        return answer.body

    def check(self, server: str) -> None:
        """Raise `KubeconfigError` when the certificates for this server cannot be used."""
        self._pool_for(server, None, None).tls.context()

    async def close(self) -> None:
        for server_pool in self._pools.values():
            await server_pool.pool.close()

    def _pool_for(self, server: str, user: str | None, password: str | None) -> _ServerPool:
        server_pool = self._pools.get(server)
        if server_pool is None:
            target = replace(
                self._trust, server=server, username=unquote(user or ""), password=Secret(unquote(password or ""))
            )
            server_pool = self._pools[server] = _ServerPool(target, self._clock, self._user_agent, self._env)
        return server_pool


class _ServerPool:
    def __init__(
        self, target: ConnectionConfig, clock: LoopClock, user_agent: str, env: Mapping[str, str] | None
    ) -> None:
        self._clock = clock
        self._credentials = make_credentials(target, clock)
        self.tls = TlsContextCache(target, self._credentials)
        self.pool = ConnectionPool(target, self.tls, clock, env=env)
        self._head = f"User-Agent: {user_agent}\r\nAccept: */*\r\n".encode()

    async def post(
        self, path: str, host: str, body: bytes, timeout_s: float, headers: Mapping[str, str]
    ) -> HttpResponse:
        wire = b"POST %b HTTP/1.1\r\nHost: %b\r\n%b%b%bContent-Length: %d\r\n\r\n%b" % (
            (path or "/").encode("utf-8"),
            host.encode("idna" if not host.isascii() else "ascii"),
            self._head,
            "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("utf-8"),
            (b"" if "Authorization" in headers else self._credentials.current()) or b"",
            len(body),
            body,
        )
        deadline = self._clock.monotonic_s() + timeout_s
        connection = await self.pool.acquire(timeout_s)
        try:
            connection.deadline = deadline
            connection.send(wire)
            return await connection.response()
        finally:
            self.pool.release(connection)


def _go_error_text(lost: Unreachable, address: str) -> str:
    """Error text of Go's net/http for the usual cases."""
    if isinstance(lost, TimedOut):
        return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    if isinstance(lost.__context__, ConnectionRefusedError):
        return f"dial tcp {address}: connect: connection refused"
    if lost.sent:
        return "EOF"
    return str(lost)
