"""A server for health and metrics on loopback, with a clock and an authorizer of the test, and a plain client."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bayplan.client import TOKEN_REVIEWS, GroupVersionResource
from bayplan.clock import LoopClock, ManualClock
from bayplan.errors import ServerError
from bayplan.server import (
    AccessControl,
    Authenticator,
    Authorizer,
    SecureServingOptions,
    Server,
    ServerViews,
    TlsOptions,
)
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.metrics import MetricsRegistry
from support.fakes.certificates import Pair


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class FakeReviews:
    """Fakes the TokenReview and SubjectAccessReview APIs: users by token, and permissions by path or object."""

    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    allowed: set[tuple[str, str, str]] = field(default_factory=set)
    denied: bool = False
    reason: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    broken: bool = False
    gate: asyncio.Event | None = None

    async def create(self, resource: GroupVersionResource, body: Mapping[str, Any]) -> bytes:
        self.asked.append(dict(body["spec"]))
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise ServerError("the judge is ill", code=500)
        spec = body["spec"]
        if resource == TOKEN_REVIEWS:
            user = self.tokens.get(spec["token"])
            return json.dumps({"status": {"authenticated": user is not None, "user": user or {}}}).encode()
        what = spec.get("nonResourceAttributes") or spec["resourceAttributes"]
        if "path" in what:
            place = what["path"]
        else:
            place = f"{what['resource']} {what.get('namespace', '')}/{what.get('name', '')}"
        allowed = (spec["user"], what["verb"], place) in self.allowed
        return json.dumps({"status": {"allowed": allowed, "denied": self.denied, "reason": self.reason}}).encode()


@asynccontextmanager
async def run_server(
    views: ServerViews | None = None,
    *,
    clock: LoopClock | None = None,
    judge: FakeReviews | None = None,
    open_paths: tuple[str, ...] = ("*",),
    tls: TlsOptions | None = None,
    metrics: MetricsRegistry | None = None,
    **serving: Any,
) -> AsyncIterator[Server]:
    """A running server; every path is public unless `open_paths` is given."""
    clock = clock or ManualClock()
    counted = AccessMetrics(metrics or MetricsRegistry(), clock.monotonic_s)
    access = AccessControl(Authenticator(judge, clock), Authorizer(judge, clock, always_allowed=open_paths), counted)
    server = Server(
        views or ServerViews(metrics=MetricsRegistry()),
        SecureServingOptions(address="127.0.0.1", port=0, tls=tls or TlsOptions(), **serving),
        access,
        clock=clock,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close(0.0)


def client_tls_context(folder: Path | None = None, pair: Pair | None = None, *, ca: str = "") -> ssl.SSLContext:
    """The client's TLS context: it trusts `ca`, or any server, and may have a certificate itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        context.load_verify_locations(cadata=ca)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if pair is not None:
        assert folder is not None
        (folder / "client.crt").write_text(pair.certificate)
        (folder / "client.key").write_text(pair.key)
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return context


class HasPort(Protocol):
    """A server on a loopback port."""

    @property
    def port(self) -> int: ...


@asynccontextmanager
async def connected(
    server: HasPort, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context or client_tls_context())
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def get(
    server: HasPort,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    context: ssl.SSLContext | None = None,
) -> Reply:
    """One request on a new connection."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"Content-Length: {len(body)}"] if body else []
    raw = await exchange(server, ("\r\n".join(lines) + "\r\n\r\n").encode() + body, context=context)
    return parse_reply(raw, no_body=method == "HEAD")


async def exchange(server: HasPort, data: bytes, *, context: ssl.SSLContext | None = None) -> bytes:
    """The complete response to some bytes until the server closes the connection."""
    async with connected(server, context) as (reader, writer):
        writer.write(data)
        return await reader.read()


def parse_reply(raw: bytes, *, no_body: bool = False) -> Reply:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked" and not no_body:
        body = _join_chunks(body)
    return Reply(int(first.split()[1]), headers, body)


def _join_chunks(body: bytes) -> bytes:
    out = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return out
        out += body[:length]
        body = body[length + 2 :]
