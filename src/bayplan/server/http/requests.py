"""Parser of HTTP/1.1 requests that reads bytes as they arrive, with limits on everything.

`connections` calls it for every chunk of a socket. Doubtful requests are refused with the status and the text of Go's
server: two lengths, a length together with a transfer coding, a malformed header line. Bodies need a length; only the
webhooks accept large ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024

_END = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*?)[ \t]*")
_ESCAPES = re.compile(r"%(?![0-9A-Fa-f]{2})")


class BadRequest(Exception):
    """The bytes are not an acceptable request; the connection ends with this status and text."""

    def __init__(self, status: int, text: str = "", *, line: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        """The text after the status in the body."""
        self.line = line
        """The whole body, if it does not begin with the status."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a connection, as far as TLS identifies it."""

    address: str = ""
    chain: tuple[bytes, ...] = ()
    """The client's certificate and its issuers up to a trusted one, each as DER; empty without a certificate."""
    subject: tuple[tuple[str, str], ...] = ()
    """The subject of the client's certificate."""


UNKNOWN_PEER = Peer()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    target: str
    """The request target as sent, for logs."""
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case, in the order of the request."""
    body: bytes = b""
    keep_alive: bool = True
    chunks: bool = True
    """Whether the client supports chunked responses."""
    peer: Peer = UNKNOWN_PEER

    def header(self, name: str) -> str:
        """The first value of a header; empty if it is missing."""
        return next((value for key, value in self.headers if key == name), "")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


class RequestParser:
    """Parses the bytes of one connection into a sequence of requests."""

    def __init__(self, peer: Peer = UNKNOWN_PEER, *, max_body: int = MAX_BODY) -> None:
        self._peer = peer
        self._max_body = max_body
        self._buffer = bytearray()
        self._searched = 0
        self._head: _Head | None = None
        self.awaits_body = False
        """Whether the client waits for 100 Continue before it sends the body."""

    @property
    def has_partial_request(self) -> bool:
        """Whether a part of a request has been read."""
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> HttpRequest | None:
        """The next request if it is complete. A head is parsed once, however slowly its body arrives."""
        if self._head is None:
            self._head = self._read_head()
            self.awaits_body = self._head is not None and self._head.expects and not self._buffer
        head = self._head
        if head is None or len(self._buffer) < head.length:
            return None
        body = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        self._head, self.awaits_body = None, False
        return head.request(body, self._peer)

    def _read_head(self) -> _Head | None:
        self._skip_empty_lines()
        end = self._buffer.find(_END, max(0, self._searched - len(_END)))
        if max(end, len(self._buffer) if end < 0 else 0) > MAX_HEAD:
            raise BadRequest(431)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        head = _Head.read(bytes(self._buffer[:end]), self._max_body)
        del self._buffer[: end + len(_END)]
        self._searched = 0
        return head

    def _skip_empty_lines(self) -> None:
        while self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    target: str
    minor: int
    headers: tuple[tuple[str, str], ...]
    length: int
    expects: bool

    @classmethod
    def read(cls, text: bytes, max_body: int) -> _Head:
        first, *rest = text.split(b"\r\n")
        found = _REQUEST_LINE.fullmatch(first)
        if found is None:
            raise BadRequest(400)
        method, target, major, minor = found.groups()
        if major != b"1":
            raise BadRequest(505, "unsupported protocol version")
        headers = tuple(map(_header, rest))
        hosts = [value for name, value in headers if name == "host"]
        if minor != b"0" and not hosts:
            raise BadRequest(400, "missing required Host header")
        if len(hosts) > 1:
            raise BadRequest(400)
        expects = next((value for name, value in headers if name == "expect"), "")
        if expects and expects.lower() != "100-continue":
            raise BadRequest(417)
        length = _length(headers, max_body)
        return cls(method.decode("ascii"), target.decode("ascii"), int(minor), headers, length, bool(expects))

    def request(self, body: bytes, peer: Peer) -> HttpRequest:
        path, query = _split(self.target)
        connection = ",".join(value for name, value in self.headers if name == "connection").lower()
        tokens = {word.strip() for word in connection.split(",")}
        return HttpRequest(
            method=self.method,
            target=self.target,
            path=path,
            query=query,
            headers=self.headers,
            body=body,
            keep_alive="close" not in tokens if self.minor else "keep-alive" in tokens,
            chunks=self.minor > 0,
            peer=peer,
        )


def _header(line: bytes) -> tuple[str, str]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise BadRequest(400)
    return found[1].decode("ascii").lower(), found[2].decode("latin-1")


def _length(headers: tuple[tuple[str, str], ...], max_body: int) -> int:
    if codings := [value for name, value in headers if name == "transfer-encoding"]:
        if codings != ["chunked"]:
            raise BadRequest(501, line="Unsupported transfer encoding")
        raise BadRequest(411)
    lengths = {value for name, value in headers if name == "content-length"}
    if not lengths:
        return 0
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdecimal()):
        raise BadRequest(400)
    if len(length) > len(str(max_body)) or int(length) > max_body:
        raise BadRequest(413)
    return int(length)


def _split(target: str) -> tuple[str, dict[str, list[str]]]:
    """The path and the query of a target, which may be a full URL."""
    if _ESCAPES.search(target):
        raise BadRequest(400)
    if target.startswith("/"):
        path, _, query = target.partition("#")[0].partition("?")
    else:
        try:
            url = urlsplit(target)
        except ValueError:
            raise BadRequest(400) from None
        path, query = url.path or "/", url.query
    try:
        parameters = parse_qs(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        parameters = {}
    return unquote(path), parameters
