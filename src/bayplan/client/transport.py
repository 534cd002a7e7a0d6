"""How does a request reach the API server and come back? Limits, credentials, retries, timeouts and typed refusals.

Asked by everything in this room for every request. Beyond the connection's own cost a request costs the head's text,
which is put together from parts that are known beforehand. A request that changes something first asks the guard, at
the last moment before it is written, each time it is tried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Protocol

from bayplan.client.connection import Answer, Connection
from bayplan.client.credentials import credentials
from bayplan.client.limiter import Limiter
from bayplan.client.pool import LIMIT, Pool
from bayplan.client.statuses import refusal, retry_after
from bayplan.client.target import Target
from bayplan.client.tls import Tls
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, TimedOut, Unreachable

JSON = "application/json"
TIMEOUT_S = 60.0
RETRIES = 10
"""How often a request is tried again because the server asked for it with Retry-After: as often as upstream does."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

Observer = Callable[[str, int, float], None]
"""Told about every answer: method, status (0: none), seconds."""


_BEARER = "Authorization: Bearer "


class Guard(Protocol):
    """Who must agree to every write."""

    def check(self) -> None:
        """Raise `LeaseLost` when this process must not write."""
        ...


class Stream:
    """An answer that is read while it arrives."""

    def __init__(self, connection: Connection, clock: LoopClock, quiet_s: float) -> None:
        self._connection = connection
        self._clock = clock
        self._quiet_s = quiet_s

    async def piece(self) -> bytes:
        """What has arrived since the last call; nothing at the end. Silence for too long is `Unreachable`."""
        self._connection.deadline = self._clock.monotonic_s() + self._quiet_s
        return await self._connection.piece()


class Transport:
    """One way to one API server: a pool, a limiter, credentials."""

    def __init__(
        self,
        target: Target,
        clock: LoopClock,
        *,
        user_agent: str,
        qps: float = 50.0,
        burst: int = 100,
        timeout_s: float = TIMEOUT_S,
        tls_minimum: str = "1.2",
        connections: int = LIMIT,
        observer: Observer | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.guard: Guard | None = None
        self.timeout_s = timeout_s
        self._clock = clock
        self._credentials = credentials(target, clock)
        self._tls = Tls(target, self._credentials, minimum=tls_minimum)
        self._pool = Pool(target, self._tls, clock, env=env, limit=connections)
        self._limiter = Limiter(clock, qps=qps, burst=burst)
        self._observer = observer
        self._base = target.url.path.encode("ascii")
        # A User-Agent of our own: to one that looks like curl the server prints its JSON prettily.
        lines = [("Host", target.url.netloc), ("User-Agent", user_agent), *target.impersonate]
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines).encode("utf-8")

    async def close(self) -> None:
        await self._pool.close()

    async def warm(self, count: int) -> None:
        """Open so many connections before they are needed."""
        await self._pool.warm(count)

    async def own_token(self) -> str:
        """The token by which the server knows us; empty where we prove who we are in another way."""
        if self._credentials.known() is None:
            await self._credentials.renew()
        line = (self._credentials.known() or b"").decode("ascii").strip()
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
    ) -> Answer:
        """The answer to one request, if it is below 400; else the refusal as an exception. `headers`: besides ours."""
        wire = self._wire(method, path, body, content_type, accept)
        if headers:
            more = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
            wire = wire[0] + more, wire[1]
        tries = 0
        while True:
            await self._limiter.take()
            answer = await self._once(method, path, wire, timeout_s or self.timeout_s)
            if answer.status < 400:
                return answer
            tries += 1
            wait_s = retry_after(answer) if answer.status == 429 or answer.status >= 500 else 0.0
            if not wait_s or tries > RETRIES:
                raise refusal(f"{method} {path}", answer)
            await self._clock.sleep(wait_s)

    async def _once(self, method: str, path: str, wire: tuple[bytes, bytes], timeout_s: float) -> Answer:
        """One try; another at once when a kept connection turns out dead under a read, or credentials out of date."""
        second = False
        while True:
            try:
                answer = await self._exchange(method, wire, timeout_s)
            except Unreachable as lost:
                if second or isinstance(lost, TimedOut) or (lost.sent and method != "GET"):
                    raise self._named(lost, method, path) from None
                second = True
                continue
            if answer.status != 401 or second or not self._credentials.refuse():
                return answer
            second = True
            self._pool.renounce_idle()

    async def _exchange(self, method: str, wire: tuple[bytes, bytes], timeout_s: float) -> Answer:
        started = self._clock.monotonic_s()
        status = 0
        connection = await self._connected(timeout_s)
        try:
            self._send(connection, method, wire, started + timeout_s)
            answer = await connection.answer()
            status = answer.status
            return answer
        finally:
            self._pool.give(connection)
            self._observe(method, status, started)

    @asynccontextmanager
    async def stream(
        self, path: str, *, quiet_s: float, timeout_s: float = 0.0, accept: str = JSON
    ) -> AsyncIterator[Stream]:
        """A GET whose answer is read while it lasts; leaving the block ends it."""
        await self._limiter.take()
        started = self._clock.monotonic_s()
        timeout_s = timeout_s or self.timeout_s
        connection = await self._connected(timeout_s, stream=True)
        try:
            self._send(connection, "GET", self._wire("GET", path, b"", "", accept), started + timeout_s)
            head = await connection.head()
            self._observe("WATCH", head.status, started)
            if head.status >= 400:
                answer = await connection.answer()
                if head.status == 401 and self._credentials.refuse():
                    self._pool.renounce_idle()
                raise refusal(f"GET {path}", answer)
            yield Stream(connection, self._clock, quiet_s)
        except Unreachable as lost:
            raise self._named(lost, "GET", path) from None
        finally:
            self._pool.give(connection)

    async def _connected(self, timeout_s: float, *, stream: bool = False) -> Connection:
        if self._credentials.known() is None:
            await self._credentials.renew()
        return await self._pool.take(timeout_s, stream=stream)

    def _send(self, connection: Connection, method: str, wire: tuple[bytes, bytes], deadline: float) -> None:
        if method != "GET" and self.guard is not None:
            self.guard.check()
        connection.deadline = deadline
        connection.send(wire[0] + (self._credentials.known() or b"") + wire[1])

    def _wire(self, method: str, path: str, body: bytes, content_type: str, accept: str) -> tuple[bytes, bytes]:
        """A request's bytes before and after the line that says who asks."""
        first = b"%b %b%b HTTP/1.1\r\n%bAccept: %b\r\n" % (
            method.encode("ascii"),
            self._base,
            path.encode("ascii"),
            self._head,
            accept.encode("ascii"),
        )
        if not body:
            return first, b"Content-Length: 0\r\n\r\n" if method in ("POST", "PUT", "PATCH") else b"\r\n"
        return first, b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            content_type.encode("ascii"),
            len(body),
            body,
        )

    def _observe(self, method: str, status: int, started: float) -> None:
        if self._observer is not None:
            self._observer(method, status, self._clock.monotonic_s() - started)

    @staticmethod
    def _named(lost: Unreachable, method: str, path: str) -> ApiError:
        return type(lost)(f"{method} {path.partition('?')[0]}: {lost}", sent=lost.sent)
