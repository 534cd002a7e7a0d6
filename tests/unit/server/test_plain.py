"""The server without TLS, and where the time goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bayplan.clock import ManualClock
from bayplan.errors import ServingError
from bayplan.server.plain import PlainServer
from bayplan.server.profiling import profiling_routes
from bayplan.server.responses import text
from wire_server import on_loop, until


@asynccontextmanager
async def serving(clock: ManualClock) -> AsyncIterator[PlainServer]:
    routes = {"/healthz": lambda _: text("ok"), **profiling_routes(clock)}
    server = PlainServer("127.0.0.1:0", routes, clock=clock)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def asked(server: PlainServer, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@on_loop
async def test_pages_are_answered_and_others_are_not_found() -> None:
    async with serving(ManualClock()) as server:
        assert await asked(server, "/healthz") == (200, "ok")
        assert (await asked(server, "/secret"))[0] == 404
        assert "profile" in (await asked(server, "/debug/pprof/"))[1]


@on_loop
async def test_a_profile_takes_its_time_and_is_one_at_a_time() -> None:
    clock = ManualClock()
    async with serving(clock) as server:
        profiling = asyncio.ensure_future(asked(server, "/debug/pprof/profile?seconds=5"))
        await until(lambda: clock.sleepers >= 2)
        assert (await asked(server, "/debug/pprof/profile?seconds=5"))[0] == 503
        await until(profiling.done, tick=lambda: clock.advance(1))
        status, body = profiling.result()
        assert status == 200
        assert "function calls" in body


@on_loop
async def test_what_is_no_number_is_refused_and_tasks_are_listed() -> None:
    async with serving(ManualClock()) as server:
        assert (await asked(server, "/debug/pprof/profile?seconds=long"))[0] == 400
        assert "Stack for" in (await asked(server, "/debug/pprof/goroutine"))[1]


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    @on_loop
    async def start() -> None:
        await PlainServer(address, {}, clock=ManualClock()).start()

    with pytest.raises(ServingError, match="is no address to listen on"):
        start()
