"""In-process access to the API server, without a socket.

`app/cluster.py` connects the clients of the same process to it. Headers and bodies are the same bytes as on the wire;
TLS, the kernel and aiohttp are left out, more than half of the cost of a small request. Requests authenticate by token
as on the wire. A single response is returned directly; a watch uses a transport with flow control like a socket. Cost:
about 10 µs a request, client and server together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from http import HTTPStatus

from multidict import CIMultiDict, CIMultiDictProxy

from bayplan.apiserver.content_negotiation import JSON
from bayplan.apiserver.http.responses import NO_CACHE_HEADERS, ApiResponse, WatchResponse, warning_header
from bayplan.apiserver.http.server import RawRequest, RequestHandler, VersionSource, handle_request, send_watch
from bayplan.errors import Unreachable

_MAX_CACHED_HEADERS = 4096
_PHRASES = {each.value: each.phrase for each in HTTPStatus}


class InProcessServer:
    """The server side of in-process connections; clients get it in their `ConnectionConfig`."""

    def __init__(self, handler: RequestHandler, version: VersionSource) -> None:
        self.handler = handler
        self.version = version
        self._open: set[_InProcessTransport] = set()
        self._closed = False

    async def request(self, method: str, path: str, lines: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        """Serve one request. Returns status, header lines and body."""
        if self._closed:
            raise Unreachable("the API server of this process is closed")
        target, _, query = path.partition("?")
        response = await handle_request(
            self.handler, RawRequest(method, target, query, _headers(lines), None, _body_reader(body))
        )
        if not isinstance(response, ApiResponse):
            response.watch.stop()
            raise Unreachable("a watch has no single response; use connect()")
        return response.code, _header_lines(response), response.body

    def connect(self, client: asyncio.Protocol) -> None:
        transport = _InProcessTransport(self, client)
        self._open.add(transport)
        client.connection_made(transport)

    def on_close(self, transport: _InProcessTransport) -> None:
        self._open.discard(transport)

    def close(self) -> None:
        """Close every connection and refuse further requests."""
        self._closed = True
        for transport in list(self._open):
            transport.abort()


class _InProcessTransport(asyncio.Transport):
    """Transport of a client with the server behind it: each `write` is one whole request."""

    def __init__(self, server: InProcessServer, client: asyncio.Protocol) -> None:
        super().__init__()
        self._server = server
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._closed = False

    # Called by the client

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._task = self._loop.create_task(self._respond(bytes(data)))

    def pause_reading(self) -> None:
        self._can_write.clear()

    def resume_reading(self) -> None:
        self._can_write.set()

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._server.on_close(self)
        if self._task is not None:
            self._task.cancel()
        self._loop.call_soon(self._client.connection_lost, None)

    # Server side

    async def _respond(self, request: bytes) -> None:
        response = await handle_request(self._server.handler, _parse_request(request))
        if isinstance(response, ApiResponse):
            self._send(_response_bytes(response))
            return
        try:
            await self._stream(response)
        except TimeoutError:
            self.abort()
        finally:
            response.watch.stop()

    async def _stream(self, stream: WatchResponse) -> None:
        warnings = "".join(f"Warning: {warning_header(text)}\r\n" for text in stream.warnings)
        self._send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n%b\r\n"
            % warnings.encode("latin-1", "replace")
        )
        await send_watch(stream, self._chunk, self._server.version)
        self._send(b"0\r\n\r\n")

    async def _chunk(self, lines: bytes) -> None:
        await self._can_write.wait()
        self._send(b"%x\r\n%b\r\n" % (len(lines), lines))

    def _send(self, data: bytes) -> None:
        if not self._closed:
            self._client.data_received(data)


def _parse_request(request: bytes) -> RawRequest:
    head, _, body = request.partition(b"\r\n\r\n")
    line, _, rest = head.partition(b"\r\n")
    method, target, _ = line.decode("ascii").split(" ", 2)
    path, _, query = target.partition("?")
    return RawRequest(method, path, query, _headers(rest), None, _body_reader(body))


def _body_reader(body: bytes) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        return body

    return read


@lru_cache(_MAX_CACHED_HEADERS)
def _headers(lines: bytes) -> CIMultiDictProxy[str]:
    """Parses header lines. A client repeats the same headers, so the result is cached."""
    found: CIMultiDict[str] = CIMultiDict()
    for line in lines.decode("utf-8").split("\r\n"):
        name, _, value = line.partition(":")
        if name:
            found.add(name, value.strip())
    return CIMultiDictProxy(found)


_DEFAULT_HEADER_LINES = "".join(
    f"\r\n{name}: {value}" for name, value in {"Content-Type": JSON, **NO_CACHE_HEADERS}.items()
).encode()


def _header_lines(response: ApiResponse) -> bytes:
    """The header lines of a response, each after its line break."""
    if response.headers == NO_CACHE_HEADERS and response.content_type == JSON and not response.warnings:
        return _DEFAULT_HEADER_LINES
    lines = [f"\r\nContent-Type: {response.content_type}"]
    lines += [f"\r\n{name}: {value}" for name, value in response.headers.items()]
    lines += [f"\r\nWarning: {warning_header(text)}" for text in response.warnings]
    return "".join(lines).encode("utf-8")


def _response_bytes(response: ApiResponse) -> bytes:
    first = f"HTTP/1.1 {response.code} {_PHRASES.get(response.code, '')}".encode("ascii")
    return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (first, _header_lines(response), len(response.body), response.body)
