"""Access to the page: authorized users, users of the machine on loopback, and no one else. It is read-only."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import bayplan.server
from bayplan.clock import ManualClock
from bayplan.errors import ServingError
from bayplan.objects.core import Namespace
from bayplan.objects.meta import ObjectMeta
from bayplan.server import LoopbackPageServer, PageStreams, PageViews, Server, ServerViews
from bayplan.telemetry.answers import Answer
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.page_feed import FeedCounters
from bayplan.testing import make_pod
from support.harness.async_tests import async_test
from support.harness.health_server import FakeReviews, Reply, connected, get, parse_reply, run_server

FILES = Path(bayplan.server.__file__).parent / "page_files"
JANE, TOM = {"username": "jane"}, {"username": "tom"}
PATHS = ("/page/", "/page/main.js", "/page/stream")
NAMESPACES = ("team", "secret")


def viewers(clock: ManualClock | None = None) -> PageStreams:
    known = {
        "namespaces": [Namespace(metadata=ObjectMeta(name=name)) for name in NAMESPACES],
        "pods": [make_pod("web", namespace=name) for name in NAMESPACES],
    }
    views = PageViews(
        objects=lambda plural: known.get(plural, []), numbers=FeedCounters, queues=dict, decisions=list, about=dict
    )
    return PageStreams(views, clock or ManualClock())


@asynccontextmanager
async def secured_server() -> AsyncIterator[tuple[Server, FakeReviews]]:
    """Jane may read the page and the pods of her team; Tom has a token and no rights."""
    reviews = FakeReviews(tokens={"janes": JANE, "toms": TOM})
    reviews.allowed = {("jane", "get", path) for path in PATHS} | {("jane", "get", "/metrics")}
    reviews.allowed.add(("jane", "list", "pods team/"))
    views = ServerViews(metrics=MetricsRegistry(), page=viewers())
    async with run_server(views, judge=reviews, open_paths=("/healthz",)) as server:
        yield server, reviews


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def cookie(token: str) -> dict[str, str]:
    return {"Cookie": f"other=1; bayplan-token={token}"}


@async_test
async def test_without_a_token_the_page_is_not_readable() -> None:
    async with secured_server() as (server, _):
        form = await get(server, "/page/")
        assert form.status == 401
        assert '<form method="post" action="sign-in">' in form.text
        assert "main.js" not in form.text
        for path in ("/page/main.js", "/page/stream", "/page/vendor/uplot.js", "/page/nothing"):
            assert (await get(server, path)).status == 403
        assert (await get(server, "/page/stream", headers=bearer("wrong"))).status == 401


@async_test
async def test_a_token_without_permission_is_refused() -> None:
    async with secured_server() as (server, _):
        assert (await get(server, "/page/stream", headers=bearer("toms"))).status == 403
        assert (await get(server, "/page/main.js", headers=cookie("toms"))).status == 403
        reply = await get(server, "/page/sign-in", method="POST", body=b"token=toms")
        assert (reply.status, "set-cookie" in reply.headers) == (401, False)
        assert "may not get /page/" in reply.text


@async_test
async def test_a_sign_in_sets_a_cookie_for_the_page_only() -> None:
    async with secured_server() as (server, _):
        signed_in = await get(server, "/page/sign-in", method="POST", body=b"token=janes")
        assert (signed_in.status, signed_in.headers["location"]) == (303, "./")
        assert signed_in.headers["set-cookie"] == "bayplan-token=janes; Path=/; HttpOnly; Secure; SameSite=Strict"
        assert 'src="main.js"' in (await get(server, "/page/", headers=cookie("janes"))).text
        assert (await get(server, "/metrics", headers=bearer("janes"))).status == 200
        assert (await get(server, "/metrics", headers=cookie("janes"))).status == 403
        out = await get(server, "/page/sign-out", method="POST", headers=cookie("janes"))
        assert "Max-Age=0" in out.headers["set-cookie"]


@pytest.mark.parametrize("given", ["", "a b", "x%0d%0aSet-Cookie:y", "%3Cscript%3E", "x" * 5000])
@async_test
async def test_an_invalid_token_is_refused_without_a_review(given: str) -> None:
    async with secured_server() as (server, reviews):
        reply = await get(server, "/page/sign-in", method="POST", body=f"token={given}".encode())
        assert (reply.status, "set-cookie" in reply.headers) == (401, False)
        assert "script" not in reply.text
        assert reviews.asked == []


@async_test
async def test_only_readable_namespaces_are_streamed() -> None:
    async with secured_server() as (server, reviews):
        text = await read_stream(server, "event: whole", bearer("janes"))
        assert '"team/web"' in text
        assert "secret" not in text
        reviews.allowed.add(("jane", "list", "pods /"))
        reviews.tokens["janes-other"] = {"username": "jane", "groups": ["more"]}
        text = await read_stream(server, "event: whole", bearer("janes-other"))
        assert '"team/web"' in text
        assert '"secret/web"' in text


async def read_stream(server: Server, until: str, headers: dict[str, str]) -> str:
    """The text of the stream up to a given text."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    async with connected(server) as (reader, writer):
        writer.write(f"GET /page/stream HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        received = b""
        while until.encode() not in received:
            received += await reader.read(65536)
    assert b"Content-Type: text/event-stream\r\n" in received
    return received.decode()


@async_test
async def test_close_does_not_wait_for_streams() -> None:
    async with secured_server() as (server, _), connected(server) as (reader, writer):
        request = "GET /page/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer janes\r\n\r\n"
        writer.write(request.encode())
        await reader.readuntil(b"event: whole")
        await server.close(3600.0)
        assert len(server._connections) == 0
        assert b"event: whole" not in await reader.read(), "the stream has ended"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@async_test
async def test_the_page_is_read_only(method: str) -> None:
    page_server = LoopbackPageServer("127.0.0.1:0", viewers(), clock=ManualClock())
    await page_server.start()
    try:
        for path in (*PATHS, "/page/sign-in", "/page/sign-out"):
            assert (await fetch(page_server, path, method=method)).status in (404, 405)
    finally:
        await page_server.close()


async def fetch(page_server: LoopbackPageServer, path: str, *, method: str = "GET", host: str = "localhost") -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", page_server.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    return parse_reply(raw)


async def why(namespace: str, name: str, now: bool) -> Answer:  # noqa: ARG001
    return Answer(pod=f"{namespace}/{name}", sentence="it waits")


@async_test
async def test_the_loopback_page_needs_no_token() -> None:
    page_server = LoopbackPageServer("127.0.0.1:0", viewers(), why=why, clock=ManualClock())
    await page_server.start()
    try:
        assert (await fetch(page_server, "/why/team/web")).json["sentence"] == "it waits"
        assert (await fetch(page_server, "/why/team/web", host="evil.example")).status == 403
        assert (await fetch(page_server, "/why/team/web", method="POST")).status == 405
        assert page_server.url == f"http://127.0.0.1:{page_server.port}/page/"
        assert (await fetch(page_server, "/")).headers["location"] == "page/"
        assert (await fetch(page_server, "/page")).headers["location"] == "page/"
        page = await fetch(page_server, "/page/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (await fetch(page_server, "/metrics")).status == 404
        assert (await fetch(page_server, "/page/../page.py")).status == 404
        for host in ("127.0.0.1", f"localhost:{page_server.port}", "[::1]:80"):
            assert (await fetch(page_server, "/page/", host=host)).status == 200
        for host in ("evil.example", f"evil.example:{page_server.port}", "10.0.0.1", "127.0.0.1.evil.example"):
            assert (await fetch(page_server, "/page/", host=host)).status == 403
    finally:
        await page_server.close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":8080", "10.0.0.1:80", "[::]:0", "example.com:80"])
def test_the_page_without_a_token_is_served_on_loopback_only(address: str) -> None:
    with pytest.raises(ServingError, match="is not a loopback address"):
        LoopbackPageServer(address, viewers(), clock=ManualClock())


def test_every_file_of_the_page_exists() -> None:
    for path in (*FILES.glob("*.js"), FILES / "index.html"):
        named = re.findall(r'(?:from|src=|href=) ?"\./?([\w./-]+)"|(?:src|href)="([\w./-]+)"', path.read_text("utf-8"))
        for name in filter(None, (each for pair in named for each in pair)):
            assert (FILES / name).is_file(), f"{path.name} names {name}"


def test_the_page_loads_nothing_from_other_sites() -> None:
    for path in (*FILES.glob("*.js"), *FILES.glob("*.css"), FILES / "index.html"):
        assert re.findall(r"https?://", path.read_text("utf-8")) == [], path.name


def test_text_is_never_inserted_as_markup() -> None:
    for path in FILES.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text("utf-8"))


def test_vendored_files_have_the_published_checksums() -> None:
    published = json.loads((FILES / "vendor" / "vendored.json").read_text("utf-8"))
    assert set(published) == {path.name for path in (FILES / "vendor").iterdir()} - {"vendored.json"}
    for name, reply in published.items():
        assert hashlib.sha256((FILES / "vendor" / name).read_bytes()).hexdigest() == reply["sha256"], name
        assert (FILES / "vendor" / reply["licence"]).is_file()
