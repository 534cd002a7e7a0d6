"""HTTP responses as values, and their encoding.

A body is bytes, or chunks that are produced while they are sent: metrics are rendered so, and the loop runs other tasks
in between. Or it is an endless stream whose generator waits between chunks, until the client disconnects.
Refusals have the texts of Kubernetes, so that people and tools recognise them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from http import HTTPStatus

from bayplan.server.http.requests import BadRequest, HttpRequest

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
NOSNIFF = ("X-Content-Type-Options", "nosniff")

_PRETTY_USER_AGENTS = ("curl", "Wget", "Mozilla/5.0")
TRUE_VALUES = ("1", "t", "T", "true", "TRUE", "True")
"""Values that Go parses as true in a query."""


@dataclass(frozen=True, slots=True)
class HttpServerResponse:
    status: int = 200
    body: bytes | Iterable[bytes] | AsyncGenerator[bytes, None] = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def text(body: str, status: int = 200, *, content_type: str = TEXT) -> HttpServerResponse:
    """A plain text response. An error ends with a line break and forbids content sniffing."""
    if status < 400:
        return HttpServerResponse(status, body.encode(), content_type)
    return HttpServerResponse(status, f"{body}\n".encode(), content_type, (NOSNIFF,))


NOT_FOUND = text("404 page not found", 404)


def status_object(
    request: HttpRequest, code: int, reason: str, message: str, *, details: bool = False
) -> HttpServerResponse:
    """An error as a Status object, indented for browsers and curl."""
    tree: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
    }
    tree |= {"details": {}} if details else {}
    return HttpServerResponse(code, json_body(request, tree | {"code": code}), JSON, (NOSNIFF,) if details else ())


def json_body(request: HttpRequest, tree: object) -> bytes:
    if _pretty(request):
        return json.dumps(tree, indent=2, ensure_ascii=False).encode()
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _pretty(request: HttpRequest) -> bool:
    wish = request.query.get("pretty", [""])[0]
    return wish in TRUE_VALUES if wish else request.header("user-agent").startswith(_PRETTY_USER_AGENTS)


def compressed(request: HttpRequest, pieces: Iterable[bytes]) -> tuple[Iterable[bytes], tuple[tuple[str, str], ...]]:
    """The chunks, compressed if the client accepts gzip, and the headers for that."""
    accepted = {coding.partition(";")[0].strip() for coding in request.header("accept-encoding").split(",")}
    if "gzip" not in accepted:
        return pieces, ()
    return _gzip(pieces), (("Content-Encoding", "gzip"),)


def _gzip(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Compress at the lowest level, which shrinks metrics to a tenth and costs the loop least."""
    packer = zlib.compressobj(1, wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def response_head(response: HttpServerResponse, request: HttpRequest, now: datetime, *, last: bool) -> bytes:
    """The head. `last`: the connection is closed after the response."""
    lines = [f"HTTP/1.{int(request.chunks)} {response.status} {reason(response.status)}"]
    lines.append("Cache-Control: no-cache, private")
    lines += [f"Content-Type: {response.content_type}"] if response.content_type else []
    lines += [f"{name}: {value}" for name, value in response.headers]
    lines.append(f"Date: {format_datetime(now, usegmt=True)}")
    if isinstance(response.body, bytes):
        lines.append(f"Content-Length: {len(response.body)}")
    elif request.chunks:
        lines.append("Transfer-Encoding: chunked")
    lines += ["Connection: close"] if last else []
    lines += ["Connection: keep-alive"] if not last and not request.chunks else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def bad_request_response(fault: BadRequest) -> bytes:
    """The last response on a connection whose request is invalid."""
    words = f"{fault.status} {reason(fault.status)}" + (f": {fault.text}" if fault.text else "")
    body = fault.line or words
    return f"HTTP/1.1 {words}\r\nContent-Type: {TEXT}\r\nConnection: close\r\n\r\n{body}".encode("latin-1")


def reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
