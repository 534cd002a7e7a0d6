"""HTTP transport of the API client: rate limit, credentials, retries, timeouts and typed errors.

Every request of `bayplan.client` goes through it. In addition to the connection's cost, a request costs the text of its
head, which is joined from cached parts. A write checks the guard before each try, immediately before it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple, Protocol

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.auth.credentials import make_credentials
from bayplan.client.http.api_status import response_error, retry_after
from bayplan.client.http.connection import NEVER, HttpConnection, HttpResponse
from bayplan.client.http.connection_pool import MAX_CONNECTIONS, ConnectionPool
from bayplan.client.http.response_parser import ResponseHead
from bayplan.client.http.tls import TlsContextCache
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, CredentialsUnavailable, KubeconfigError, LeaseLost, TimedOut, Unreachable

JSON = "application/json"
TIMEOUT_S = 60.0
RETRIES = 10
"""Maximum of retries after Retry-After, as in client-go."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

Observer = Callable[[str, int, float], None]
"""Called for every response: method, status (0: no response), seconds."""


_BEARER = "Authorization: Bearer "


class RateLimiter:
    """Token bucket as in client-go's flowcontrol: `qps` requests per second on average, `burst` at once.

    A negative rate means no limit."""

    def __init__(self, clock: LoopClock, *, qps: float = 50.0, burst: int = 100) -> None:
        self._clock = clock
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._counted_at = clock.monotonic_s()

    async def take(self) -> None:
        """Wait for a token. Earlier callers are served first."""
        wait_s = self.reserve()
        if wait_s > 0:
            await self._clock.sleep(wait_s)

    def reserve(self) -> float:
        """Take a token, in advance if there is none, and return the seconds until it exists."""
        if self._qps <= 0:
            return 0.0
        now = self._clock.monotonic_s()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._qps) - 1
        self._counted_at = now
        return max(0.0, -self._tokens / self._qps)


class _Request(NamedTuple):
    """A request without its credentials, which may change from one try to the next."""

    method: str
    path: str
    lines: bytes
    body: bytes

    def wire(self, authorization: bytes) -> bytes:
        """Encode the request."""
        has_length = self.body or self.method in ("POST", "PUT", "PATCH")
        return b"%b %b HTTP/1.1\r\n%b%b%b\r\n%b" % (
            self.method.encode("ascii"),
            self.path.encode("ascii"),
            self.lines,
            authorization,
            b"Content-Length: %d\r\n" % len(self.body) if has_length else b"",
            self.body,
        )


class WriteGuard(Protocol):
    """Permission to write, checked before every write."""

    def check(self) -> None:
        """Raise `LeaseLost` when this process must not write."""
        ...

    async def hold_back(self) -> None:
        """Wait until a write that `check` refused may be retried. Raises `LeaseLost` when it never may."""
        ...


class ResponseStream:
    def __init__(self, connection: HttpConnection, clock: LoopClock, quiet_s: float) -> None:
        self._connection = connection
        self._clock = clock
        self._quiet_s = quiet_s

    async def read(self) -> bytes:
        """Return what has arrived since the last call; nothing at the end. Raises `TimedOut` after `quiet_s` without
        data.

        Only the wait counts: a reader that is busy with the last piece loses no stream.
        """
        self._connection.deadline = self._clock.monotonic_s() + self._quiet_s
        try:
            return await self._connection.piece()
        finally:
            self._connection.deadline = NEVER


class Transport:
    """Requests to one API server: connection pool, rate limiter and credentials."""

    def __init__(
        self,
        target: ConnectionConfig,
        clock: LoopClock,
        *,
        user_agent: str,
        qps: float = 50.0,
        burst: int = 100,
        timeout_s: float = TIMEOUT_S,
        tls_minimum: str = "1.2",
        connections: int = MAX_CONNECTIONS,
        observer: Observer | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.guard: WriteGuard | None = None
        self.timeout_s = timeout_s
        self._clock = clock
        self._credentials = make_credentials(target, clock)
        self._tls = TlsContextCache(target, self._credentials, minimum=tls_minimum)
        self._pool = ConnectionPool(target, self._tls, clock, env=env, limit=connections)
        self._limiter = RateLimiter(clock, qps=qps, burst=burst)
        self._observer = observer
        self._endpoint = target.in_process
        self._base = target.url.path
        # Bayplan's own User-Agent: for one that looks like curl the server pretty-prints its JSON.
        lines = [("Host", target.url.netloc), ("User-Agent", user_agent), *target.impersonate]
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines).encode("utf-8")
        self._lines: dict[tuple[str, str], bytes] = {}
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    @property
    def in_process(self) -> bool:
        """Whether the server runs in this process and is called without a connection."""
        return self._endpoint is not None

    async def warm(self, count: int) -> None:
        await self._pool.warm(count)

    async def own_token(self) -> str:
        """Bearer token of this client; empty when it authenticates in another way."""
        if self._credentials.current() is None:
            await self._credentials.renew()
        line = (self._credentials.current() or b"").decode("ascii").strip()
        return line.removeprefix(_BEARER) if line.startswith(_BEARER) else ""

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 0.0,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse:
        """Send one request and return the response. A status of 400 or above is raised. `headers`: additional ones.

        The request is retried as Retry-After says. A write is not retried after a 5xx response, because the server may
        have applied it or may apply it later. The caller handles the unknown outcome.
        """
        lines = self._header_lines(accept, content_type if body else "")
        if headers:
            lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
        request = _Request(method, self._base + path, lines, body)
        tries = 0
        while True:
            await self._limiter.take()
            answer = await self._try_once(request, timeout_s or self.timeout_s)
            if answer.status < 400:
                return answer
            if method != "GET" and answer.status >= 500:
                raise response_error(f"{method} {path}", answer)
            tries += 1
            await self._wait_retry_after(f"{method} {path}", answer, tries)

    async def _try_once(self, request: _Request, timeout_s: float) -> HttpResponse:
        """Send once, and once more when a reused connection is dead (reads only) or the credentials are out of date."""
        second = False
        while True:
            try:
                answer = await self._exchange(request, timeout_s)
            except CredentialsUnavailable:
                raise
            except LeaseLost:
                assert self.guard is not None
                await self.guard.hold_back()  # holds no connection, which reads may need meanwhile
                continue
            except Unreachable as lost:
                if second or isinstance(lost, TimedOut) or (lost.sent and request.method != "GET"):
                    raise self._add_request_text(lost, request.method, request.path) from None
                second = True
                continue
            if answer.status != 401 or second or not self._credentials.invalidate():
                return answer
            second = True
            self._pool.close_idle()

    async def _exchange(self, request: _Request, timeout_s: float) -> HttpResponse:
        started = self._clock.monotonic_s()
        status = 0
        try:
            if self._credentials.current() is None:
                await self._credentials.renew()
            send = self._send_over_connection if self._endpoint is None else self._call_in_process
            answer = await send(request, timeout_s)
            status = answer.status
            return answer
        except KubeconfigError as fault:
            raise CredentialsUnavailable(str(fault)) from None
        finally:
            self._observe(request.method, status, started)

    async def _send_over_connection(self, request: _Request, timeout_s: float) -> HttpResponse:
        deadline = self._clock.monotonic_s() + timeout_s
        connection = await self._pool.acquire(timeout_s)
        try:
            self._send(connection, request, deadline)
            return await connection.response()
        finally:
            self._pool.release(connection)

    async def _call_in_process(self, request: _Request, timeout_s: float) -> HttpResponse:
        """Call a server in this process. It has no timeout.

        The sleep lets other tasks run first, so that a caller in a loop does not block the event loop.
        """
        del timeout_s
        assert self._endpoint is not None
        await asyncio.sleep(0)
        if self._closed:
            raise Unreachable("the client is closed")
        self._check_guard(request.method)
        lines = request.lines + (self._credentials.current() or b"")
        status, has_length, body = await self._endpoint.request(request.method, request.path, lines, request.body)
        return HttpResponse(ResponseHead(status, has_length), body)

    @asynccontextmanager
    async def stream(self, path: str, *, quiet_s: float, accept: str = JSON) -> AsyncIterator[ResponseStream]:
        """Stream the response to a GET; leaving the block ends it. `quiet_s` limits the wait for the connection and the
        head, and the time between two pieces. A server in this process has no limit."""
        tries = 0
        quiet_s = NEVER if self.in_process else quiet_s
        while True:
            await self._limiter.take()
            started = self._clock.monotonic_s()
            try:
                if self._credentials.current() is None:
                    await self._credentials.renew()
                connection = await self._pool.acquire(quiet_s, stream=True)
            except KubeconfigError as fault:
                raise CredentialsUnavailable(str(fault)) from None
            try:
                request = _Request("GET", self._base + path, self._header_lines(accept, ""), b"")
                self._send(connection, request, started + quiet_s)
                head = await connection.head()
                self._observe("WATCH", head.status, started)
                if head.status < 400:
                    yield ResponseStream(connection, self._clock, quiet_s)
                    return
                answer = await connection.response()
            except Unreachable as lost:
                raise self._add_request_text(lost, "GET", path) from None
            finally:
                self._pool.release(connection)
            if answer.status == 401 and self._credentials.invalidate():
                self._pool.close_idle()
            tries += 1
            await self._wait_retry_after(f"GET {path}", answer, tries)

    async def _wait_retry_after(self, request: str, answer: HttpResponse, tries: int) -> None:
        """Sleep as Retry-After says before a retry. Raises the refusal when no retry is due."""
        wait_s = retry_after(answer) if answer.status == 429 or answer.status >= 500 else 0.0
        if not wait_s or tries > RETRIES:
            raise response_error(request, answer)
        await self._clock.sleep(wait_s)

    def _check_guard(self, method: str) -> None:
        if method != "GET" and self.guard is not None:
            self.guard.check()

    def _send(self, connection: HttpConnection, request: _Request, deadline: float) -> None:
        self._check_guard(request.method)
        connection.deadline = deadline
        connection.send(request.wire(self._credentials.current() or b""))

    def _header_lines(self, accept: str, content_type: str) -> bytes:
        """Header lines of requests of one content type and accept type, cached."""
        cached = self._lines.get((accept, content_type))
        if cached is None:
            has_length = f"Accept: {accept}\r\n" + (f"Content-Type: {content_type}\r\n" if content_type else "")
            cached = self._lines[accept, content_type] = self._head + has_length.encode("ascii")
        return cached

    def _observe(self, method: str, status: int, started: float) -> None:
        if self._observer is not None:
            self._observer(method, status, self._clock.monotonic_s() - started)

    @staticmethod
    def _add_request_text(lost: Unreachable, method: str, path: str) -> ApiError:
        return type(lost)(f"{method} {path.partition('?')[0]}: {lost}", sent=lost.sent)
