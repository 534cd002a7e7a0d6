"""HTTP/1.1 responses are parsed the same for every split of their bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.client.http.response_parser import MAX_HEAD, MalformedResponse, ResponseParser

PLAIN = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nRetry-After:  7 \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nA: b\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


def read(parser: ResponseParser, *pieces: bytes) -> bytes:
    return b"".join(part for piece in pieces for part in parser.feed(piece))


@pytest.mark.parametrize(
    ("wire", "status", "body", "keeps_alive"),
    [
        pytest.param(PLAIN, 201, b"hello", True, id="length"),
        pytest.param(CHUNKED, 200, b"hello world", True, id="chunks-extension-trailer"),
        pytest.param(EMPTY, 200, b"", True, id="empty"),
        pytest.param(NOTHING, 204, b"", True, id="no-content"),
        pytest.param(CONTINUED, 201, b"hello", True, id="provisional-answer-first"),
        pytest.param(OLD, 200, b"ok", False, id="http-1.0-closes"),
        pytest.param(CLOSING, 200, b"ok", False, id="connection-close"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 1000], ids=["byte-by-byte", "threes", "at-once"])
def test_a_response_is_parsed_from_chunks_of_any_size(
    wire: bytes, status: int, body: bytes, keeps_alive: bool, step: int
) -> None:
    parser = ResponseParser()
    parser.expect()
    found = read(parser, *(wire[at : at + step] for at in range(0, len(wire), step)))
    assert parser.head is not None
    assert (parser.head.status, found, parser.complete, parser.keeps_alive) == (status, body, True, keeps_alive)


@given(st.lists(st.integers(1, len(CHUNKED)), max_size=12))
def test_a_response_is_parsed_for_every_split(cuts: list[int]) -> None:
    edges = sorted({0, len(CHUNKED), *cuts})
    parser = ResponseParser()
    parser.expect()
    pieces = [CHUNKED[start:end] for start, end in pairwise(edges)]
    assert read(parser, *pieces) == b"hello world"
    assert parser.complete


def test_header_names_are_case_insensitive() -> None:
    parser = ResponseParser()
    parser.expect()
    read(parser, PLAIN)
    assert parser.head is not None
    assert parser.head.get("retry-after") == "7"
    assert parser.head.get("Content-LENGTH") == "5"
    assert parser.head.get("after") == ""


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = ResponseParser()
    parser.expect()
    assert read(parser, b"HTTP/1.1 200 OK\r\n\r\nab", b"cd") == b"abcd"
    assert not parser.complete
    parser.end()
    assert parser.complete
    assert not parser.keeps_alive


def test_the_next_response_starts_with_a_clean_state() -> None:
    parser = ResponseParser()
    for _ in range(2):
        parser.expect()
        assert read(parser, CHUNKED) == b"hello world"


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="not-http"),
        pytest.param(b"HTTP/2 200\r\n\r\n", id="http-2"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", id="unknown-coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="bad-length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="bad-chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", id="chunk-too-long"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", id="more-than-promised"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD, id="endless-head"),
    ],
)
def test_invalid_responses_are_refused(wire: bytes) -> None:
    parser = ResponseParser()
    parser.expect()
    with pytest.raises(MalformedResponse):
        read(parser, wire)
