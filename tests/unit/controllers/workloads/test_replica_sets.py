"""ReplicaSets: as many pods as are asked for, the right ones first to go, orphans adopted, faults told."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.clock import ManualClock
from bayplan.controllers.core.api_types import (
    PODS,
    REPLICA_SETS,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.shared_informers import SharedInformerFactory
from bayplan.controllers.workloads.replica_sets import ReplicaSetController
from bayplan.objects.kinds import convert
from bayplan.objects.meta import ObjectMeta
from support.fakes.http_server import FakeHttpServer, status
from support.harness.async_tests import async_test, wait_until
from support.harness.controllers import ControllersHarness, deliver_event, run_controllers

ONLY = ("replicaset-controller",)


def replica_set(name: str, replicas: int, **spec: Any) -> Tree:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


def full(count: int) -> Any:
    def so(found: Tree) -> bool:
        status = found["status"]
        keys = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        told = [status.get(key, 0) for key in keys]
        return told == [count] * 4 and status["observedGeneration"] == found["metadata"]["generation"]

    return so


async def owned(world: ControllersHarness, name: str) -> list[Tree]:
    return [each for each in await world.pods(f"app={name}") if "ownerReferences" in each["metadata"]]


@async_test
async def test_pods_come_and_go_with_the_number_that_is_asked_for(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(REPLICA_SETS, replica_set("web", 5))
        await world.when(REPLICA_SETS, "web", full(5))
        pods = await owned(world, "web")
        assert len(pods) == 5
        assert all(each["metadata"]["name"].startswith("web-") for each in pods)
        assert all(each["metadata"]["ownerReferences"][0]["controller"] for each in pods)
        await world.patch(REPLICA_SETS, "web", {"spec": {"replicas": 2}})
        await world.when(REPLICA_SETS, "web", full(2))
        await world.patch(REPLICA_SETS, "web", {"spec": {"replicas": 0}})
        await world.when(REPLICA_SETS, "web", lambda found: found["status"]["replicas"] == 0)


@async_test
async def test_a_pod_that_is_deleted_is_replaced(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(REPLICA_SETS, replica_set("web", 2))
        await world.when(REPLICA_SETS, "web", full(2))
        victim = (await owned(world, "web"))[0]["metadata"]["name"]
        await world.delete(PODS, victim)
        await world.gone(PODS, victim)
        await world.when(REPLICA_SETS, "web", full(2))
        assert victim not in [each["metadata"]["name"] for each in await owned(world, "web")]


@async_test
async def test_orphans_that_fit_are_adopted_and_what_no_longer_fits_is_let_go(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        orphan = {"metadata": {"name": "stray", "labels": {"app": "web"}}}
        await world.make(PODS, {**orphan, "spec": {"containers": [{"name": "c", "image": "none"}]}})
        await world.when(PODS, "stray", lambda found: found["status"]["phase"] == "Running")
        await world.make(REPLICA_SETS, replica_set("web", 2))
        await world.when(REPLICA_SETS, "web", full(2))
        assert "stray" in [each["metadata"]["name"] for each in await owned(world, "web")]
        await world.patch(PODS, "stray", {"metadata": {"labels": {"app": "other"}}})
        await world.when(PODS, "stray", lambda found: not found["metadata"].get("ownerReferences"))
        await world.when(REPLICA_SETS, "web", full(2))
        assert "stray" not in [each["metadata"]["name"] for each in await owned(world, "web")]


@async_test
async def test_a_set_that_is_gone_when_its_status_is_told_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The deletion is on its way through the watch; whoever reads the log has nothing to mend."""
    clock = ManualClock()
    made = convert(replica_set("web", 0), UntypedObject)
    gone = msgspec.structs.replace(made, metadata=ObjectMeta(name="web", namespace="default", uid="u1"))
    refused = status(404, "NotFound", 'replicasets.apps "web" not found')
    async with FakeHttpServer(lambda _: refused) as server, server.client(clock) as client:
        sets = ReplicaSetController(SharedInformerFactory(client))
        deliver_event(sets.owners, None, gone)
        running = asyncio.create_task(sets.queue.run())
        await wait_until(lambda: len(server.requests) == 2, tick=lambda: clock.advance(0.1))
        deliver_event(sets.owners, gone, None)
        for _ in range(20):
            clock.advance(1.0)
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert {each.path.rpartition("/")[2] for each in server.requests} == {"status"}
    told = [each for each in caplog.records if each.name.startswith("bayplan") and each.levelno >= logging.WARNING]
    assert told == []
