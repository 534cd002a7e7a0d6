"""Plain HTTP server for probes and scrapers, where upstream has one without TLS.

Volcano serves its health and its metrics this way, each on an address of its own, when flags enable it. It serves
nothing that needs permission, and its requests change nothing.

A probe is a request on a connection of its own. The busier the loop is, the likelier the request has arrived when the
connection is accepted. Such a request is answered at once: a task and a stream would take six turns of the loop, each
as long as all other work in progress.
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
from bayplan.server.http.requests import BadRequest, HttpRequest, Peer, RequestParser
from bayplan.server.http.responses import NOT_FOUND, HttpServerResponse, response_head

log = logging.getLogger(__name__)

InsecureHandler = Callable[[HttpRequest], HttpServerResponse | Awaitable[HttpServerResponse]]

_GRACE_S = 1.0
_PIECE = 4096
_LAST_PORT = 65535
_PROBE_PATHS = ("/healthz", "/livez", "/readyz")
"""Handlers below these paths never wait."""


class _PlainContexts:
    def context(self) -> ssl.SSLContext | None:
        return None

    def peer(self, address: str, tls: ssl.SSLObject | None) -> Peer:  # noqa: ARG002
        return Peer(address)


class InsecureServer:
    """Plain HTTP server on `host:port`, from `start` to `close`; `:8080` means all addresses of the machine.

    `otherwise`: the handler of unknown paths."""

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
        """The port of the server, also when port 0 was requested."""
        return self._listening.port

    async def start(self) -> None:
        """Start the server. Raises `ServingError` if the address is unusable."""
        self._listening.start(_bind_address(self._address))
        log.info("Serving on %s (port %d)", self._address, self.port)

    async def close(self) -> None:
        await self._listening.close(_GRACE_S)

    def _respond(self, client: socket.socket) -> bool:
        """Answer a probe that has arrived already and close the connection; other requests stay unread."""
        if not self._probes:
            return False
        try:
            data = client.recv(_PIECE, socket.MSG_PEEK)
            if (response := self._at_once(data)) is None:
                return False
            client.recv(len(data))  # closing with unread bytes would discard the response
            client.send(response)  # it fits the empty send buffer
        except OSError as fault:
            if isinstance(fault, BlockingIOError):
                return False
            log.debug("a client of the plain server disconnected: %s", fault)
        client.close()
        return True

    def _at_once(self, data: bytes) -> bytes | None:
        """The response bytes, if the request is a complete probe on a connection without keep-alive."""
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
        except Exception:  # the task of the connection calls it again and logs the error
            return None
        assert isinstance(response, HttpServerResponse)
        assert isinstance(response.body, bytes)
        head = response_head(response, request, self._clock.now(), last=True)
        return head if request.method == "HEAD" else head + response.body

    async def _handle(self, request: HttpRequest) -> HttpServerResponse:
        response = self._routes.get(request.path, self._otherwise)(request)
        return response if isinstance(response, HttpServerResponse) else await response


class _AddressError(ServingError, UsageError):
    """The address in the flag is invalid, so this is an error in usage and not of the machine."""


def _bind_address(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"
    try:
        if not colon or not 0 <= int(port) <= _LAST_PORT:  # the resolver would truncate a larger port
            raise ValueError(f"{port!r} is not a port" if colon else "the port is missing")
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, ValueError) as fault:
        raise _AddressError(f"{address} is not a valid address: {fault}; give host:port, such as :8080") from None
    return bind_socket(
        found,
        lambda fault: ServingError(
            f"cannot listen on {address}: {fault.strerror}; free the port or choose another address"
        ),
    )
