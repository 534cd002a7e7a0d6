"""One connection to the API server: one request at a time, its response whole or streamed.

`ConnectionPool` makes and keeps connections. A timeout is a deadline that the pool's sweeper checks, so a request needs
no timer. When the reader of a stream falls behind, the connection stops reading its socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from bayplan.client.http.response_parser import MalformedResponse, ResponseHead, ResponseParser
from bayplan.errors import TimedOut, Unreachable

HIGH_WATER = 1 << 20
"""Unread bytes of a stream above which the connection stops reading the socket."""

NEVER = float("inf")


class HttpResponse:
    __slots__ = ("body", "head")

    def __init__(self, head: ResponseHead, body: bytes) -> None:
        self.head = head
        self.body = body

    @property
    def status(self) -> int:
        return self.head.status


class HttpConnection(asyncio.Protocol):
    """Protocol of one socket. The request that acquired it from the pool uses it alone."""

    def __init__(self) -> None:
        self.deadline = NEVER
        """Time at which the current request times out. Set by the caller, checked by the pool."""
        self.idle_since = 0.0
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._paused = False
        self._fault: Unreachable | None = None
        self._data_ready: asyncio.Future[None] | None = None
        self._busy = False
        self._streaming = False

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # loops other than asyncio's have other transport classes

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return self.abort("the server sent data without a request")
        try:
            for piece in self._parser.feed(data):
                self._pieces.append(piece)
                self._waiting += len(piece)
        except MalformedResponse as fault:
            return self.abort(f"the response cannot be parsed: {fault}")
        if self._streaming or self._parser.complete:
            self._wake_reader()
        if self._streaming and self._waiting > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        return None

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._parser.end()
        if self._busy and not self._parser.complete and self._fault is None:
            why = f"the connection was cut{f': {exc}' if exc else ''}; the server may be restarting"
            self._fault = Unreachable(why, sent=True)
        self._wake_reader()

    # Methods for the pool and the transport.

    def send(self, request: bytes, *, no_body: bool = False) -> None:
        """Write a request. The caller then awaits `response`, or `head` and `piece`."""
        if self.lost or self._transport is None or self._transport.is_closing():
            raise Unreachable("the connection was closed before the request was written")
        self._parser.expect(no_body=no_body)
        self._busy, self._streaming, self._fault = True, False, None
        self._transport.write(request)

    async def response(self) -> HttpResponse:
        """Wait for the whole response to the request."""
        while not self._parser.complete:
            await self._wait_for_data()
        head = self._parser.head
        assert head is not None
        return HttpResponse(head, self._take())

    async def head(self) -> ResponseHead:
        """Wait for the head of the response. The caller then reads the body with `piece`."""
        self._streaming = True
        while self._parser.head is None:
            await self._wait_for_data()
        return self._parser.head

    async def piece(self) -> bytes:
        """Return what has arrived of the body since the last call, or nothing at its end."""
        while not self._pieces:
            if self._parser.complete:
                return b""
            await self._wait_for_data()
        data = self._take()
        self._resume()
        return data

    @property
    def reusable(self) -> bool:
        """Whether another request may use the connection."""
        return self._parser.complete and self._parser.keeps_alive and not self.lost

    def rest(self) -> None:
        """Make the connection idle after a response.

        The caller may have left without reading the response (a cancelled task, an abandoned stream). The rest is
        dropped and the socket resumed, so that the next request finds neither.
        """
        self._busy = False
        self.deadline = NEVER
        self._take()
        self._resume()

    def time_out(self) -> None:
        """Fail the current request: its deadline has passed."""
        self._fault = self._fault or TimedOut("the server did not answer in time; it may be overloaded", sent=True)
        self.abort("")

    def abort(self, why: str) -> None:
        """Close the connection. A request in flight fails with `why`."""
        if self._fault is None and self._busy:
            self._fault = Unreachable(why, sent=True)
        self.lost = True
        if self._transport is not None:
            self._transport.abort()
        self._wake_reader()

    def _take(self) -> bytes:
        data = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self.lost:
            self._paused = False
            self._transport.resume_reading()

    async def _wait_for_data(self) -> None:
        if self._fault is not None:
            raise self._fault
        self._data_ready = self._loop.create_future()
        try:
            await self._data_ready
        finally:
            self._data_ready = None
        if self._fault is not None and not self._parser.complete:
            raise self._fault

    def _wake_reader(self) -> None:
        if self._data_ready is not None and not self._data_ready.done():
            self._data_ready.set_result(None)
