"""A reservation that does not report its device: which pods wait for it, and which do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bayplan.binder.gpu.reservations import reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION
from support.harness.reconciler import PODS, RESERVATIONS, ReconcilerHarness, pod_tree, run_with_reconciler

FOR_EVER_S = 3600.0
ENOUGH_S = 30.0
"""Less than the minute between two periodic syncs."""
MARK = {"bayplan.dev/binder": "bayplan"}


async def sharing(harness: ReconcilerHarness, name: str, group: str) -> None:
    pod = await harness.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})
    given = {"receivedGPU": {"count": 1, "portion": "0.50"}, "selectedGPUGroups": [group]}
    await harness.request(pod, name=name, receivedResourceType="Fraction", **given)


async def create_reservation(harness: ReconcilerHarness, group: str) -> None:
    """Create a reservation that reports its device."""
    meta = {"labels": {"runai-gpu-group": group, **MARK}, "annotations": {DEVICE_INDEX_ANNOTATION: f"GPU-{group}"}}
    await harness.make(PODS, pod_tree(reservation_name("n1", group), **meta, spec={"nodeName": "n1"}), RESERVATIONS)


async def is_reserved(harness: ReconcilerHarness, group: str) -> bool:
    found = await harness.find(PODS, reservation_name("n1", group), RESERVATIONS)
    return found is not None and "deletionTimestamp" not in found["metadata"]


async def wait_until_free(harness: ReconcilerHarness, group: str) -> None:
    while await is_reserved(harness, group):
        await asyncio.sleep(0.01)


@asynccontextmanager
async def waiting_attempt(harness: ReconcilerHarness) -> AsyncIterator[None]:
    """A pod waits for a reservation on n1 that does not report its device."""
    await harness.pod("waiting")
    pod, node = await harness.client.get(Pod, "default", "waiting"), harness.view.node("n1")
    assert node is not None
    attempt = asyncio.ensure_future(harness.reservations.reserve(pod, node, "silent", several=False))
    try:
        async with asyncio.timeout(ENOUGH_S):
            while not await is_reserved(harness, "silent"):
                await asyncio.sleep(0.01)
            yield
    finally:
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)


def test_a_silent_reservation_does_not_block_pods_of_other_devices_of_the_node(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_reservation(harness, "spoken")
        await sharing(harness, "web", "spoken")
        async with waiting_attempt(harness):
            assert await harness.sync("web") is None
            assert await harness.node_of("web") == "n1"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=FOR_EVER_S)


def test_a_silent_reservation_does_not_block_the_sync_of_other_groups(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_reservation(harness, "before")
        async with waiting_attempt(harness), harness.run_binder() as live:
            await wait_until_free(harness, "before")  # found by the sync at the start
            await create_reservation(harness, "unused")
            live.groups.add("silent")
            live.groups.add("unused")
            await wait_until_free(harness, "unused")
            assert await is_reserved(harness, "silent")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=FOR_EVER_S)


def test_every_group_but_the_locked_one_is_synced(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_reservation(harness, "unused")
        async with waiting_attempt(harness):
            await harness.reservations.sync_all()
            assert not await is_reserved(harness, "unused")
            assert await is_reserved(harness, "silent")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=FOR_EVER_S)
