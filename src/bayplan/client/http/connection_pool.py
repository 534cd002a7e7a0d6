"""Pool of keep-alive connections to one server.

The transport acquires one connection per request. Cost with an idle connection: one pop from a list. A new connection
costs client and server some milliseconds, and a busy server does not answer faster over more connections. Above
`WARM_CONNECTIONS`, requests wait for a free connection, and open another one only after `_MAX_WAIT_S`. A caller that
expects many requests opens the first connections in advance. One task, the sweeper, checks all connections four times a
second: it times out overdue requests, closes connections that are idle too long, and lets waiters open connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.http.connection import HttpConnection
from bayplan.client.http.proxy import proxy_for, tunnel
from bayplan.client.http.tls import TlsContextCache
from bayplan.clock import LoopClock
from bayplan.errors import TimedOut, Unreachable, UntrustedServer

MAX_CONNECTIONS = 200
"""Maximum of open connections. Each request and each watch holds one."""

WARM_CONNECTIONS = 32
"""Up to this many connections for requests are opened without waiting for a free one."""

IDLE_S = 60.0
"""Below the 90 s after which kube-apiserver closes an idle connection. A request could race with the server's close."""

CONNECT_S = 30.0
_WARM_S = 3.0
"""Timeout of connections that are opened in advance: the caller of `warm` waits for them."""

_TICK_S = 0.25
_MAX_WAIT_S = 0.5
"""A busy server frees a connection sooner than this, and each additional connection would slow it down."""
_NEW_PER_TICK = 16

_TCP_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""Detects a dead peer within 25 s: keepalive probes on an idle connection, TCP_USER_TIMEOUT (in milliseconds) on one
with unacknowledged data."""


class _Waiter(NamedTuple):
    """Request that waits for a connection. Its future yields a connection, or None for permission to open one."""

    ready: asyncio.Future[HttpConnection | None]
    since: float


class ConnectionPool:
    def __init__(
        self,
        target: ConnectionConfig,
        tls: TlsContextCache,
        clock: LoopClock,
        *,
        env: Mapping[str, str] | None = None,
        limit: int = MAX_CONNECTIONS,
    ) -> None:
        self._target = target
        self._tls = tls
        self._clock = clock
        self._proxy = proxy_for(target, os.environ if env is None else env)
        self._limit = limit
        self._idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._opening = 0
        self._streams: set[HttpConnection] = set()
        self._waiters: deque[_Waiter] = deque()
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    async def acquire(self, timeout_s: float, *, stream: bool = False) -> HttpConnection:
        """Acquire a connection for one request: the one used last, so that the rest can reach the idle timeout.

        `stream`: the request is a watch. It opens a connection at once, and no other request waits for its end.
        """
        connection = await self._acquire(timeout_s, eager=stream)
        if stream:
            self._streams.add(connection)
        return connection

    async def _acquire(self, timeout_s: float, *, eager: bool) -> HttpConnection:
        while not self._closed:
            while self._idle:
                connection = self._idle.pop()
                if not connection.lost:
                    return connection
                self._drop(connection)
            room = self._limit - len(self._all) - self._opening
            if room > 0 and (eager or len(self._all) + self._opening - len(self._streams) < WARM_CONNECTIONS):
                return await self._open(min(timeout_s, CONNECT_S))
            received = await self._wait_for_slot()
            if received is not None:
                if not received.lost:
                    return received
                self._drop(received)
            eager = True  # a connection closed, or this request has waited long enough
        raise Unreachable("the client is closed")

    async def warm(self, count: int) -> None:
        """Open connections until there are `count`, for a burst of requests. Failures are ignored: the request that
        needs a connection reports them."""
        missing = min(count, self._limit) - (len(self._all) + self._opening - len(self._streams))
        opening = (self._open(_WARM_S) for _ in range(missing))
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(result, HttpConnection):
                self._make_available(result)

    def release(self, connection: HttpConnection) -> None:
        """Return a connection to the pool. It is reused if its response was read to the end."""
        self._streams.discard(connection)
        if connection.reusable and not self._closed and connection in self._all:
            connection.rest()
            self._make_available(connection)
        else:
            self._drop(connection)

    def _make_available(self, connection: HttpConnection) -> None:
        """Give the connection to the longest waiter, or make it idle."""
        if not self._wake_waiter(connection):
            connection.idle_since = self._clock.monotonic_s()
            self._idle.append(connection)

    def close_idle(self) -> None:
        """Close the idle connections, because their credentials are invalid or their peer may be dead."""
        for connection in list(self._idle):
            self._drop(connection)
        self._idle.clear()

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        self._closed = True
        for connection in list(self._all):
            self._drop(connection)
        while self._waiters:
            self._wake_waiter()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None

    def _drop(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        self._streams.discard(connection)
        connection.abort("the client closed the connection")
        self._wake_waiter()

    def _wake_waiter(self, connection: HttpConnection | None = None) -> bool:
        """Give a connection to the longest waiter; without one, permission to open one."""
        while self._waiters:
            waiter = self._waiters.popleft().ready
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    async def _wait_for_slot(self) -> HttpConnection | None:
        ready: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(_Waiter(ready, self._clock.monotonic_s()))
        try:
            return await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():  # this request was next: pass it on
                received = ready.result()
                if received is None:
                    self._wake_waiter()
                else:
                    self.release(received)
            raise

    async def _open(self, timeout_s: float) -> HttpConnection:
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="client connections")
        context = self._tls.context()
        self._opening += 1
        connection: HttpConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect(context)
        except TimeoutError:
            raise TimedOut(f"{self._target.server} did not answer within {timeout_s:g} s; is it running?") from None
        except ssl.SSLCertVerificationError as fault:
            raise UntrustedServer(
                f"the certificate of {self._target.server} is not trusted: {fault.verify_message}; check the "
                "certificate authority and the server's name in the kubeconfig"
            ) from None
        except (OSError, UnicodeError) as fault:  # UnicodeError: the host is not a valid name
            through = f" through the proxy {self._proxy.hostname}" if self._proxy is not None else ""
            raise Unreachable(f"cannot connect to {self._target.server}{through}: {fault}; is it running?") from None
        finally:
            self._opening -= 1
            if connection is None:
                self._wake_waiter()  # another waiter may try
        self._all.add(connection)
        return connection

    async def _connect(self, context: ssl.SSLContext | None) -> HttpConnection:
        if self._target.in_process is not None:
            connection = HttpConnection()
            self._target.in_process.connect(connection)
            return connection
        loop, url = asyncio.get_running_loop(), self._target.url
        host, port = url.hostname or "", url.port or (443 if context else 80)
        name = self._tls.server_name if context else None
        if self._proxy is None:
            transport, connection = await loop.create_connection(
                HttpConnection, host, port, ssl=context, server_hostname=name, happy_eyeballs_delay=0.3
            )
            _keep_alive(transport)
            return connection
        pipe = await tunnel(self._proxy, host, port)
        connection = HttpConnection()
        _keep_alive(pipe)
        if context is None:
            pipe.set_protocol(connection)
            connection.connection_made(pipe)
            pipe.resume_reading()
            return connection
        secured = await loop.start_tls(pipe, connection, context, server_hostname=name)
        assert secured is not None
        connection.connection_made(secured)
        return connection

    async def _sweep(self) -> None:
        while True:
            # Aligned to the clock, so that the sweepers of all clients wake the process once per tick.
            await self._clock.sleep(_TICK_S - self._clock.monotonic_s() % _TICK_S)
            now = self._clock.monotonic_s()
            overdue = [each for each in self._all if each.deadline <= now]
            for connection in overdue:
                connection.time_out()
            if overdue:
                # A fault that swallowed these requests may affect every open connection.
                self.close_idle()
            for connection in [each for each in self._idle if each.lost or now - each.idle_since > IDLE_S]:
                self._idle.remove(connection)
                self._drop(connection)
            self._allow_open(now)

    def _allow_open(self, now: float) -> None:
        """Let requests open a connection that have waited too long for a free one."""
        for _ in range(min(_NEW_PER_TICK, self._limit - len(self._all) - self._opening)):
            if not self._waiters or now - self._waiters[0].since < _MAX_WAIT_S:
                return
            self._wake_waiter()


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _TCP_OPTIONS.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
