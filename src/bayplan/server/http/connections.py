"""Connections of an HTTP server: each is a task that reads requests and writes responses.

Each connection has a deadline for its current step: the handshake, the next request, the rest of one, the response and
each chunk of it. One task, the sweeper, closes connections past their deadline. When too many are open, the one that
has been idle for longest is closed, so that a probe always gets in. A client can only break its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Protocol

from bayplan.clock import LoopClock
from bayplan.server.http.requests import MAX_BODY, BadRequest, HttpRequest, Peer, RequestParser
from bayplan.server.http.responses import HttpServerResponse, bad_request_response, response_head, text

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
HEAD_S = 32.0
IDLE_S = 90.0
ANSWER_S = 60.0
WRITE_S = 30.0
MAX_CONNECTIONS = 128

_TICK_S = 0.25
_CHUNK_BYTES = 64 * 1024
_LINGERING_CLOSE_S = 1.0
_PLAIN_HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

Handler = Callable[[HttpRequest], Awaitable[HttpServerResponse]]


class TlsContextSource(Protocol):
    """Source of TLS contexts. Called for each connection, because certificates rotate."""

    def context(self) -> ssl.SSLContext | None:
        """The context; None without TLS."""
        ...

    def peer(self, address: str, tls: ssl.SSLObject | None) -> Peer: ...


class _Connection:
    def __init__(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self.task = task
        self.unserved: socket.socket | None = sock
        """The socket, until the task has taken it over."""
        self.deadline = float("inf")
        self.since = 0.0
        """The time since which the connection waits for its client. It may be closed to admit another one."""
        self.answering = False
        self.streaming = False
        """Whether the response is endless; the server does not wait for it when it closes."""


class ConnectionHandler:
    """All connections of one listening socket."""

    def __init__(
        self,
        handler: Handler,
        contexts: TlsContextSource,
        clock: LoopClock,
        *,
        limit: int = MAX_CONNECTIONS,
        max_body: int = MAX_BODY,
    ) -> None:
        self._handler = handler
        self._contexts = contexts
        self._clock = clock
        self._limit = limit
        self._max_body = max_body
        self._open: dict[asyncio.Task[None], _Connection] = {}
        self._closing = False

    def __len__(self) -> int:
        return len(self._open)

    def deadlines(self) -> list[float]:
        return [each.deadline for each in self._open.values()]

    def accept(self, sock: socket.socket) -> None:
        """Serve a client from now on."""
        if len(self._open) >= self._limit:
            self._close_idle()
        task = asyncio.create_task(self._serve(sock), name="server connection")
        self._open[task] = _Connection(task, sock)
        task.add_done_callback(self._on_closed)

    async def sweep(self) -> None:
        """Close connections past their deadline; runs as long as the server does."""
        while True:
            # in step with other timers of this interval
            await self._clock.sleep(_TICK_S - self._clock.monotonic_s() % _TICK_S)
            now = self._clock.monotonic_s()
            for connection in [each for each in self._open.values() if each.deadline <= now]:
                connection.task.cancel()

    async def close(self, grace_s: float) -> None:
        """Let responses in progress finish, for at most `grace_s`; close all other connections at once."""
        self._closing = True
        for connection in self._open.values():
            if not connection.answering or connection.streaming:
                connection.task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*self._open, return_exceptions=True)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*list(self._open), return_exceptions=True)

    def _close_idle(self) -> None:
        waiting = [each for each in self._open.values() if not each.answering and not each.task.cancelling()]
        oldest = min(waiting or self._open.values(), key=lambda each: each.since)
        oldest.task.cancel()

    def _on_closed(self, task: asyncio.Task[None]) -> None:
        connection = self._open.pop(task)
        if connection.unserved is not None:
            connection.unserved.close()
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("internal error in a connection of the server", exc_info=fault)

    async def _serve(self, sock: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = self._open[task]
        connection.unserved = None
        self._wait(connection, HANDSHAKE_S)
        streams = await self._handshake(sock)
        if streams is None:
            return
        reader, writer = streams
        try:
            await self._serve_requests(connection, reader, writer)
        except (ConnectionError, ssl.SSLError, TimeoutError) as fault:
            log.debug("a client of the server disconnected: %s", fault)
        finally:
            writer.transport.abort()

    async def _handshake(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        spare = sock.dup()  # to answer clients that do not speak TLS
        try:
            tls = self._contexts.context()
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=tls, ssl_shutdown_timeout=_LINGERING_CLOSE_S if tls is not None else None
            )
        except OSError as fault:  # includes TLS errors
            log.debug("http: TLS handshake error from a client: %s", fault)
            if getattr(fault, "reason", "") == "HTTP_REQUEST":
                with contextlib.suppress(OSError):
                    spare.send(_PLAIN_HTTP)
            return None
        finally:
            spare.close()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _serve_requests(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        address = writer.get_extra_info("peername") or ("?", 0)
        peer = self._contexts.peer(f"{address[0]}:{address[1]}", writer.get_extra_info("ssl_object"))
        parser = RequestParser(peer, max_body=self._max_body)
        while not self._closing:
            try:
                request = await self._request(connection, parser, reader, writer)
            except BadRequest as fault:
                await self._send(connection, writer, bad_request_response(fault))
                return await self._close_gracefully(writer)
            if request is None or not await self._answer(connection, request, writer):
                return await self._close_gracefully(writer)
        return None

    async def _request(
        self, connection: _Connection, parser: RequestParser, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpRequest | None:
        """The next request; None when the client has disconnected. A request that has begun has a deadline."""
        self._wait(connection, HEAD_S if parser.has_partial_request else IDLE_S)
        has_begun = parser.has_partial_request
        while (request := parser.next()) is None:
            if parser.awaits_body:
                parser.awaits_body = False
                await self._send(connection, writer, b"HTTP/1.1 100 Continue\r\n\r\n")
                self._wait(connection, HEAD_S)
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                return None
            parser.feed(data)
            if not has_begun:
                has_begun = True
                self._wait(connection, HEAD_S)
        return request

    async def _answer(self, connection: _Connection, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Handle a request and send the response. Returns whether the connection stays open."""
        connection.answering = True
        connection.deadline = self._clock.monotonic_s() + ANSWER_S
        try:
            response = await self._call_handler(request)
            endless = not isinstance(response.body, bytes) and not request.chunks
            last = endless or not request.keep_alive or self._closing
            head = response_head(response, request, self._clock.now(), last=last)
            if request.method == "HEAD":
                await self._send(connection, writer, head)
            elif isinstance(response.body, bytes):
                await self._send(connection, writer, head + response.body)
            else:
                await self._send(connection, writer, head)
                connection.streaming = isinstance(response.body, AsyncGenerator)
                await self._stream(connection, response.body, writer, chunks=request.chunks)
        finally:
            connection.answering = connection.streaming = False
        return not last

    async def _call_handler(self, request: HttpRequest) -> HttpServerResponse:
        try:
            return await self._handler(request)
        except Exception:
            log.exception("the server failed to answer %s %s", request.method, request.path)
            return text("Internal Server Error", 500)

    async def _stream(
        self,
        connection: _Connection,
        pieces: Iterable[bytes] | AsyncGenerator[bytes, None],
        writer: asyncio.StreamWriter,
        *,
        chunks: bool,
    ) -> None:
        async with contextlib.aclosing(pieces if isinstance(pieces, AsyncGenerator) else _as_async(pieces)) as all_:
            async for piece in all_:
                if piece:
                    await self._send(connection, writer, b"%x\r\n%b\r\n" % (len(piece), piece) if chunks else piece)
                await asyncio.sleep(0)
        if chunks:
            await self._send(connection, writer, b"0\r\n\r\n")

    async def _send(self, connection: _Connection, writer: asyncio.StreamWriter, data: bytes) -> None:
        connection.deadline = self._clock.monotonic_s() + WRITE_S
        writer.write(data)
        await writer.drain()

    async def _close_gracefully(self, writer: asyncio.StreamWriter) -> None:
        """Close in order, so that the last response arrives."""
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGERING_CLOSE_S):
                await writer.wait_closed()

    def _wait(self, connection: _Connection, seconds: float) -> None:
        connection.since = self._clock.monotonic_s()
        connection.deadline = connection.since + seconds


async def _as_async(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece
