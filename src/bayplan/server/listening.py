"""Who takes connections from a socket? One loop, which outlives clients that go away and files that run out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from bayplan.errors import ServingError
from bayplan.server.connections import Connections

log = logging.getLogger(__name__)

_BACKLOG = 128
_BREATH_S = 0.1

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""What `getaddrinfo` finds."""


class Listening:
    """Hands what comes to `connections`, from `start` to `close`. `name`: of its tasks."""

    def __init__(self, connections: Connections, name: str) -> None:
        self._connections = connections
        self._name = name
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port that is listened on; another than was asked for if that was 0."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    def start(self, listening: socket.socket) -> None:
        self._socket = listening
        self._tasks = [
            asyncio.create_task(self._accept(listening), name=self._name),
            asyncio.create_task(self._connections.sweep(), name=f"{self._name} sweeper"),
        ]

    async def close(self, grace_s: float) -> None:
        """Stop listening, let answers under way end, for so long."""
        await _ended(self._tasks[:1])
        if self._socket is not None:
            self._socket.close()
        await self._connections.close(grace_s)
        await _ended(self._tasks[1:])
        self._tasks = []

    async def _accept(self, listening: socket.socket) -> None:
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


def bound(address: Address, refusal: Callable[[OSError], ServingError], *, share_port: bool = False) -> socket.socket:
    """A socket that listens on an address; `refusal`: what to say where it cannot."""
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
        raise refusal(fault) from None
    return listening


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
