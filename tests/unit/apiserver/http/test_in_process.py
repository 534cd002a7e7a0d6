"""In-process access to the API server: the same responses as on the wire, flow control of watches, and closing."""

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
"""Timeout of a test: client and server share one event loop, and no request leaves the process."""


@asynccontextmanager
async def connect_in_process(
    folder: Path, token: str = ""
) -> AsyncIterator[tuple[EmbeddedClusterClient, InProcessServer, Client]]:
    """A cluster with a socket, its in-process server and a client of that."""
    async with run_embedded_cluster(folder) as over_http:
        cluster = over_http.cluster
        server = InProcessServer(cluster.handler_chain(), lambda: cluster.store.version)
        target = ConnectionConfig(
            server="http://inside", token=Secret(token or cluster.credentials.token), in_process=server
        )
        async with Client(target, clock=SystemClock(), chance=random.Random(0), qps=-1.0) as client:
            async with asyncio.timeout(WITHIN_S):
                yield over_http, server, client


async def read_until(stream: ResponseStream, wanted: bytes) -> bytes:
    """The data of the stream up to the piece that contains `wanted`."""
    received = b""
    while wanted not in received:
        piece = await stream.read()
        assert piece, f"the stream ended after {received!r}"
        received += piece
    return received


@async_test
async def test_responses_equal_those_on_the_wire(tmp_path: Path) -> None:
    async with connect_in_process(tmp_path) as (over_http, _, client):
        await client.create(CONFIG_MAPS, config_map("one", annotations={"a": "é"}), namespace="default")
        for path in (PATH, f"{PATH}/one", "/api/v1", "/version", f"{PATH}?labelSelector=a%3Db"):
            response = await client.transport.request("GET", path)
            assert response.body.decode() == (await over_http.request("GET", path)).text


@pytest.mark.parametrize(
    ("token", "method", "path", "error"),
    [
        pytest.param("", "GET", f"{PATH}/missing", NotFound, id="missing"),
        pytest.param("", "POST", PATH, Invalid, id="no-body"),
        pytest.param("wrong", "GET", PATH, Unauthorized, id="unknown-token"),
        pytest.param(UNKNOWN_TOKEN, "GET", PATH, Forbidden, id="not-allowed"),
    ],
)
@async_test
async def test_errors_equal_those_on_the_wire(
    tmp_path: Path, token: str, method: str, path: str, error: type[Exception]
) -> None:
    async with connect_in_process(tmp_path, token) as (_, _, client):
        with pytest.raises(error):
            await client.transport.request(method, path)


@async_test
async def test_a_watch_sends_changes_and_ends_with_its_connection(tmp_path: Path) -> None:
    async with connect_in_process(tmp_path) as (over_http, _, client):
        listeners = over_http.cluster.store.committed_objects(("", "configmaps")).watch_cache._listeners
        before = len(listeners)
        async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
            await client.create(CONFIG_MAPS, config_map("seen"), namespace="default")
            await read_until(stream, b'"name":"seen"')
            assert len(listeners) == before + 1
        await wait_until(lambda: len(listeners) == before)


@async_test
async def test_a_silent_watch_is_not_closed(tmp_path: Path) -> None:
    """An in-process connection cannot be dead; hours of a simulation pass in seconds."""
    clock, names = ManualClock(), set[str]()
    async with connect_in_process(tmp_path) as (_, server, client):
        target = replace(client.target, in_process=server)
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
async def test_a_slow_reader_gets_all_events_in_order(tmp_path: Path) -> None:
    """The watch buffers what the client does not read, and sends it in order."""
    async with connect_in_process(tmp_path) as (_, _, client):
        async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
            for number in range(6):
                big = config_map(f"big-{number}") | {"data": {"a": "x" * 500_000}}
                await client.create(CONFIG_MAPS, big, namespace="default")
            received = await read_until(stream, b"big-5")
        assert re.findall(rb'"name":"big-(\d)"', received) == [b"%d" % number for number in range(6)]


@async_test
async def test_a_connection_serves_requests_after_the_server_ended_its_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_stream, "MAX_BUFFERED_BYTES", 2000)
    async with connect_in_process(tmp_path) as (_, _, client):
        async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
            await client.create(CONFIG_MAPS, config_map("big") | {"data": {"a": "x" * 3000}}, namespace="default")
            while await stream.read():
                pass
        response = await client.transport.request("GET", f"{PATH}/big")
        assert b"xxx" in response.body


@async_test
async def test_repeated_requests_yield_to_the_event_loop(tmp_path: Path) -> None:
    async with connect_in_process(tmp_path) as (_, _, client), count_loop_turns() as turns:
        for _ in range(5):
            await client.transport.request("GET", PATH)
        assert turns() >= 5


@async_test
async def test_a_watch_as_a_single_request_is_refused(tmp_path: Path) -> None:
    async with connect_in_process(tmp_path) as (over_http, _, client):
        listeners = over_http.cluster.store.committed_objects(("", "configmaps")).watch_cache._listeners
        before = len(listeners)
        with pytest.raises(Unreachable, match="use connect"):
            await client.transport.request("GET", f"{PATH}?watch=true")
        assert len(listeners) == before


@async_test
async def test_a_closed_server_and_a_closed_client_refuse_requests(tmp_path: Path) -> None:
    async with connect_in_process(tmp_path) as (_, server, client):
        server.close()
        with pytest.raises(Unreachable, match="the API server of this process is closed"):
            await client.transport.request("GET", PATH)
        await client.close()
        with pytest.raises(Unreachable, match="the client is closed"):
            await client.transport.request("GET", PATH)


@async_test
async def test_closing_the_server_ends_its_watches(tmp_path: Path) -> None:
    async with (
        connect_in_process(tmp_path) as (_, server, client),
        client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream,
    ):
        await stream.read()
        server.close()
        with pytest.raises(Unreachable):
            await stream.read()
