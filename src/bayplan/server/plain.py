"""Who answers in the open? A plain HTTP server for probes and scrapers, where upstream has one without TLS.

Volcano serves its health and its metrics so, each on an address of its own, when flags ask for it. Nothing is shown
here that needs permission, and nothing can be changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

from bayplan.clock import LoopClock
from bayplan.errors import ServingError
from bayplan.server.connections import Connections
from bayplan.server.requests import Peer, Request
from bayplan.server.responses import NOT_FOUND, Response

log = logging.getLogger(__name__)

PlainHandler = Callable[[Request], Response | Awaitable[Response]]

_BACKLOG = 128
_BREATH_S = 0.1


class _NoTls:
    def context(self) -> ssl.SSLContext | None:
        return None

    def peer(self, address: str, tls: ssl.SSLObject | None) -> Peer:  # noqa: ARG002
        return Peer(address)


class PlainServer:
    """Listens from `start` to `close` on `host:port`; `:8080` is every address of the machine.

    `otherwise`: who answers on paths that are no route."""

    def __init__(
        self,
        address: str,
        routes: Mapping[str, PlainHandler],
        *,
        clock: LoopClock,
        otherwise: PlainHandler = lambda _: NOT_FOUND,
    ) -> None:
        self._address = address
        self._routes = routes
        self._otherwise = otherwise
        self._connections = Connections(self._handle, _NoTls(), clock)
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port that is listened on; another than was asked for if that was 0."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Listen. `ServingError` where that cannot be."""
        self._socket = _bound(self._address)
        self._tasks = [
            asyncio.create_task(self._listen(self._socket), name="plain server"),
            asyncio.create_task(self._connections.sweep(), name="plain server sweeper"),
        ]
        log.info("Serving on %s (port %d)", self._address, self.port)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._socket is not None:
            self._socket.close()
        await self._connections.close(1.0)

    async def _listen(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as fault:  # no more files, or a client that went away: others will come
                log.warning("cannot accept a connection: %s", fault)
                await asyncio.sleep(_BREATH_S)
                continue
            client.setblocking(False)
            self._connections.accept(client)

    async def _handle(self, request: Request) -> Response:
        answer = self._routes.get(request.path, self._otherwise)(request)
        return answer if isinstance(answer, Response) else await answer


def _bound(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as fault:
        raise ServingError(f"{address} is no address to listen on: {fault}; write host:port, such as :8080") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as fault:
        listening.close()
        raise ServingError(
            f"cannot listen on {address}: {fault.strerror}; free the port or choose another address"
        ) from None
    return listening
