"""How does a request reach the API server and come back? Limits, credentials, retries, timeouts and typed refusals.

Asked by everything in this room for every request. Beyond the connection's own cost a request costs the head's text,
which is put together from parts that are known beforehand. A request that changes something first asks the guard, at
the last moment before it is written, each time it is tried.
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
from bayplan.client.http.rate_limiter import RateLimiter
from bayplan.client.http.response_parser import ResponseHead
from bayplan.client.http.tls import TlsContextCache
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, CredentialsUnavailable, KubeconfigError, LeaseLost, TimedOut, Unreachable

JSON = "application/json"
TIMEOUT_S = 60.0
RETRIES = 10
"""How often a request is tried again because the server asked for it with Retry-After: as often as upstream does."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

Observer = Callable[[str, int, float], None]
"""Told about every answer: method, status (0: none), seconds."""


_BEARER = "Authorization: Bearer "


class _Request(NamedTuple):
    """What is asked, but for the line that says who asks: that may change from one try to the next."""

    method: str
    path: str
    lines: bytes
    body: bytes

    def wire(self, who: bytes) -> bytes:
        """The bytes of the request."""
        told = self.body or self.method in ("POST", "PUT", "PATCH")
        return b"%b %b HTTP/1.1\r\n%b%b%b\r\n%b" % (
            self.method.encode("ascii"),
            self.path.encode("ascii"),
            self.lines,
            who,
            b"Content-Length: %d\r\n" % len(self.body) if told else b"",
            self.body,
        )


class WriteGuard(Protocol):
    """Who must agree to every write."""

    def check(self) -> None:
        """Raise `LeaseLost` when this process must not write."""
        ...

    async def hold_back(self) -> None:
        """Wait until a write that `check` refused may be tried again; `LeaseLost` if that cannot come."""
        ...


class ResponseStream:
    """An answer that is read while it arrives."""

    def __init__(self, connection: HttpConnection, clock: LoopClock, quiet_s: float) -> None:
        self._connection = connection
        self._clock = clock
        self._quiet_s = quiet_s

    async def read(self) -> bytes:
        """What has arrived since the last call; nothing at the end. Raises `TimedOut` after too long a silence.

        Only waiting counts as silence: a reader that is busy with the last piece loses no stream.
        """
        self._connection.deadline = self._clock.monotonic_s() + self._quiet_s
        try:
            return await self._connection.piece()
        finally:
            self._connection.deadline = NEVER


class Transport:
    """One way to one API server: a pool, a limiter, credentials."""

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
        self._inside = target.in_process
        self._base = target.url.path
        # A User-Agent of our own: to one that looks like curl the server prints its JSON prettily.
        lines = [("Host", target.url.netloc), ("User-Agent", user_agent), *target.impersonate]
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines).encode("utf-8")
        self._lines: dict[tuple[str, str], bytes] = {}
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    @property
    def in_process(self) -> bool:
        """Whether the server runs in this process and is reached without a connection."""
        return self._inside is not None

    async def warm(self, count: int) -> None:
        """Open so many connections before they are needed."""
        await self._pool.warm(count)

    async def own_token(self) -> str:
        """The token by which the server knows us; empty where we prove who we are in another way."""
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
        """The answer to one request, if it is below 400; else the refusal as an exception. `headers`: besides ours.

        The request is sent again as Retry-After asks. A write is not sent again after a 5xx answer, because the server
        may have applied it, or may apply it later: the caller gets the unknown outcome.
        """
        lines = self._header_lines(accept, content_type if body else "")
        if headers:
            lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
        asked = _Request(method, self._base + path, lines, body)
        tries = 0
        while True:
            await self._limiter.take()
            answer = await self._try_once(asked, timeout_s or self.timeout_s)
            if answer.status < 400:
                return answer
            if method != "GET" and answer.status >= 500:
                raise response_error(f"{method} {path}", answer)
            tries += 1
            await self._wait_as_asked(f"{method} {path}", answer, tries)

    async def _try_once(self, asked: _Request, timeout_s: float) -> HttpResponse:
        """One try; another at once when a kept connection turns out dead under a read, or credentials out of date."""
        second = False
        while True:
            try:
                answer = await self._exchange(asked, timeout_s)
            except CredentialsUnavailable:
                raise
            except LeaseLost:
                assert self.guard is not None
                await self.guard.hold_back()  # without a connection, which reads may need meanwhile
                continue
            except Unreachable as lost:
                if second or isinstance(lost, TimedOut) or (lost.sent and asked.method != "GET"):
                    raise self._with_request_text(lost, asked.method, asked.path) from None
                second = True
                continue
            if answer.status != 401 or second or not self._credentials.invalidate():
                return answer
            second = True
            self._pool.close_idle()

    async def _exchange(self, asked: _Request, timeout_s: float) -> HttpResponse:
        started = self._clock.monotonic_s()
        status = 0
        try:
            if self._credentials.current() is None:
                await self._credentials.renew()
            carry = self._send_over_connection if self._inside is None else self._call_in_process
            answer = await carry(asked, timeout_s)
            status = answer.status
            return answer
        except KubeconfigError as fault:
            raise CredentialsUnavailable(str(fault)) from None
        finally:
            self._observe(asked.method, status, started)

    async def _send_over_connection(self, asked: _Request, timeout_s: float) -> HttpResponse:
        """The answer that a connection brings."""
        deadline = self._clock.monotonic_s() + timeout_s
        connection = await self._pool.acquire(timeout_s)
        try:
            self._send(connection, asked, deadline)
            return await connection.response()
        finally:
            self._pool.release(connection)

    async def _call_in_process(self, asked: _Request, timeout_s: float) -> HttpResponse:
        """The answer of a server in this process, which takes no longer than it works on it.

        Everybody else has a turn first, so that whoever asks again and again does not hold the loop.
        """
        del timeout_s
        assert self._inside is not None
        await asyncio.sleep(0)
        if self._closed:
            raise Unreachable("the client is closed")
        self._check_guard(asked.method)
        lines = asked.lines + (self._credentials.current() or b"")
        status, told, body = await self._inside.request(asked.method, asked.path, lines, asked.body)
        return HttpResponse(ResponseHead(status, told), body)

    @asynccontextmanager
    async def stream(self, path: str, *, quiet_s: float, accept: str = JSON) -> AsyncIterator[ResponseStream]:
        """A GET whose answer is read while it lasts; leaving the block ends it. `quiet_s`: the longest wait for the
        connection and the head, and between two pieces; no limit on a server in this process."""
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
                asked = _Request("GET", self._base + path, self._header_lines(accept, ""), b"")
                self._send(connection, asked, started + quiet_s)
                head = await connection.head()
                self._observe("WATCH", head.status, started)
                if head.status < 400:
                    yield ResponseStream(connection, self._clock, quiet_s)
                    return
                answer = await connection.response()
            except Unreachable as lost:
                raise self._with_request_text(lost, "GET", path) from None
            finally:
                self._pool.release(connection)
            if answer.status == 401 and self._credentials.invalidate():
                self._pool.close_idle()
            tries += 1
            await self._wait_as_asked(f"GET {path}", answer, tries)

    async def _wait_as_asked(self, asked: str, answer: HttpResponse, tries: int) -> None:
        """Before a request that was refused is made again, where the server wants that; else the refusal is raised."""
        wait_s = retry_after(answer) if answer.status == 429 or answer.status >= 500 else 0.0
        if not wait_s or tries > RETRIES:
            raise response_error(asked, answer)
        await self._clock.sleep(wait_s)

    def _check_guard(self, method: str) -> None:
        if method != "GET" and self.guard is not None:
            self.guard.check()

    def _send(self, connection: HttpConnection, asked: _Request, deadline: float) -> None:
        self._check_guard(asked.method)
        connection.deadline = deadline
        connection.send(asked.wire(self._credentials.current() or b""))

    def _header_lines(self, accept: str, content_type: str) -> bytes:
        """The lines that requests of one form share."""
        known = self._lines.get((accept, content_type))
        if known is None:
            told = f"Accept: {accept}\r\n" + (f"Content-Type: {content_type}\r\n" if content_type else "")
            known = self._lines[accept, content_type] = self._head + told.encode("ascii")
        return known

    def _observe(self, method: str, status: int, started: float) -> None:
        if self._observer is not None:
            self._observer(method, status, self._clock.monotonic_s() - started)

    @staticmethod
    def _with_request_text(lost: Unreachable, method: str, path: str) -> ApiError:
        return type(lost)(f"{method} {path.partition('?')[0]}: {lost}", sent=lost.sent)
