"""Commands with a watch: a silently dead watch is replaced within 30 s, and nothing is printed twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.cli.commands.objects.delete import _DeletionTarget, _wait_until_deleted
from bayplan.cli.commands.objects.get import GetRequest, _watch
from bayplan.client import KindMapping, TableQuery, resource_of
from bayplan.clock import ManualClock
from bayplan.objects.core import Node
from bayplan.objects.kinds import kind_of
from support.fakes.http_server import FakeHttpServer, Reply, WatchStream, deleted, node, status
from support.harness.async_tests import async_test, wait_until

MAX_DETECTION_S = 30.0
NODES = resource_of(kind_of(Node))
KIND = KindMapping(resource=NODES, kind="Node")
COLUMNS = [{"name": "Name", "type": "string", "priority": 0}]


def table(version: int, *names: str) -> dict[str, Any]:
    rows = [
        {"cells": [name], "object": {"metadata": {"name": name, "resourceVersion": str(version)}}} for name in names
    ]
    meta = {"resourceVersion": str(version)}
    return {"kind": "Table", "metadata": meta, "columnDefinitions": COLUMNS, "rows": rows}


@async_test
async def test_get_watch_resumes_after_a_dead_watch(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    dead, alive = WatchStream(), WatchStream({"type": "ADDED", "object": table(12, "c")})
    dead.send({"type": "ADDED", "object": table(11, "b")})
    script = [Reply(200, table(10, "a")), dead, alive]
    async with FakeHttpServer(script=script) as server, server.client(clock) as client:
        request = GetRequest(output="name", watch=True)
        watch_task = asyncio.ensure_future(_watch(client, KIND, TableQuery(resource=NODES), request))
        shown: list[str] = []
        await wait_until(lambda: shown.extend(capsys.readouterr().out.split()) or "node/b" in shown)
        start_s = clock.monotonic_s()
        await wait_until(
            lambda: shown.extend(capsys.readouterr().out.split()) or "node/c" in shown, tick=lambda: clock.advance(0.5)
        )
        assert clock.monotonic_s() - start_s <= MAX_DETECTION_S
        assert shown == ["node/a", "node/b", "node/c"]
        assert [each.options.get("resourceVersion") for each in server.requests] == [None, "10", "11"]
        assert {each.options["timeoutSeconds"] for each in server.requests[1:]} == {"20"}
        watch_task.cancel()


@async_test
async def test_delete_reads_the_object_again_after_a_dead_watch() -> None:
    clock = ManualClock()
    existing = Reply(200, node("a", 10, uid="one"))
    script = [existing, WatchStream(), existing, WatchStream(deleted(node("a", 11, uid="one")))]
    async with FakeHttpServer(script=script) as server, server.client(clock) as client:
        wait_task = asyncio.ensure_future(_wait_until_deleted(client, _DeletionTarget(KIND, "", "a"), "one"))
        await wait_until(wait_task.done, tick=lambda: clock.advance(0.5))
        wait_task.result()
        assert clock.monotonic_s() <= MAX_DETECTION_S
        assert not server.script


@async_test
async def test_delete_notices_a_deletion_during_a_dead_watch() -> None:
    clock = ManualClock()
    script = [Reply(200, node("a", 10, uid="one")), WatchStream(), status(404, "NotFound")]
    async with FakeHttpServer(script=script) as server, server.client(clock) as client:
        wait_task = asyncio.ensure_future(_wait_until_deleted(client, _DeletionTarget(KIND, "", "a"), "one"))
        await wait_until(wait_task.done, tick=lambda: clock.advance(0.5))
        wait_task.result()
        assert clock.monotonic_s() <= MAX_DETECTION_S
