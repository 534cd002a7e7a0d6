"""A small HTTP server on loopback with responses that a test defines, over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from bayplan.client import Client, ConnectionConfig
from bayplan.clock import LoopClock, ManualClock


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def options(self) -> dict[str, str]:
        from urllib.parse import parse_qsl

        return dict(parse_qsl(self.query, keep_blank_values=True))


@dataclass(slots=True)
class Reply:
    """A complete response: JSON, or raw bytes."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    close: bool = False

    def encoded(self) -> bytes:
        if self.raw is not None:
            return self.raw
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body, separators=(",", ":")).encode()
        lines = [f"HTTP/1.1 {self.status} X", f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += ["Connection: close"] if self.close else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class WatchStream:
    """A watch response. Its lines are chunks."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.begun = asyncio.Event()
        for event in events:
            self.send(event)

    def send(self, event: dict[str, Any]) -> None:
        self.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self._queue.put_nowait(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End the response in order."""
        self._queue.put_nowait(b"0\r\n\r\n")
        self._queue.put_nowait(None)

    def cut(self) -> None:
        """Cut the connection."""
        self._queue.put_nowait(None)

    async def serve(self, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.begun.set()
        last = b""
        while (data := await self._queue.get()) is not None:
            writer.write(data)
            await writer.drain()
            last = data
        return last == b"0\r\n\r\n"


class NoAnswer:
    """No response, until the client closes the connection."""


ServerAnswer = Reply | WatchStream | NoAnswer
Route = Callable[[Request], ServerAnswer | Awaitable[ServerAnswer]]


class FakeHttpServer:
    """Responds by `route`, or with the responses of `script` in order; records the requests."""

    def __init__(
        self, route: Route | None = None, script: Iterable[ServerAnswer] = (), tls: ssl.SSLContext | None = None
    ) -> None:
        self.route = route
        self.script: deque[ServerAnswer] = deque(script)
        self.requests: list[Request] = []
        self.connections = 0
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> FakeHttpServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Cut every open connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def target(self, **more: Any) -> ConnectionConfig:
        return ConnectionConfig(server=self.url, **more)

    def client(self, clock: LoopClock | None = None, **more: Any) -> Client:
        target = more.pop("target", None) or self.target()
        more.setdefault("qps", -1.0)
        return Client(target, clock=clock or ManualClock(), chance=random.Random(0), env={}, **more)

    def request_lines(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                if not await self._answer(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = await self._chosen(request)
        if isinstance(answer, NoAnswer):
            await reader.read()
            return False
        if isinstance(answer, WatchStream):
            return await answer.serve(writer)
        writer.write(answer.encoded())
        await writer.drain()
        return not answer.close

    async def _chosen(self, request: Request) -> ServerAnswer:
        if self.script:
            return self.script.popleft()
        if self.route is None:
            return status(500, "InternalError", f"unexpected request {request.method} {request.path}")
        found = self.route(request)
        return await found if isinstance(found, Awaitable) else found


def status(code: int, reason: str = "", message: str = "", **headers: str) -> Reply:
    """An error response as the API server formats it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return Reply(code, body, {name.replace("_", "-"): value for name, value in headers.items()})


def listed(version: str | int, *items: dict[str, Any], following: str = "") -> Reply:
    meta = {"resourceVersion": str(version)} | ({"continue": following} if following else {})
    return Reply(200, {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": list(items)})


def node(name: str, version: str | int, uid: str = "", **more: Any) -> dict[str, Any]:
    """A small node as JSON."""
    meta = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**meta, **more.pop("metadata", {})}, **more}


def added(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "ADDED", "object": item}


def modified(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "MODIFIED", "object": item}


def deleted(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "DELETED", "object": item}


def bookmark(version: str | int, *, initial_end: bool = False) -> dict[str, Any]:
    notes = {"annotations": {"k8s.io/initial-events-end": "true"}} if initial_end else {}
    return {"type": "BOOKMARK", "object": {"kind": "Node", "metadata": {"resourceVersion": str(version), **notes}}}


def error(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": "ERROR", "object": status(code, reason, message).body}


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, whole, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path, _, query = whole.partition("?")
    return Request(method, path, query, headers, body)
