"""Incremental parser of HTTP/1.1 responses.

`HttpConnection` feeds it every chunk of bytes from the socket. There is one response at a time: requests are not
pipelined. A small response in one chunk costs one search for the end of its head and one slice. An event of a watch, an
HTTP chunk of its own, costs about a microsecond. Bodies are passed on in pieces, so that a watch is read as it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache

MAX_HEAD = 256 * 1024
"""Longer heads are refused: the peer is not an API server."""

_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: |\r|$)")
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")


class MalformedResponse(Exception):
    """The bytes are not an HTTP/1.1 response."""


class _ParserState(Enum):
    HEAD = 0
    LENGTH = 1
    CHUNK_SIZE = 2
    CHUNK = 3
    CHUNK_END = 4
    TRAILER = 5
    CLOSE = 6
    NOTHING = 7


class ResponseHead:
    __slots__ = ("_lines", "status")

    def __init__(self, status: int, lines: bytes) -> None:
        self.status = status
        self._lines = lines

    def get(self, name: str) -> str:
        """Value of a header, or nothing. Only three or four headers are read, so they are searched and not indexed."""
        found = _header(name).search(self._lines)
        return found[1].strip().decode("latin-1") if found else ""


@cache
def _header(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"\r\n" + re.escape(name.encode("latin-1")) + rb":[ \t]*([^\r\n]*)", re.IGNORECASE)


class ResponseParser:
    """Parses bytes into one head and the pieces of its body, response after response."""

    def __init__(self) -> None:
        self._expects = _ParserState.HEAD
        self._buffer = b""
        self._left = 0
        self._no_body = False
        self.head: ResponseHead | None = None
        self.keeps_alive = False

    def expect(self, *, no_body: bool = False) -> None:
        """Prepare for the next response. `no_body`: ignore the length in its head (HEAD requests)."""
        self._expects = _ParserState.HEAD
        self._no_body = no_body
        self.head = None

    @property
    def complete(self) -> bool:
        return self._expects is _ParserState.NOTHING

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the pieces of the body in these bytes. `head` is set before the first piece, `complete` at the end."""
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        if self._expects is _ParserState.HEAD:
            data = self._read_head(data)
        if self._expects in (_ParserState.LENGTH, _ParserState.CLOSE):
            yield from self._plain(data)
        elif self._expects is _ParserState.NOTHING:
            self._refuse_more(data)
        elif self._expects is not _ParserState.HEAD:
            yield from self._chunked(data)

    def end(self) -> None:
        """Handle the end of the connection."""
        if self._expects is _ParserState.CLOSE:
            self._expects = _ParserState.NOTHING

    def _read_head(self, data: bytes) -> bytes:
        while self._expects is _ParserState.HEAD:
            end = data.find(_END)
            if end < 0:
                if len(data) > MAX_HEAD:
                    raise MalformedResponse(f"its head is longer than {MAX_HEAD} bytes")
                self._buffer = data
                return b""
            self._take_head(data[:end])
            data = data[end + len(_END) :]
        return data

    def _take_head(self, lines: bytes) -> None:
        found = _STATUS.match(lines)
        if found is None:
            raise MalformedResponse("it does not start with an HTTP/1.1 status line")
        status = int(found[2])
        if 100 <= status < 200:
            return  # a provisional response (1xx); the final one follows
        head = self.head = ResponseHead(status, lines)
        connection = head.get("connection").lower()
        self.keeps_alive = connection != "close" if found[1] == b"1" else connection == "keep-alive"
        self._expects = self._body_state(head)

    def _body_state(self, head: ResponseHead) -> _ParserState:
        if self._no_body or head.status in (204, 304):
            return _ParserState.NOTHING
        if coding := head.get("transfer-encoding").lower():
            if coding != "chunked":
                raise MalformedResponse(f"its transfer coding {coding!r} is not supported")
            return _ParserState.CHUNK_SIZE
        if length := head.get("content-length"):
            if not length.isdecimal():
                raise MalformedResponse(f"its Content-Length {length!r} is not a number")
            self._left = int(length)
            return _ParserState.LENGTH if self._left else _ParserState.NOTHING
        self.keeps_alive = False
        return _ParserState.CLOSE

    def _plain(self, data: bytes) -> Iterator[bytes]:
        if self._expects is _ParserState.CLOSE:
            if data:
                yield data
            return
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        if not self._left:
            self._expects = _ParserState.NOTHING
        if piece:
            yield piece
        self._refuse_more(rest)

    def _chunked(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data) and self._expects is not _ParserState.NOTHING:
            if self._expects is _ParserState.CHUNK:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._expects = _ParserState.CHUNK_END
                    if data[at : at + 2] == b"\r\n":  # the usual case, handled here instead of in `_take_line`
                        self._expects = _ParserState.CHUNK_SIZE
                        at += 2
                yield piece
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            self._take_line(data[at:end])
            at = end + 2
        if self._expects is _ParserState.NOTHING:
            self._refuse_more(data[at:])
        else:
            self._buffer = data[at:]
            if len(self._buffer) > MAX_HEAD:
                raise MalformedResponse("the line before a chunk does not end")

    def _take_line(self, line: bytes) -> None:
        """Handle a line between chunks: a size, the empty line after a chunk, or a trailer."""
        if self._expects is _ParserState.CHUNK_SIZE:
            size = _CHUNK_SIZE.match(line)
            if size is None:
                raise MalformedResponse("a chunk has no size")
            self._left = int(size[0], 16)
            self._expects = _ParserState.CHUNK if self._left else _ParserState.TRAILER
        elif self._expects is _ParserState.CHUNK_END:
            if line:
                raise MalformedResponse("a chunk is longer than its size")
            self._expects = _ParserState.CHUNK_SIZE
        elif not line:
            self._expects = _ParserState.NOTHING

    def _refuse_more(self, data: bytes) -> None:
        if data:
            raise MalformedResponse("the server sent more bytes than the response announced")
