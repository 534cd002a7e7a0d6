"""Who answers in the open? A plain HTTP server for probes and scrapers, where upstream has one without TLS.

Volcano serves its health and its metrics so, each on an address of its own, when flags ask for it. Nothing is shown
here that needs permission, and nothing can be changed.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

from bayplan.clock import LoopClock
from bayplan.errors import ServingError
from bayplan.server.connections import Connections
from bayplan.server.listening import Listening, bound
from bayplan.server.requests import Peer, Request
from bayplan.server.responses import NOT_FOUND, Response

log = logging.getLogger(__name__)

PlainHandler = Callable[[Request], Response | Awaitable[Response]]

_GRACE_S = 1.0


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
        self._listening = Listening(self._connections, "plain server")

    @property
    def port(self) -> int:
        """The port that is listened on; another than was asked for if that was 0."""
        return self._listening.port

    async def start(self) -> None:
        """Listen. `ServingError` where that cannot be."""
        self._listening.start(_bound(self._address))
        log.info("Serving on %s (port %d)", self._address, self.port)

    async def close(self) -> None:
        await self._listening.close(_GRACE_S)

    async def _handle(self, request: Request) -> Response:
        answer = self._routes.get(request.path, self._otherwise)(request)
        return answer if isinstance(answer, Response) else await answer


def _bound(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, ValueError) as fault:
        raise ServingError(f"{address} is no address to listen on: {fault}; write host:port, such as :8080") from None
    return bound(
        found,
        lambda fault: ServingError(
            f"cannot listen on {address}: {fault.strerror}; free the port or choose another address"
        ),
    )
