"""The server without TLS, and where the time goes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bayplan.clock import ManualClock
from bayplan.errors import ServingError
from bayplan.server.http.insecure_server import InsecureServer
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import HttpServerResponse, text
from bayplan.server.profiling import profiling_routes
from support.harness.async_tests import async_test, wait_until


@asynccontextmanager
async def serving(clock: ManualClock) -> AsyncIterator[InsecureServer]:
    routes = {"/healthz": lambda _: text("ok"), "/livez": _broken, **profiling_routes(clock)}
    server = InsecureServer("127.0.0.1:0", routes, clock=clock)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def _broken(_: HttpRequest) -> HttpServerResponse:
    raise ValueError("this check is broken")


async def asked(server: InsecureServer, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@async_test
async def test_pages_are_answered_and_others_are_not_found() -> None:
    async with serving(ManualClock()) as server:
        assert await asked(server, "/healthz") == (200, "ok")
        assert (await asked(server, "/secret"))[0] == 404
        assert "profile" in (await asked(server, "/debug/pprof/"))[1]


def sent(server: InsecureServer, request: str) -> socket.socket:
    """A client whose request is there before anybody takes its connection."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(request.encode())
    client.setblocking(False)
    return client


@pytest.mark.parametrize(("method", "body"), [("GET", "ok"), ("HEAD", "")])
@async_test
async def test_a_probe_whose_request_is_there_needs_one_turn_of_the_loop(method: str, body: str) -> None:
    async with serving(ManualClock()) as server:
        with sent(server, f"{method} /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as client:
            await asyncio.sleep(0)  # the loop looks at its sockets, and goes on here before it takes what it saw
            await asyncio.sleep(0)
            head, _, told = client.recv(4096).decode().partition("\r\n\r\n")
            assert head.startswith("HTTP/1.1 200 OK\r\n")
            assert "Connection: close" in head
            assert told == body
            assert client.recv(4096) == b""


@async_test
async def test_a_probe_that_wants_to_ask_again_may() -> None:
    request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(ManualClock()) as server:
        with sent(server, request) as client:
            loop = asyncio.get_running_loop()
            assert (await loop.sock_recv(client, 4096)).endswith(b"ok")
            await loop.sock_sendall(client, request.encode())
            assert (await loop.sock_recv(client, 4096)).endswith(b"ok")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /broken HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 500),
        ("no request at all\r\n\r\n", 400),
    ],
)
@async_test
async def test_what_cannot_be_answered_on_the_spot_is_answered_later(request_text: str, status: int) -> None:
    async with serving(ManualClock()) as server:
        with sent(server, request_text) as client:
            loop, told = asyncio.get_running_loop(), b""
            while piece := await loop.sock_recv(client, 4096):
                told += piece
            assert int(told.split()[1]) == status


@async_test
async def test_a_client_that_went_away_is_no_trouble() -> None:
    async with serving(ManualClock()) as server:
        client = sent(server, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        client.close()
        assert await asked(server, "/healthz") == (200, "ok")


@async_test
async def test_a_profile_takes_its_time_and_is_one_at_a_time() -> None:
    clock = ManualClock()
    async with serving(clock) as server:
        profiling = asyncio.ensure_future(asked(server, "/debug/pprof/profile?seconds=5"))
        await wait_until(lambda: clock.sleepers >= 2)
        assert (await asked(server, "/debug/pprof/profile?seconds=5"))[0] == 503
        await wait_until(profiling.done, tick=lambda: clock.advance(1))
        status, body = profiling.result()
        assert status == 200
        assert "function calls" in body


@async_test
async def test_what_is_no_number_is_refused_and_tasks_are_listed() -> None:
    async with serving(ManualClock()) as server:
        assert (await asked(server, "/debug/pprof/profile?seconds=long"))[0] == 400
        assert "Stack for" in (await asked(server, "/debug/pprof/goroutine"))[1]


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "127.0.0.1:99999", ":-1", "8080"])
def test_what_is_no_address_is_refused(address: str) -> None:
    @async_test
    async def start() -> None:
        await InsecureServer(address, {}, clock=ManualClock()).start()

    with pytest.raises(ServingError, match="is not a valid address"):
        start()
