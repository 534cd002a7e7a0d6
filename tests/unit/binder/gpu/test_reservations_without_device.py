"""A reservation that does not say its device: whose pods wait for it, and whose do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bayplan.binder.gpu.reservations import reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION
from support.harness.reconciler import (
    PODS,
    RESERVATIONS,
    ReconcilerHarness,
    pod_tree,
    run_with_reconciler,
)

FOR_EVER_S = 3600.0
ENOUGH_S = 30.0
"""Less than the minute after which all groups are looked after again."""
MARK = {"bayplan.dev/binder": "bayplan"}


async def sharing(rig: ReconcilerHarness, name: str, group: str) -> None:
    pod = await rig.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})
    given = {"receivedGPU": {"count": 1, "portion": "0.50"}, "selectedGPUGroups": [group]}
    await rig.request(pod, name=name, receivedResourceType="Fraction", **given)


async def held(rig: ReconcilerHarness, group: str) -> None:
    """A reservation that says its device."""
    meta = {"labels": {"runai-gpu-group": group, **MARK}, "annotations": {DEVICE_INDEX_ANNOTATION: f"GPU-{group}"}}
    await rig.make(PODS, pod_tree(reservation_name("n1", group), **meta, spec={"nodeName": "n1"}), RESERVATIONS)


async def is_held(rig: ReconcilerHarness, group: str) -> bool:
    found = await rig.find(PODS, reservation_name("n1", group), RESERVATIONS)
    return found is not None and "deletionTimestamp" not in found["metadata"]


async def until_free(rig: ReconcilerHarness, group: str) -> None:
    while await is_held(rig, group):
        await asyncio.sleep(0.01)


@asynccontextmanager
async def waiting(rig: ReconcilerHarness) -> AsyncIterator[None]:
    """A pod waits for a reservation on n1 that says nothing."""
    await rig.pod("waiting")
    pod, node = await rig.client.get(Pod, "default", "waiting"), rig.view.node("n1")
    assert node is not None
    attempt = asyncio.ensure_future(rig.reservations.reserve(pod, node, "silent", several=False))
    try:
        async with asyncio.timeout(ENOUGH_S):
            while not await is_held(rig, "silent"):
                await asyncio.sleep(0.01)
            yield
    finally:
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)


def test_a_silent_reservation_holds_up_no_pod_that_shares_another_device_of_the_node(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held(rig, "spoken")
        await sharing(rig, "web", "spoken")
        async with waiting(rig):
            assert await rig.sync("web") is None
            assert await rig.node_of("web") == "n1"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=FOR_EVER_S)


def test_a_silent_reservation_keeps_no_other_group_from_being_looked_after(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held(rig, "before")
        async with waiting(rig), rig.run_binder() as live:
            await until_free(rig, "before")  # found at the start, where all groups are looked after
            await held(rig, "unused")
            live.groups.add("silent")
            live.groups.add("unused")
            await until_free(rig, "unused")
            assert await is_held(rig, "silent")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=FOR_EVER_S)


def test_every_group_but_the_one_that_somebody_waits_for_is_looked_after(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held(rig, "unused")
        async with waiting(rig):
            await rig.reservations.sync_all()
            assert not await is_held(rig, "unused")
            assert await is_held(rig, "silent")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=FOR_EVER_S)
