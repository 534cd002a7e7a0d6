"""ReplicaSets: number of pods, order of deletion, adoption, and failures."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.clock import ManualClock
from bayplan.controllers.core.api_types import PODS, REPLICA_SETS, Tree, UntypedObject
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


def has_replicas(count: int) -> Any:
    def is_full(found: Tree) -> bool:
        status = found["status"]
        keys = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        warnings = [status.get(key, 0) for key in keys]
        return warnings == [count] * 4 and status["observedGeneration"] == found["metadata"]["generation"]

    return is_full


async def owned_pods(harness: ControllersHarness, name: str) -> list[Tree]:
    return [each for each in await harness.pods(f"app={name}") if "ownerReferences" in each["metadata"]]


@async_test
async def test_the_number_of_pods_follows_the_replicas(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(REPLICA_SETS, replica_set("web", 5))
        await harness.when(REPLICA_SETS, "web", has_replicas(5))
        pods = await owned_pods(harness, "web")
        assert len(pods) == 5
        assert all(each["metadata"]["name"].startswith("web-") for each in pods)
        assert all(each["metadata"]["ownerReferences"][0]["controller"] for each in pods)
        await harness.patch(REPLICA_SETS, "web", {"spec": {"replicas": 2}})
        await harness.when(REPLICA_SETS, "web", has_replicas(2))
        await harness.patch(REPLICA_SETS, "web", {"spec": {"replicas": 0}})
        await harness.when(REPLICA_SETS, "web", lambda found: found["status"]["replicas"] == 0)


@async_test
async def test_a_deleted_pod_is_replaced(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(REPLICA_SETS, replica_set("web", 2))
        await harness.when(REPLICA_SETS, "web", has_replicas(2))
        victim = (await owned_pods(harness, "web"))[0]["metadata"]["name"]
        await harness.delete(PODS, victim)
        await harness.gone(PODS, victim)
        await harness.when(REPLICA_SETS, "web", has_replicas(2))
        assert victim not in [each["metadata"]["name"] for each in await owned_pods(harness, "web")]


@async_test
async def test_matching_orphans_are_adopted_and_other_pods_released(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        orphan = {"metadata": {"name": "stray", "labels": {"app": "web"}}}
        await harness.make(PODS, {**orphan, "spec": {"containers": [{"name": "c", "image": "none"}]}})
        await harness.when(PODS, "stray", lambda found: found["status"]["phase"] == "Running")
        await harness.make(REPLICA_SETS, replica_set("web", 2))
        await harness.when(REPLICA_SETS, "web", has_replicas(2))
        assert "stray" in [each["metadata"]["name"] for each in await owned_pods(harness, "web")]
        await harness.patch(PODS, "stray", {"metadata": {"labels": {"app": "other"}}})
        await harness.when(PODS, "stray", lambda found: not found["metadata"].get("ownerReferences"))
        await harness.when(REPLICA_SETS, "web", has_replicas(2))
        assert "stray" not in [each["metadata"]["name"] for each in await owned_pods(harness, "web")]


@async_test
async def test_a_status_write_to_a_deleted_set_logs_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The watch has not delivered the deletion yet; no warning is logged."""
    clock = ManualClock()
    replica_set_object = convert(replica_set("web", 0), UntypedObject)
    deleted_set = msgspec.structs.replace(
        replica_set_object, metadata=ObjectMeta(name="web", namespace="default", uid="u1")
    )
    refused = status(404, "NotFound", 'replicasets.apps "web" not found')
    async with FakeHttpServer(lambda _: refused) as server, server.client(clock) as client:
        sets = ReplicaSetController(SharedInformerFactory(client))
        deliver_event(sets.owners, None, deleted_set)
        running = asyncio.create_task(sets.queue.run())
        await wait_until(lambda: len(server.requests) == 2, tick=lambda: clock.advance(0.1))
        deliver_event(sets.owners, deleted_set, None)
        for _ in range(20):
            clock.advance(1.0)
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert {each.path.rpartition("/")[2] for each in server.requests} == {"status"}
    warnings = [each for each in caplog.records if each.name.startswith("bayplan") and each.levelno >= logging.WARNING]
    assert warnings == []
