"""HTTP/1.1 messages on asyncio streams: whole requests, and answers as they arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

_END = b"\r\n\r\n"
_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class RawRequest:
    method: str
    path: str
    data: bytes
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> RawRequest:
    head = await reader.readuntil(_END)
    method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    body = await reader.readexactly(content_length(head))
    return RawRequest(method, path, head + body, body)


def content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def status_of(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(_END)


async def body_parts(head: bytes, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body as it is on the wire: one piece with a length, or chunk by chunk with the last one."""
    if b"transfer-encoding: chunked" not in head.lower():
        yield await reader.readexactly(content_length(head))
        return
    while True:
        size = await reader.readuntil(b"\r\n")
        yield size + await reader.readexactly(int(size, 16) + 2)
        if int(size, 16) == 0:
            return


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def status_tree(code: int, reason: str = "") -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"fault {code} of the proxy",
        "reason": reason or _REASONS[code],
        "code": code,
    }


def refusal(code: int, *, reason: str = "", retry_after_s: int | None = None) -> bytes:
    """An answer in the API server's place."""
    body = json.dumps(status_tree(code, reason)).encode()
    lines = [f"HTTP/1.1 {code} {_REASONS[code]}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {retry_after_s}")
    return "\r\n".join(lines).encode() + _END + body
