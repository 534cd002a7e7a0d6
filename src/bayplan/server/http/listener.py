"""Accept loop of the HTTP servers. It survives clients that disconnect and a lack of file descriptors.

It is a callback that accepts all waiting connections in one turn of the loop; a task would need another turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

from bayplan.errors import ServingError
from bayplan.server.http.connections import ConnectionHandler

log = logging.getLogger(__name__)

_BACKLOG = 128
_RETRY_S = 0.1

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""An entry of `getaddrinfo`."""


class Listener:
    """Accepts connections for `connections`, from `start` to `close`. `name`: prefix of its task's name.

    `served`: called first with each client; returns whether it has answered the client and closed the connection."""

    def __init__(
        self, connections: ConnectionHandler, name: str, *, served: Callable[[socket.socket], bool] = lambda _: False
    ) -> None:
        self._connections = connections
        self._name = name
        self._served = served
        self._socket: socket.socket | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port of the server, also when port 0 was requested."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    def start(self, listening: socket.socket) -> None:
        self._socket = listening
        self._listen(listening)
        self._sweeper = asyncio.create_task(self._connections.sweep(), name=f"{self._name} sweeper")

    async def close(self, grace_s: float) -> None:
        """Stop listening, and let responses in progress finish within `grace_s`."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        await self._connections.close(grace_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None

    def _listen(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BACKLOG):
            try:
                client, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # no client, or it disconnected: wait for the next one
            except OSError as fault:  # out of file descriptors: an immediate retry would fail too
                log.warning("cannot accept a connection: %s", fault)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._retry_timer = loop.call_later(_RETRY_S, self._listen, listening)
                return
            client.setblocking(False)
            if not self._served(client):
                self._connections.accept(client)


def bind_socket(
    address: Address, make_error: Callable[[OSError], ServingError], *, share_port: bool = False
) -> socket.socket:
    """A listening socket. `make_error`: builds the error if the address cannot be used."""
    family, kind, protocol, _, where = address
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(where)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as fault:
        listening.close()
        raise make_error(fault) from None
    return listening
