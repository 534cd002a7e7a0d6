"""The server without TLS, and its profile endpoints."""

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
async def run_insecure_server(clock: ManualClock) -> AsyncIterator[InsecureServer]:
    routes = {"/healthz": lambda _: text("ok"), "/livez": _broken, **profiling_routes(clock)}
    server = InsecureServer("127.0.0.1:0", routes, clock=clock)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def _broken(_: HttpRequest) -> HttpServerResponse:
    raise ValueError("this check is broken")


async def fetch(server: InsecureServer, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@async_test
async def test_only_known_paths_are_served() -> None:
    async with run_insecure_server(ManualClock()) as server:
        assert await fetch(server, "/healthz") == (200, "ok")
        assert (await fetch(server, "/secret"))[0] == 404
        assert "profile" in (await fetch(server, "/debug/pprof/"))[1]


def send_request(server: InsecureServer, request: str) -> socket.socket:
    """A client whose request arrives before its connection is accepted."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(request.encode())
    client.setblocking(False)
    return client


@pytest.mark.parametrize(("method", "body"), [("GET", "ok"), ("HEAD", "")])
@async_test
async def test_a_probe_that_has_arrived_is_answered_in_one_turn_of_the_loop(method: str, body: str) -> None:
    async with run_insecure_server(ManualClock()) as server:
        with send_request(server, f"{method} /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as client:
            await asyncio.sleep(0)  # the loop polls its sockets and continues here before it handles the events
            await asyncio.sleep(0)
            head, _, received = client.recv(4096).decode().partition("\r\n\r\n")
            assert head.startswith("HTTP/1.1 200 OK\r\n")
            assert "Connection: close" in head
            assert received == body
            assert client.recv(4096) == b""


@async_test
async def test_a_probe_with_keep_alive_can_send_another_request() -> None:
    request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with run_insecure_server(ManualClock()) as server:
        with send_request(server, request) as client:
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
async def test_other_requests_are_answered_by_a_task(request_text: str, status: int) -> None:
    async with run_insecure_server(ManualClock()) as server:
        with send_request(server, request_text) as client:
            loop, received = asyncio.get_running_loop(), b""
            while piece := await loop.sock_recv(client, 4096):
                received += piece
            assert int(received.split()[1]) == status


@async_test
async def test_a_client_that_disconnects_has_no_effect() -> None:
    async with run_insecure_server(ManualClock()) as server:
        client = send_request(server, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        client.close()
        assert await fetch(server, "/healthz") == (200, "ok")


@async_test
async def test_only_one_profile_runs_at_a_time() -> None:
    clock = ManualClock()
    async with run_insecure_server(clock) as server:
        profile = asyncio.ensure_future(fetch(server, "/debug/pprof/profile?seconds=5"))
        await wait_until(lambda: clock.sleepers >= 2)
        assert (await fetch(server, "/debug/pprof/profile?seconds=5"))[0] == 503
        await wait_until(profile.done, tick=lambda: clock.advance(1))
        status, body = profile.result()
        assert status == 200
        assert "function calls" in body


@async_test
async def test_invalid_seconds_are_refused_and_tasks_are_listed() -> None:
    async with run_insecure_server(ManualClock()) as server:
        assert (await fetch(server, "/debug/pprof/profile?seconds=long"))[0] == 400
        assert "Stack for" in (await fetch(server, "/debug/pprof/goroutine"))[1]


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "127.0.0.1:99999", ":-1", "8080"])
def test_invalid_addresses_are_refused(address: str) -> None:
    @async_test
    async def start() -> None:
        await InsecureServer(address, {}, clock=ManualClock()).start()

    with pytest.raises(ServingError, match="is not a valid address"):
        start()
