"""Who answers in the open? A plain HTTP server for probes and scrapers, where upstream has one without TLS.

Volcano serves its health and its metrics so, each on an address of its own, when flags ask for it. Nothing is shown
here that needs permission, and nothing can be changed.

A probe is a request on a connection of its own, and the busier the loop is, the surer the request has arrived by the
time that the connection is accepted. Such a one is answered on the spot: by way of a task and a stream it would need
six turns of the loop, each as long as everything else that is under way.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

from bayplan.clock import LoopClock
from bayplan.errors import ServingError, UsageError
from bayplan.server.http.connections import ConnectionHandler
from bayplan.server.http.listener import Listener, bind_socket
from bayplan.server.http.requests import (
    BadRequest,
    HttpRequest,
    Peer,
    RequestParser,
)
from bayplan.server.http.responses import NOT_FOUND, HttpServerResponse, response_head

log = logging.getLogger(__name__)

InsecureHandler = Callable[[HttpRequest], HttpServerResponse | Awaitable[HttpServerResponse]]

_GRACE_S = 1.0
_PIECE = 4096
_LAST_PORT = 65535
_PROBE_PATHS = ("/healthz", "/livez", "/readyz")
"""What is answered below these waits for nothing."""


class _PlainContexts:
    def context(self) -> ssl.SSLContext | None:
        return None

    def peer(self, address: str, tls: ssl.SSLObject | None) -> Peer:  # noqa: ARG002
        return Peer(address)


class InsecureServer:
    """Listens from `start` to `close` on `host:port`; `:8080` is every address of the machine.

    `otherwise`: who answers on paths that are no route."""

    def __init__(
        self,
        address: str,
        routes: Mapping[str, InsecureHandler],
        *,
        clock: LoopClock,
        otherwise: InsecureHandler = lambda _: NOT_FOUND,
    ) -> None:
        self._address = address
        self._routes = routes
        self._probes = {path: handler for path, handler in routes.items() if path.startswith(_PROBE_PATHS)}
        self._otherwise = otherwise
        self._clock = clock
        self._connections = ConnectionHandler(self._handle, _PlainContexts(), clock)
        self._listening = Listener(self._connections, "plain server", served=self._respond)

    @property
    def port(self) -> int:
        """The port that is listened on; another than was asked for if that was 0."""
        return self._listening.port

    async def start(self) -> None:
        """Listen. `ServingError` where that cannot be."""
        self._listening.start(_bind_address(self._address))
        log.info("Serving on %s (port %d)", self._address, self.port)

    async def close(self) -> None:
        await self._listening.close(_GRACE_S)

    def _respond(self, client: socket.socket) -> bool:
        """Answer a probe that is here already, and let it go; nothing is taken from whoever is not answered."""
        if not self._probes:
            return False
        try:
            data = client.recv(_PIECE, socket.MSG_PEEK)
            if (answer := self._at_once(data)) is None:
                return False
            client.recv(len(data))  # whoever closes on unread bytes takes back the answer, too
            client.send(answer)  # a new socket has room for it
        except OSError as fault:
            if isinstance(fault, BlockingIOError):
                return False
            log.debug("a client of the plain server is gone: %s", fault)
        client.close()
        return True

    def _at_once(self, data: bytes) -> bytes | None:
        """The whole answer, if this is a probe and wants no other afterwards."""
        parser = RequestParser()
        parser.feed(data)
        try:
            request = parser.next()
        except BadRequest:
            return None
        if request is None or parser.has_partial_request or request.keep_alive or request.path not in self._probes:
            return None
        try:
            response = self._probes[request.path](request)
        except Exception:  # it is asked again by way of its task, which tells of it
            return None
        assert isinstance(response, HttpServerResponse)
        assert isinstance(response.body, bytes)
        head = response_head(response, request, self._clock.now(), last=True)
        return head if request.method == "HEAD" else head + response.body

    async def _handle(self, request: HttpRequest) -> HttpServerResponse:
        answer = self._routes.get(request.path, self._otherwise)(request)
        return answer if isinstance(answer, HttpServerResponse) else await answer


class _AddressError(ServingError, UsageError):
    """The call is wrong, and not the machine."""


def _bind_address(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"
    try:
        if not colon or not 0 <= int(port) <= _LAST_PORT:  # the resolver would cut off what is too much
            raise ValueError(f"{port!r} is no port" if colon else "it has no port")
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, ValueError) as fault:
        raise _AddressError(f"{address} is no address to listen on: {fault}; write host:port, such as :8080") from None
    return bind_socket(
        found,
        lambda fault: ServingError(
            f"cannot listen on {address}: {fault.strerror}; free the port or choose another address"
        ),
    )
