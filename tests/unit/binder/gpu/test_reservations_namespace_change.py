"""GPU reservations in an earlier namespace of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.gpu.reservations import reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION
from support.harness.reconciler import (
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    RESERVATIONS,
    ReconcilerHarness,
    pod_tree,
    run_with_reconciler,
)

GROUP = "g-1"
NAME = reservation_name("n1", GROUP)
BEFORE = "holders-before"
MARK = {"bayplan.dev/binder": "bayplan"}
WHOLE_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}


async def create_old_reservation(
    harness: ReconcilerHarness, name: str = NAME, *, device: str = "GPU-7", **container: Any
) -> None:
    """Create an own reservation in the earlier namespace of the settings."""
    meta = {"labels": {"runai-gpu-group": GROUP, **MARK}, "annotations": {DEVICE_INDEX_ANNOTATION: device}}
    main = {"name": "reservation", "image": "example.com/main:1", **(container or WHOLE_GPU)}
    await harness.client.create(NAMESPACES, {"metadata": {"name": BEFORE}})
    await harness.make(PODS, pod_tree(name, **meta, spec={"nodeName": "n1", "containers": [main]}), BEFORE)
    await harness.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status", namespace=BEFORE)


async def user(harness: ReconcilerHarness, name: str = "web") -> None:
    """Create an own user that runs on the device."""
    await harness.pod(name, labels={"runai-gpu-group": GROUP, **MARK}, spec={"nodeName": "n1"})
    await harness.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status")


async def is_deleted(harness: ReconcilerHarness, name: str, namespace: str = "default") -> bool:
    found = await harness.find(PODS, name, namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


def test_a_user_of_a_device_stays_when_the_namespace_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_old_reservation(harness)
        await user(harness)
        await harness.reservations.sync_all()
        await harness.reservations.sync_all()
        assert not await is_deleted(harness, "web")
        assert not await is_deleted(harness, NAME, BEFORE)

    run_with_reconciler(tmp_path, test)
    (warning,) = [each.getMessage() for each in caplog.records if BEFORE in each.getMessage()]
    assert RESERVATIONS in warning


def test_a_pod_gets_the_device_of_a_reservation_in_the_earlier_namespace(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_old_reservation(harness)
        pod = await harness.pod(annotations={"runai/shared-gpu-configmap": "web-gpu"})
        given = {"receivedGPU": {"count": 1, "portion": "0.50"}, "selectedGPUGroups": [GROUP]}
        await harness.request(pod, receivedResourceType="Fraction", **given)
        assert await harness.sync() is None
        assert await harness.node_of() == "n1"
        assert (await harness.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
        assert await harness.find(PODS, NAME, RESERVATIONS) is None, "one device would be reserved twice"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_reservation_in_the_earlier_namespace_is_deleted_with_its_last_user(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_old_reservation(harness)
        await harness.reservations.sync_all()
        assert await is_deleted(harness, NAME, BEFORE)

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize(
    ("name", "container"),
    [
        pytest.param("main-0", WHOLE_GPU, id="another name"),
        pytest.param(NAME, {"resources": {}}, id="no device of its own"),
    ],
)
def test_a_similar_pod_in_another_namespace_is_no_reservation(
    tmp_path: Path, name: str, container: dict[str, Any]
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_old_reservation(harness, name, **container)
        await user(harness)
        await harness.reservations.sync_all()
        assert await is_deleted(harness, "web")

    run_with_reconciler(tmp_path, test)
