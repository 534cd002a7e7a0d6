"""Volumes and devices that were only assumed: their release wakes waiting pods without a watch event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.queued_pod import SubQueue
from support.builders.devices import device, make_class, make_slice, protected_claim, using_claim
from support.builders.framework import make_node, make_pod, replace_fields
from support.builders.volumes import claim_volume, make_claim, make_volume
from support.builders.volumes import make_class as make_storage_class
from support.fakes.http_server import Request, status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import run_live_scheduler

NODE = make_node("n", cpu="4")


def with_volume(pod: Pod, name: str) -> Pod:
    return replace_fields(pod, spec={"volumes": (claim_volume(name),)})


DEVICES: tuple[KubeObject, ...] = (
    make_slice(device("gpu-0"), node="n"),
    make_class("gpu"),
    protected_claim("a"),
    protected_claim("b"),
)
VOLUMES: tuple[KubeObject, ...] = (
    make_storage_class(provisioner="kubernetes.io/no-provisioner"),
    make_volume("only", version="1"),
    make_claim("a", version="1"),
    make_claim("b", version="1"),
)


async def refused_at(gate: asyncio.Event) -> Any:
    await gate.wait()
    return status(403, "Forbidden", "a webhook refuses it")


@pytest.mark.parametrize(
    ("objects", "give", "written"),
    [
        pytest.param(DEVICES, using_claim, "/resourceclaims/a/status", id="devices"),
        pytest.param(VOLUMES, with_volume, "/persistentvolumes/only", id="volume"),
    ],
)
def test_a_pod_is_woken_when_another_pod_releases_what_it_waits_for(
    objects: tuple[KubeObject, ...], give: Any, written: str
) -> None:
    first, second = give(make_pod("first", cpu="1"), "a"), give(make_pod("second", cpu="1"), "b")

    @async_test
    async def test() -> None:
        gate, requests = asyncio.Event(), []
        async with run_live_scheduler(NODE, *objects) as harness:

            def route(request: Request) -> Any:
                if request.method == "PATCH" and request.path.endswith(written):
                    requests.append(request)
                    return refused_at(gate)
                return harness.answer(request)

            harness.server.route = route
            harness.deliver(first)
            await wait_until(lambda: requests)
            harness.deliver(second)
            await wait_until(lambda: harness.pool(second) is SubQueue.UNSCHEDULABLE)
            gate.set()
            await wait_until(lambda: harness.pool(first) is not None)
            harness.deliver_deletion(first)
            await wait_until(lambda: harness.pool(second) is not SubQueue.UNSCHEDULABLE)
            assert harness.clock.monotonic_s() < 60.0  # the periodic flush comes after minutes

    test()


@pytest.mark.parametrize(
    ("objects", "give"),
    [pytest.param(DEVICES, using_claim, id="devices"), pytest.param(VOLUMES, with_volume, id="volume")],
)
def test_a_trial_wakes_no_pod(objects: tuple[KubeObject, ...], give: Any) -> None:
    pod = give(make_pod("first", cpu="1"), "a")

    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, *objects, decide=False) as harness:
            await harness.live.handle_pending_events()
            for in_trial in (True, False):
                placed = harness.live.engine.place(pod)
                assert placed.assumed is not None
                if in_trial:
                    placed.assumed.end_trial(harness.live.engine.cache)
                else:
                    placed.assumed.unreserve_and_forget(harness.live.engine.cache)
                assert bool(harness.live.event_queue.waiting) != in_trial

    test()
