"""Limits of requests from both sides, and limits of caches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.server.auth.ttl_cache import TtlCache
from bayplan.server.health import Check, HealthRecords, election_check, health_routes
from bayplan.server.http.requests import MAX_BODY, MAX_HEAD, BadRequest, HttpRequest, RequestParser
from bayplan.server.http.responses import (
    HttpServerResponse,
    bad_request_response,
    compressed,
    json_body,
    reason,
    response_head,
    text,
)
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.async_tests import async_test

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def parse(data: bytes) -> HttpRequest | None:
    parser = RequestParser()
    parser.feed(data)
    return parser.next()


def request(path: str = "/", **fields: Any) -> HttpRequest:
    return HttpRequest(method="GET", target=path, path=path, **fields)


def make_head(length: int) -> bytes:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nA: "
    return head + b"a" * (length - len(head))


@pytest.mark.parametrize(("length", "fits"), [(MAX_HEAD, True), (MAX_HEAD + 1, False)])
def test_the_longest_head(length: int, fits: bool) -> None:
    for data in (make_head(length) + b"\r\n\r\n", make_head(length)):
        if fits:
            assert (parse(data) is not None) is data.endswith(b"\r\n\r\n")
        else:
            with pytest.raises(BadRequest):
                parse(data)


@pytest.mark.parametrize("length", [0, 1, MAX_BODY])
def test_bodies_up_to_the_largest(length: int) -> None:
    head = f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
    assert length == 0 or parse(head + b"a" * (length - 1)) is None
    found = parse(head + b"a" * length)
    assert found is not None
    assert len(found.body) == length


@pytest.mark.parametrize(("parts", "cache"), [(100, 100), (101, 0)])
def test_the_longest_query(parts: int, cache: int) -> None:
    found = parse(b"GET /a?" + b"&".join([b"a=1"] * parts) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert found is not None
    assert len(found.query.get("a", [])) == cache


def test_the_end_of_a_head_may_arrive_in_two_pieces() -> None:
    parser = RequestParser()
    parser.feed(b"\r\n\r\nGET /a#b HTTP/1.0\r\nA: b\r\n")
    assert parser.next() is None
    parser.feed(b"\r\n")
    found = parser.next()
    assert found is not None
    assert (found.path, found.headers, found.chunks, parser.has_partial_request) == ("/a", (("a", "b"),), False, False)


@pytest.mark.parametrize(
    ("lines", "waits"),
    [
        pytest.param("Expect: 100-continue\r\nContent-Length: 1\r\n\r\n", True, id="waits"),
        pytest.param("Expect: 100-Continue\r\nContent-Length: 2\r\n\r\na", False, id="has begun to send"),
        pytest.param("Content-Length: 1\r\n\r\n", False, id="does not wait"),
    ],
)
def test_clients_that_wait_for_100_continue(lines: str, waits: bool) -> None:
    parser = RequestParser()
    parser.feed(f"PUT / HTTP/1.1\r\nHost: x\r\n{lines}".encode())
    assert parser.next() is None
    assert parser.awaits_body is waits


# Responses.


@pytest.mark.parametrize(("status", "body", "guards"), [(399, "no", 0), (400, "no\n", 1), (500, "no\n", 1)])
def test_an_error_text_ends_with_a_line_break(status: int, body: str, guards: int) -> None:
    found = text("no", status)
    assert (found.body, len(found.headers)) == (body.encode(), guards)


@pytest.mark.parametrize(
    ("fields", "pretty"),
    [
        ({}, False),
        ({"query": {"pretty": ["true"]}}, True),
        ({"query": {"pretty": ["no"]}}, False),
        ({"headers": (("user-agent", "curl/8"),)}, True),
        ({"headers": (("user-agent", "curl/8"),), "query": {"pretty": ["0"]}}, False),
        ({"headers": (("user-agent", "Go-http-client"),)}, False),
    ],
)
def test_json_for_people_is_indented(fields: dict[str, Any], pretty: bool) -> None:
    assert json_body(request(**fields), {"a": "é"}).decode() == ('{\n  "a": "é"\n}' if pretty else '{"a":"é"}\n')


@pytest.mark.parametrize(
    ("accepts", "is_compressed"), [("", False), ("gzip", True), ("br, gzip;q=1", True), ("br", False)]
)
def test_metrics_are_compressed_if_the_client_accepts_it(accepts: str, is_compressed: bool) -> None:
    _, headers = compressed(request(headers=(("accept-encoding", accepts),)), [b"a"])
    assert headers == ((("Content-Encoding", "gzip"),) if is_compressed else ())


@pytest.mark.parametrize(
    ("body", "chunks", "last", "lines"),
    [
        pytest.param(b"abc", True, False, ["Content-Length: 3"], id="a body"),
        pytest.param(b"abc", True, True, ["Content-Length: 3", "Connection: close"], id="the last"),
        pytest.param([b"a"], True, False, ["Transfer-Encoding: chunked"], id="pieces"),
        pytest.param([b"a"], False, True, ["Connection: close"], id="pieces for an old client"),
        pytest.param(b"abc", False, False, ["Content-Length: 3", "Connection: keep-alive"], id="an old client"),
    ],
)
def test_response_heads(body: bytes | list[bytes], chunks: bool, last: bool, lines: list[str]) -> None:
    head = response_head(
        HttpServerResponse(200, body, "text/x", (("A", "b"),)), request(chunks=chunks), NOON, last=last
    ).decode()
    first, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
    assert first == f"HTTP/1.{int(chunks)} 200 OK"
    date = "Date: Sun, 01 Mar 2026 12:00:00 GMT"
    assert rest == ["Cache-Control: no-cache, private", "Content-Type: text/x", "A: b", date, *lines]


@pytest.mark.parametrize(
    ("fault", "first", "body"),
    [
        (BadRequest(431), "431 Request Header Fields Too Large", "431 Request Header Fields Too Large"),
        (BadRequest(400, "why"), "400 Bad Request: why", "400 Bad Request: why"),
        (BadRequest(501, line="other"), "501 Not Implemented", "other"),
    ],
    ids=["status", "text", "line"],
)
def test_the_response_to_an_invalid_request(fault: BadRequest, first: str, body: str) -> None:
    head, _, found = bad_request_response(fault).decode().partition("\r\n\r\n")
    assert head.split("\r\n")[0] == f"HTTP/1.1 {first}"
    assert found == body
    assert reason(799) == "Unknown"


# Cache.


@async_test
async def test_an_entry_expires_and_the_oldest_is_removed_first() -> None:
    clock, fetched = ManualClock(), list[str]()
    cache: TtlCache[str] = TtlCache(clock, lambda _: 10.0, limit=2)

    async def get(key: str) -> str:
        async def fetch() -> str:
            fetched.append(key)
            return key

        return await cache.get(key, fetch)

    for key in ("a", "b", "a", "b"):
        assert await get(key) == key
    assert fetched == ["a", "b"]
    clock.advance(9.9)
    await get("a")
    assert fetched == ["a", "b"]
    clock.advance(0.1)
    await get("a")  # now it is the newest
    await get("c")
    await get("a")
    assert fetched == ["a", "b", "a", "c"]


@async_test
async def test_a_failure_is_not_cached() -> None:
    cache: TtlCache[int] = TtlCache(ManualClock(), lambda _: 10.0)

    async def fail() -> int:
        raise ValueError("no")

    async def succeed() -> int:
        return 7

    with pytest.raises(ValueError, match="no"):
        await cache.get("k", fail)
    await asyncio.sleep(0)
    assert await cache.get("k", succeed) == 7


# Health.


@pytest.mark.parametrize(("overdue_s", "well"), [(0.0, True), (20.0, True), (20.1, False)])
def test_a_lease_may_be_overdue_for_20_seconds(overdue_s: float, well: bool) -> None:
    assert (election_check("lease", lambda: overdue_s).error() == "") is well


def test_a_check_that_fails_is_counted_and_its_reason_withheld() -> None:
    registry = MetricsRegistry()
    checks = (Check("good", lambda: ""), Check("bad", lambda: "disk full"), Check("worse", lambda: str(1 // 0)))
    routes = health_routes("livez", checks, HealthRecords(registry))
    found = routes["/livez"](request("/livez"))
    lines = ["[+]good ok", "[-]bad failed: reason withheld", "[-]worse failed: reason withheld", "livez check failed"]
    assert (found.status, found.body) == (500, "\n".join([*lines, ""]).encode())
    assert routes["/livez/good"](request()).body == b"ok"
    single = routes["/livez/worse"](request())
    assert single.status == 500
    assert single.body.startswith(b"internal server error: ZeroDivisionError: ")  # type: ignore[union-attr]
    shown = b"".join(registry.render()).decode()
    assert 'kubernetes_healthchecks_total{name="bad",status="error",type="livez"} 1' in shown
    assert 'kubernetes_healthcheck{name="good",type="livez"} 1' in shown
    assert 'kubernetes_healthcheck{name="bad",type="livez"} 0' in shown
