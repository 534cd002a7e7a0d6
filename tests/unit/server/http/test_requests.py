"""Parsing of HTTP requests, and refused requests."""

from __future__ import annotations

import pytest

from bayplan.server.http.requests import MAX_BODY, MAX_HEAD, BadRequest, HttpRequest, RequestParser


def parse(data: bytes) -> HttpRequest | None:
    parser = RequestParser()
    parser.feed(data)
    return parser.next()


def test_the_fields_of_a_request() -> None:
    request = parse(b"GET /readyz?verbose&exclude=a&exclude=b HTTP/1.1\r\nHost: x\r\nX-A: 1 \r\nx-a:2\r\n\r\n")
    assert request is not None
    assert (request.method, request.path) == ("GET", "/readyz")
    assert request.query == {"verbose": [""], "exclude": ["a", "b"]}
    assert request.all("x-a") == ["1", "2"]
    assert request.header("x-a") == "1"
    assert request.header("absent") == ""
    assert request.keep_alive
    assert request.chunks


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/health%7a", "/healthz"),
        ("http://elsewhere/healthz?x", "/healthz"),
        ("http://elsewhere", "/"),
        ("//healthz", "//healthz"),
        ("/a/../b", "/a/../b"),
    ],
)
def test_paths(target: str, path: str) -> None:
    request = parse(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert request is not None
    assert request.path == path


@pytest.mark.parametrize(
    ("version", "connection", "stays"),
    [
        ("1.1", "", True),
        ("1.1", "close", False),
        ("1.1", "Upgrade, Close", False),
        ("1.0", "", False),
        ("1.0", "Keep-Alive", True),
    ],
)
def test_keep_alive(version: str, connection: str, stays: bool) -> None:
    line = f"Connection: {connection}\r\n" if connection else ""
    request = parse(f"GET / HTTP/{version}\r\nHost: x\r\n{line}\r\n".encode())
    assert request is not None
    assert request.keep_alive is stays
    assert request.chunks is (version == "1.1")


def test_requests_may_arrive_in_single_bytes_or_together() -> None:
    data = b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n"
    parser, found = RequestParser(), []
    for byte in data:
        parser.feed(bytes([byte]))
        while (request := parser.next()) is not None:
            found.append((request.path, request.body))
    assert found == [("/a", b"abc"), ("/b", b"")]
    assert not parser.has_partial_request
    parser.feed(data)
    assert [parser.next().path, parser.next().path] == ["/a", "/b"]  # type: ignore[union-attr]


def test_a_client_may_wait_for_100_continue() -> None:
    parser = RequestParser()
    parser.feed(b"PUT /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert parser.next() is None
    assert parser.awaits_body
    assert parser.has_partial_request
    parser.feed(b"7")
    request = parser.next()
    assert request is not None
    assert request.body == b"7"
    assert not parser.awaits_body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"GARBAGE\r\n\r\n", 400, id="garbage"),
        pytest.param(b"\x16\x03\x01\x02\r\n\r\n", 400, id="binary"),
        pytest.param(b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505, id="another version"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n", 400, id="an invalid header line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400, id="a folded line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, id="a space before the colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400, id="a bare line feed"),
        pytest.param(b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="a wrong escape"),
        pytest.param(b"GET http://[/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="a wrong address"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400, id="an invalid length"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, id="a negative length"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, id="two lengths"
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n", 501, id="an unknown coding"),
        pytest.param(
            b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            411,
            id="a length and a transfer coding",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nExpect: gold\r\n\r\n", 417, id="an unknown expectation"),
        pytest.param(
            f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n".encode(), 413, id="a large body"
        ),
        pytest.param(
            b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413, id="a huge number"
        ),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"a" * MAX_HEAD, 431, id="a head without end"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"a" * MAX_HEAD + b"\r\n\r\n", 431, id="a long head"),
    ],
)
def test_invalid_requests_are_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(data)
    assert caught.value.status == status


def test_a_query_with_too_many_parameters_is_ignored() -> None:
    request = parse(b"GET /a?" + b"&".join(b"a=1" for _ in range(200)) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert request is not None
    assert request.query == {}
