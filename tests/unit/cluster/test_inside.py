"""The way into the API server without a socket: the same answers, watches that wait for their reader, and an end."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from api_world import config_map
from bayplan.client import Client, Resource, Secret, Target
from bayplan.clock import SystemClock
from bayplan.cluster.embedded import EmbeddedCluster
from bayplan.cluster.inside import InsideDoor
from bayplan.errors import Forbidden, Invalid, NotFound, Unauthorized, Unreachable
from served_cluster import STRANGER, served
from wire_server import on_loop

CONFIG_MAPS = Resource("", "v1", "configmaps")
PATH = "/api/v1/namespaces/default/configmaps"


def door_of(cluster: EmbeddedCluster) -> InsideDoor:
    return InsideDoor(cluster.gateway(), lambda: cluster.store.told)


def client_of(cluster: EmbeddedCluster, door: InsideDoor, token: str = "") -> Client:
    target = Target(server="http://inside", token=Secret(token or cluster.credentials.token), dial=door.connect)
    return Client(target, clock=SystemClock(), chance=random.Random(0), qps=-1.0)


@on_loop
async def test_answers_are_those_of_the_wire(tmp_path: Path) -> None:
    async with served(tmp_path) as outside:
        async with client_of(outside.cluster, door_of(outside.cluster)) as client:
            await client.create(
                CONFIG_MAPS, config_map("é", {"a": "1"}) | {"metadata": {"name": "one"}}, namespace="default"
            )
            for path in (PATH, f"{PATH}/one", "/api/v1", "/version", f"{PATH}?labelSelector=a%3Db"):
                answer = await client.transport.request("GET", path)
                assert answer.body.decode() == (await outside.ask("GET", path)).text


@pytest.mark.parametrize(
    ("token", "method", "path", "refusal"),
    [
        pytest.param("", "GET", f"{PATH}/nobody", NotFound, id="not-there"),
        pytest.param("", "POST", PATH, Invalid, id="no-body"),
        pytest.param("wrong", "GET", PATH, Unauthorized, id="unknown"),
        pytest.param(STRANGER, "GET", PATH, Forbidden, id="not-allowed"),
    ],
)
@on_loop
async def test_refusals_are_those_of_the_wire(
    tmp_path: Path, token: str, method: str, path: str, refusal: type[Exception]
) -> None:
    async with served(tmp_path) as outside:
        async with client_of(outside.cluster, door_of(outside.cluster), token) as client:
            with pytest.raises(refusal):
                await client.transport.request(method, path)


@on_loop
async def test_a_watch_tells_what_happens_and_ends_with_its_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as outside:
        cluster = outside.cluster
        listeners = cluster.store.place(("", "configmaps")).ring._listeners
        before = len(listeners)
        async with client_of(cluster, door_of(cluster)) as client:
            async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
                await client.create(CONFIG_MAPS, config_map("seen", {}), namespace="default")
                seen = b""
                while b'"name":"seen"' not in seen:
                    seen += await stream.piece()
                assert len(listeners) == before + 1
        await asyncio.sleep(0)
        assert len(listeners) == before


@on_loop
async def test_a_reader_who_is_slow_is_waited_for(tmp_path: Path) -> None:
    """What the client does not take is kept by the watch, not by the connection."""
    async with served(tmp_path) as outside:
        cluster = outside.cluster
        async with client_of(cluster, door_of(cluster)) as client:
            async with client.transport.stream(f"{PATH}?watch=true", quiet_s=30.0) as stream:
                for number in range(6):
                    await client.create(
                        CONFIG_MAPS, config_map(f"big-{number}", {"a": "x" * 500_000}), namespace="default"
                    )
                seen = b""
                while b"big-5" not in seen:
                    seen += await stream.piece()
                assert [seen.count(b'"name":"big-%d"' % number) for number in range(6)] == [1] * 6


@on_loop
async def test_a_door_that_closes_ends_what_is_under_way(tmp_path: Path) -> None:
    async with served(tmp_path) as outside:
        door = door_of(outside.cluster)
        async with client_of(outside.cluster, door) as client:
            async with client.transport.stream(f"{PATH}?watch=true&resourceVersion=0", quiet_s=30.0) as stream:
                waiting = asyncio.ensure_future(_until_cut(stream.piece))
                await asyncio.sleep(0)
                door.close()
                with pytest.raises(Unreachable):
                    await waiting


async def _until_cut(piece: object) -> None:
    while True:
        await piece()  # type: ignore[operator]
