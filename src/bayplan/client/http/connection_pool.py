"""Which connection carries the next request? Keep-alive connections to one server, opened as they are needed.

Asked for every request; costs a pop of a list while an idle connection is there. Opening one costs both sides some
milliseconds, and a server that is busy answers no more for it: beyond the first few, requests wait for one that comes
free, and only where that takes long another is opened. Who expects many requests opens the first few beforehand. One
task, the sweeper, looks at all connections four times a second: it gives up requests that are overdue, closes
connections that idle too long and lets those open who waited.
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
"""Connections open at once. A request holds one while it lasts, and so does a watch."""

WARM_CONNECTIONS = 32
"""So many connections for requests are opened without waiting for one that comes free."""

IDLE_S = 60.0
"""Below the 90 s after which kube-apiserver closes: better that we do, a request could cross its closing."""

CONNECT_S = 30.0
_WARM_S = 3.0
"""How long connections may take that nobody needs yet: whoever opens them beforehand waits for them."""

_TICK_S = 0.25
_MAX_WAIT_S = 0.5
"""A server that is merely busy answers sooner, and would be busier with every connection more."""
_NEW_PER_TICK = 16

_TCP_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""A peer that acknowledges nothing any more is noticed within 25 s, by probes on a connection that idles and by the
user timeout (in milliseconds) on one that has something to send."""


class _Waiter(NamedTuple):
    """Somebody who needs a connection. Their turn brings one, or leave to open one."""

    turn: asyncio.Future[HttpConnection | None]
    since: float


class ConnectionPool:
    """The connections of one client."""

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
        """A connection for one request, the one used last first: the others may then idle out.

        `stream`: the request lasts, and nobody is to wait for its connection.
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
            handed = await self._wait_for_slot()
            if handed is not None:
                if not handed.lost:
                    return handed
                self._drop(handed)
            eager = True  # one is gone, or this has waited long enough
        raise Unreachable("the client is closed")

    async def warm(self, count: int) -> None:
        """Open connections until there are so many, for a burst of requests to find. Failing is nothing: whoever needs
        one is told why there is none."""
        missing = min(count, self._limit) - (len(self._all) + self._opening - len(self._streams))
        opening = (self._open(_WARM_S) for _ in range(missing))
        for opened in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(opened, HttpConnection):
                self._keep(opened)

    def release(self, connection: HttpConnection) -> None:
        """Take back a connection: it serves again if its answer was read to the end."""
        self._streams.discard(connection)
        if connection.reusable and not self._closed and connection in self._all:
            connection.rest()
            self._keep(connection)
        else:
            self._drop(connection)

    def _keep(self, connection: HttpConnection) -> None:
        """For whoever waits, or for the next."""
        if not self._wake_waiter(connection):
            connection.idle_since = self._clock.monotonic_s()
            self._idle.append(connection)

    def close_idle(self) -> None:
        """Close the idle connections, because their user is no longer valid or their peer may be dead."""
        for connection in list(self._idle):
            self._drop(connection)
        self._idle.clear()

    async def close(self) -> None:
        """Close everything; requests under way are told so."""
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
        """Hand a connection to whoever waits longest; without one: let them see whether they may open one."""
        while self._waiters:
            waiter = self._waiters.popleft().turn
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    async def _wait_for_slot(self) -> HttpConnection | None:
        turn: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(_Waiter(turn, self._clock.monotonic_s()))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was our turn; it is the next one's now
                handed = turn.result()
                if handed is None:
                    self._wake_waiter()
                else:
                    self.release(handed)
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
        except (OSError, UnicodeError) as fault:  # the latter: a host that is no name at all
            through = f" through the proxy {self._proxy.hostname}" if self._proxy is not None else ""
            raise Unreachable(f"cannot connect to {self._target.server}{through}: {fault}; is it running?") from None
        finally:
            self._opening -= 1
            if connection is None:
                self._wake_waiter()  # somebody else may try
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
            # On the beat of the clock, so that the sweepers of all clients wake the process once and not one by one.
            await self._clock.sleep(_TICK_S - self._clock.monotonic_s() % _TICK_S)
            now = self._clock.monotonic_s()
            overdue = [each for each in self._all if each.deadline <= now]
            for connection in overdue:
                connection.time_out()
            if overdue:
                # Whatever swallowed these requests may swallow the next one on any connection that is open already.
                self.close_idle()
            for connection in [each for each in self._idle if each.lost or now - each.idle_since > IDLE_S]:
                self._idle.remove(connection)
                self._drop(connection)
            self._allow_open(now)

    def _allow_open(self, now: float) -> None:
        """Whoever waited too long for a connection to come free opens one."""
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
