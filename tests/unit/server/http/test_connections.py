"""Clients that are fast, slow, silent, many, or that speak other protocols. Over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Iterator

import pytest

from bayplan.clock import ManualClock
from bayplan.server import Check, SecureServingOptions, ServerViews
from bayplan.server.http.connections import HANDSHAKE_S, HEAD_S, IDLE_S, WRITE_S
from bayplan.telemetry.metrics import Gauge, MetricsRegistry
from support.harness.async_tests import async_test, count_loop_turns, wait_until
from support.harness.health_server import client_tls_context, connected, exchange, get, parse_reply, run_server

REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def many_metrics(lines: int = 5000) -> ServerViews:
    registry, depth = MetricsRegistry(), Gauge("depth", "Depth.", ("queue",))
    registry.add(depth)
    for number in range(lines):
        depth.labels(f"{number:06d}-{'x' * 100}").set(number)
    return ServerViews(metrics=registry)


async def run_ready_tasks() -> None:
    """Let all ready tasks run."""
    for _ in range(200):
        await asyncio.sleep(0)


@async_test
async def test_many_requests_on_one_connection() -> None:
    async with run_server() as server, connected(server) as (reader, writer):
        for _ in range(3):
            writer.write(REQUEST)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.write(REQUEST + REQUEST)
        await reader.readuntil(b"ok")
        await reader.readuntil(b"ok")


@async_test
async def test_http_1_0_clients_get_http_1_0_responses() -> None:
    async with run_server(many_metrics(10)) as server:
        assert (await exchange(server, b"GET /livez HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200 OK\r\n")
        reply = parse_reply(await exchange(server, b"GET /metrics HTTP/1.0\r\n\r\n"))
        assert "transfer-encoding" not in reply.headers
        assert reply.text.count("\ndepth{") == 10


@async_test
async def test_a_client_may_wait_for_100_continue() -> None:
    verbosities: list[int] = []
    views = ServerViews(metrics=MetricsRegistry(), set_verbosity=verbosities.append)
    async with run_server(views) as server, connected(server) as (reader, writer):
        writer.write(b"PUT /debug/flags/v HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"4")
        await reader.readuntil(b"verbosity to 4\n")
        assert verbosities == [4]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"GARBAGE\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request: missing required Host header\r\n"),
        (b"GET / HTTP/3.0\r\n\r\n", b"HTTP/1.1 505 HTTP Version Not Supported: unsupported protocol version\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: z\r\n\r\n", b"HTTP/1.1 501 Not Implemented\r\n"),
    ],
)
@async_test
async def test_invalid_requests_are_refused_with_upstreams_texts(data: bytes, answer: bytes) -> None:
    async with run_server() as server:
        raw = await exchange(server, data)
        assert raw.startswith(answer + b"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
        assert (await get(server, "/livez")).text == "ok"


@async_test
async def test_plain_http_gets_upstreams_error() -> None:
    async with run_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        expected = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        assert await reader.read() == expected
        writer.close()


@async_test
async def test_noise_instead_of_tls_only_ends_its_connection() -> None:
    async with run_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x00" * 1000)
        await reader.read()
        writer.close()
        assert (await get(server, "/livez")).text == "ok"


@pytest.mark.parametrize(
    ("sent", "after_s"),
    [
        pytest.param(b"", IDLE_S, id="silent"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost", HEAD_S, id="half a request"),
        pytest.param(REQUEST, IDLE_S, id="silent after an answer"),
    ],
)
@async_test
async def test_a_connection_without_progress_is_closed_at_its_deadline(sent: bytes, after_s: float) -> None:
    clock = ManualClock()
    async with run_server(clock=clock) as server, connected(server) as (reader, writer):
        writer.write(sent)
        if sent == REQUEST:
            await reader.readuntil(b"ok")
        await wait_until(lambda: server._connections.deadlines() == [after_s])
        clock.advance(after_s - 1)
        await run_ready_tasks()
        assert not reader.at_eof()
        await wait_until(reader.at_eof, tick=lambda: clock.advance(0.3))


@async_test
async def test_a_connection_without_handshake_is_closed() -> None:
    clock = ManualClock()
    async with run_server(clock=clock) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await wait_until(lambda: len(server._connections) == 1)
        await wait_until(reader.at_eof, tick=lambda: clock.advance(HANDSHAKE_S / 20))
        await wait_until(lambda: len(server._connections) == 0)
        assert HANDSHAKE_S <= clock.monotonic_s() < 2 * HANDSHAKE_S
        assert await reader.read() == b""
        writer.close()


@async_test
async def test_a_client_that_does_not_read_is_closed_and_does_not_delay_other_clients() -> None:
    clock = ManualClock()
    async with run_server(many_metrics(60_000), clock=clock) as server:
        stuck = socket.create_connection(("127.0.0.1", server.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.setblocking(False)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1024)
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), sock=stuck, ssl=client_tls_context(), server_hostname="x"
        )
        transport.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        transport.pause_reading()
        await wait_until(lambda: server._connections.deadlines() == [WRITE_S])
        assert (await get(server, "/livez")).text == "ok"
        await wait_until(lambda: len(server._connections) == 0, tick=lambda: clock.advance(WRITE_S / 50))
        transport.abort()


@async_test
async def test_above_the_limit_the_longest_idle_connection_is_closed() -> None:
    clock = ManualClock()
    async with run_server(clock=clock, connections=3) as server:
        clients = []
        for _ in range(3):
            clients.append(await asyncio.open_connection("127.0.0.1", server.port))
            await wait_until(lambda: len(server._connections) == len(clients))
            clock.advance(0.01)
        assert (await get(server, "/livez")).text == "ok"
        await wait_until(clients[0][0].at_eof)
        assert not clients[2][0].at_eof()
        for _, writer in clients:
            writer.transport.abort()


@async_test
async def test_a_chunked_response_lets_the_loop_run_other_tasks() -> None:
    async with run_server(many_metrics(10_000)) as server, count_loop_turns() as run_ready_tasks:
        reply = await get(server, "/metrics")
        assert reply.text.count("\ndepth{") == 10_000
        assert run_ready_tasks() > 20


@async_test
async def test_responses_are_compressed_if_the_client_accepts_it() -> None:
    async with run_server(many_metrics(2000)) as server:
        reply = await get(server, "/metrics", headers={"Accept-Encoding": "deflate, gzip;q=0.9"})
        assert reply.headers["content-encoding"] == "gzip"
        assert len(reply.body) * 5 < len(gzip.decompress(reply.body))
        assert gzip.decompress(reply.body) == (await get(server, "/metrics")).body


@async_test
async def test_a_failing_handler_gives_status_500() -> None:
    def render() -> Iterator[bytes]:
        raise RuntimeError("no metrics today")

    registry = MetricsRegistry()
    registry.render = render  # type: ignore[method-assign]
    async with run_server(ServerViews(metrics=registry)) as server:
        reply = await get(server, "/metrics")
        assert (reply.status, reply.text) == (500, "Internal Server Error\n")
        assert (await get(server, "/livez")).text == "ok"


@async_test
async def test_close_finishes_responses_and_closes_idle_connections() -> None:
    async with run_server(many_metrics(30_000)) as server:
        port = server.port
        async with connected(server) as (reader, writer), connected(server) as (idle, _):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            close_task = asyncio.create_task(server.close(30.0))
            assert (await reader.read()).endswith(b"0\r\n\r\n")
            assert await idle.read() == b""
            await close_task
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


@async_test
async def test_close_also_closes_a_connection_whose_task_has_not_started() -> None:
    async with run_server() as server:
        server_socket, client_socket = socket.socketpair()
        server._connections.accept(server_socket)
        await server._connections.close(0.0)  # before its task runs
        assert server_socket.fileno() == -1
        client_socket.close()


@async_test
async def test_a_check_that_raises_is_a_failed_check() -> None:
    def raises() -> str:
        raise RuntimeError("render check")

    async with run_server(ServerViews(metrics=MetricsRegistry(), readyz=[Check("odd", raises)])) as server:
        assert (await get(server, "/readyz")).status == 500
        reply = await get(server, "/readyz/odd")
        assert (reply.status, reply.text) == (500, "internal server error: RuntimeError: render check\n")


def test_the_default_port_is_kube_schedulers() -> None:
    assert SecureServingOptions().port == 10259
