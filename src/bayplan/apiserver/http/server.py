"""HTTPS server: HTTP/1.1 over TLS by aiohttp.

A request becomes a `RawRequest`; the response of the handler becomes bytes on the connection. Every exception becomes a
Status, and the server keeps running. Bodies have a maximum size and a timeout. Connections without a request are
closed, and a watch ends with its connection. Cost: about 100 µs a request on one core, TLS included.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy

from bayplan.apiserver import api_errors
from bayplan.apiserver.http.responses import ApiResponse, WatchResponse, error_response, format_response, warning_header

LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 3 << 20
BODY_TIMEOUT_S = 60.0
HANDSHAKE_S = 10.0
FIRST_REQUEST_S = 30.0
IDLE_S = 180.0
SEND_S = 60.0
BOOKMARK_S = 60.0
FINAL_BOOKMARK_S = 2.0
"""Seconds before its end at which a watch gets a bookmark, as from kube-apiserver: the next watch starts from it."""
WATCH_BATCH_DELAY_S = 0.002
"""After a send, a watch collects further changes for this time and sends them as one write. A send costs ten times as
much as encoding a line."""
WATCH_BATCH_BYTES = 16 << 10
"""A send of at least this many bytes is not followed by the delay."""


class RawRequest(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: str
    headers: CIMultiDictProxy[str]
    certificate: dict[str, Any] | None
    body: Callable[[], Awaitable[bytes]]


RequestHandler = Callable[[RawRequest], Awaitable[ApiResponse | WatchResponse]]
VersionSource = Callable[[], int]


class HttpServer:
    def __init__(self, handler: RequestHandler, version: VersionSource) -> None:
        self._handler = handler
        self._version = version
        self._server = web.Server(
            self._handle,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_S,
            max_line_size=64 << 10,
            max_field_size=64 << 10,
            tcp_keepalive=True,
        )
        self._listening: asyncio.Server | None = None
        self._without_request: set[web.RequestHandler] = set()

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Start listening. Returns the port."""
        loop = asyncio.get_running_loop()
        timeout = HANDSHAKE_S if tls is not None else None
        self._listening = await loop.create_server(
            self._accept, host, port, ssl=tls, ssl_handshake_timeout=timeout, backlog=1024
        )
        return int(self._listening.sockets[0].getsockname()[1])

    def _accept(self) -> asyncio.BaseProtocol:
        """Accepts a connection and closes it if no first request arrives; the keep-alive timeout covers later ones."""
        connection = self._server()
        self._without_request.add(connection)
        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_if_silent, connection)
        return connection

    def _close_if_silent(self, connection: web.RequestHandler) -> None:
        if connection in self._without_request:
            self._without_request.discard(connection)
            connection.force_close()

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._server.shutdown(timeout=1.0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._without_request.discard(request.protocol)
        answer = await handle_request(self._handler, self._raw_request(request))
        if isinstance(answer, WatchResponse):
            return await self._stream(request, answer)
        return await self._response(request, answer)

    def _raw_request(self, request: web.BaseRequest) -> RawRequest:
        url = request.rel_url
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        return RawRequest(
            request.method,
            url.raw_path,
            url.raw_query_string,
            request.headers,
            certificate,
            lambda: _read_body(request),
        )

    async def _response(self, request: web.BaseRequest, reply: ApiResponse) -> web.Response:
        headers: CIMultiDict[str] = CIMultiDict(reply.headers)
        headers["Content-Type"] = reply.content_type
        for text in reply.warnings:
            headers.add("Warning", warning_header(text))
        response = web.Response(body=reply.body, status=reply.code, headers=headers)
        if request.body_exists and not request.content.is_eof():
            response.force_close()  # the rest of an unread body would be parsed as the next request
        return response

    async def _stream(self, request: web.BaseRequest, stream: WatchResponse) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        for text in stream.warnings:
            response.headers.add("Warning", warning_header(text))
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            await send_watch(stream, response.write, self._version)
        except (ConnectionError, TimeoutError):
            response.force_close()
        finally:
            stream.watch.stop()
        return response


async def handle_request(handler: RequestHandler, raw: RawRequest) -> ApiResponse | WatchResponse:
    """Runs the handler and turns every exception into a Status."""
    try:
        answer = await handler(raw)
    except api_errors.StatusError as status_error:
        answer = error_response(status_error)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:
        LOG.exception("%s %s failed", raw.method, raw.path)
        answer = error_response(api_errors.internal_error(f"Internal error occurred: {error}"))
    return answer if isinstance(answer, WatchResponse) else format_response(answer, raw.headers, raw.query)


async def send_watch(stream: WatchResponse, write: Callable[[bytes], Awaitable[None]], version: VersionSource) -> None:
    """Send the lines of a watch until its timeout or its overflow."""
    loop = asyncio.get_running_loop()
    end = loop.time() + stream.timeout_s
    while (left := end - loop.time()) > 0:
        before_last = left - FINAL_BOOKMARK_S
        lines = await stream.watch.next_lines(min(before_last if before_last > 0 else left, BOOKMARK_S))
        if lines is not None:
            async with asyncio.timeout(SEND_S):
                await write(lines)
            if len(lines) < WATCH_BATCH_BYTES:
                await asyncio.sleep(WATCH_BATCH_DELAY_S)
        elif stream.watch.overflowed:
            return
        elif stream.bookmarks:
            stream.watch.bookmark(version())


async def _read_body(request: web.BaseRequest) -> bytes:
    """Reads the whole body, within its size and time limits."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise api_errors.request_too_large(MAX_BODY_BYTES)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    if content.is_eof() and content.exception() is None:  # the body arrived with the headers, as small bodies do
        whole = content.read_nowait()
        if len(whole) > MAX_BODY_BYTES:
            raise api_errors.request_too_large(MAX_BODY_BYTES)
        return whole
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in content.iter_any():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise api_errors.request_too_large(MAX_BODY_BYTES)
                parts.append(part)
    except TimeoutError:
        raise api_errors.StatusError(
            408, "Timeout", "Timeout: the body of the request did not arrive in time"
        ) from None
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise api_errors.bad_request(f"the body of the request cannot be read: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
