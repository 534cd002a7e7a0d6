"""The way into the API server without a socket: the same answers, watches that wait for their reader, and an end."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bayplan.apiserver.http import watch_stream
from bayplan.apiserver.http.in_process import InProcessServer
from bayplan.client import Client, ConnectionConfig, GroupVersionResource, Secret, resource_of
from bayplan.client.http.transport import ResponseStream
from bayplan.clock import ManualClock, SystemClock
from bayplan.errors import Forbidden, Invalid, NotFound, Unauthorized, Unreachable
from bayplan.objects.core import Namespace
from bayplan.objects.kinds import kind_of
from support.harness.apiserver_store import config_map
from support.harness.async_tests import async_test, count_loop_turns, wait_until
from support.harness.embedded_cluster import UNKNOWN_TOKEN, EmbeddedClusterClient, run_embedded_cluster

CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
PATH = "/api/v1/namespaces/default/configmaps"
WITHIN_S = 30.0
"""For one test: client and server are on one loop, and no request leaves the process."""


@asynccontextmanager
async def inside(folder: Path, token: str = "") -> AsyncIterator[tuple[EmbeddedClusterClient, InProcessServer, Client]]:
    """A cluster that is asked both ways, the door inside and a client behind it."""
    async with run_embedded_cluster(folder) as outside:
        cluster = outside.cluster
        door = InProcessServer(cluster.handler_chain(), lambda: cluster.store.version)
        target = ConnectionConfig(
            server="http://inside", token=Secret(token or cluster.credentials.token), in_process=door
        )
        async with Client(target, clock=SystemClock(), chance=random.Random(0), qps=-1.0) as client:
            async with asyncio.timeout(WITHIN_S):
                yield outside, door, client


async def read_until(stream: ResponseStream, wanted: bytes) -> bytes:
    """What the stream delivers, up to the piece that has `wanted` in it."""
    seen = b""
    while wanted not in seen:
        piece = await stream.read()
        assert piece, f"the stream ended after {seen!r}"
        seen += piece
    return seen


@async_test
async def test_answers_are_those_of_the_wire(tmp_path: Path) -> None:
    async with inside(tmp_path) as (outside, _, client):
        await client.create(CONFIG_MAPS, config_map("one", annotations={"a": "é"}), namespace="default")
        for path in (PATH, f"{PATH}/one", "/api/v1", "/version", f"{PATH}?labelSelector=a%3Db"):
            answer = await client.transport.request("GET", path)
            assert answer.body.decode() == (await outside.request("GET", path)).text


@pytest.mark.parametrize(
    ("token", "method", "path", "refusal"),
    [
        pytest.param("", "GET", f"{PATH}/nobody", NotFound, id="not-there"),
        pytest.param("", "POST", PATH, Invalid, id="no-body"),
        pytest.param("wrong", "GET", PATH, Unauthorized, id="unknown"),
        pytest.param(UNKNOWN_TOKEN, "GET", PATH, Forbidden, id="not-allowed"),
    ],
)
@async_test
async def test_refusals_are_those_of_the_wire(
    tmp_path: Path, token: str, method: str, path: str, refusal: type[Exception]
) -> None:
    async with inside(tmp_path, token) as (_, _, client):
        with pytest.raises(refusal):
            await client.transport.request(method, path)


@async_test
async def test_a_watch_tells_what_happens_and_ends_with_its_connection(tmp_path: Path) -> None:
    async with inside(tmp_path) as (outside, _, client):
        listeners = outside.cluster.store.committed(("", "configmaps")).watch_cache._listeners
        before = len(listeners)
        async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
            await client.create(CONFIG_MAPS, config_map("seen"), namespace="default")
            await read_until(stream, b'"name":"seen"')
            assert len(listeners) == before + 1
        await wait_until(lambda: len(listeners) == before)


@async_test
async def test_a_watch_may_be_silent_for_any_time(tmp_path: Path) -> None:
    """There is no connection that could be dead, and hours of a simulation pass in seconds."""
    clock, names = ManualClock(), set[str]()
    async with inside(tmp_path) as (_, door, client):
        target = replace(client.target, in_process=door)
        async with Client(target, clock=clock, chance=random.Random(0), qps=-1.0) as slow:
            informer = slow.informer(resource_of(kind_of(Namespace)), lambda _, new: names.add(new.name if new else ""))
            running = asyncio.ensure_future(informer.run())
            await informer.wait_synced()
            (watch,) = slow.transport._pool._streams
            for _ in range(100):
                clock.advance(60.0)
                await asyncio.sleep(0.001)
            await client.create(resource_of(kind_of(Namespace)), {"metadata": {"name": "seen"}})
            await wait_until(lambda: "seen" in names)
            assert slow.transport._pool._streams == {watch}
            running.cancel()


@async_test
async def test_a_reader_who_is_slow_is_waited_for(tmp_path: Path) -> None:
    """What the client does not take is kept by the watch, not by the connection, and comes in its order."""
    async with inside(tmp_path) as (_, _, client):
        async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
            for number in range(6):
                big = config_map(f"big-{number}") | {"data": {"a": "x" * 500_000}}
                await client.create(CONFIG_MAPS, big, namespace="default")
            seen = await read_until(stream, b"big-5")
        assert re.findall(rb'"name":"big-(\d)"', seen) == [b"%d" % number for number in range(6)]


@async_test
async def test_a_watch_that_the_server_ends_is_over_and_its_connection_serves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_stream, "MAX_BUFFERED_BYTES", 2000)
    async with inside(tmp_path) as (_, _, client):
        async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
            await client.create(CONFIG_MAPS, config_map("big") | {"data": {"a": "x" * 3000}}, namespace="default")
            while await stream.read():
                pass
        answer = await client.transport.request("GET", f"{PATH}/big")
        assert b"xxx" in answer.body


@async_test
async def test_who_asks_again_and_again_leaves_others_their_turn(tmp_path: Path) -> None:
    async with inside(tmp_path) as (_, _, client), count_loop_turns() as turns:
        for _ in range(5):
            await client.transport.request("GET", PATH)
        assert turns() >= 5


@async_test
async def test_a_watch_is_no_single_answer(tmp_path: Path) -> None:
    async with inside(tmp_path) as (outside, _, client):
        listeners = outside.cluster.store.committed(("", "configmaps")).watch_cache._listeners
        before = len(listeners)
        with pytest.raises(Unreachable, match="use connect"):
            await client.transport.request("GET", f"{PATH}?watch=true")
        assert len(listeners) == before


@async_test
async def test_nobody_is_answered_behind_a_closed_door_or_by_a_closed_client(tmp_path: Path) -> None:
    async with inside(tmp_path) as (_, door, client):
        door.close()
        with pytest.raises(Unreachable, match="the server has ended"):
            await client.transport.request("GET", PATH)
        await client.close()
        with pytest.raises(Unreachable, match="the client is closed"):
            await client.transport.request("GET", PATH)


@async_test
async def test_a_door_that_closes_ends_what_is_under_way(tmp_path: Path) -> None:
    async with (
        inside(tmp_path) as (_, door, client),
        client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream,
    ):
        await stream.read()
        door.close()
        with pytest.raises(Unreachable):
            await stream.read()
