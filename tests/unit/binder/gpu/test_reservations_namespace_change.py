"""Reservations that were made in another namespace than the one that settings name now."""

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


async def held_before(rig: ReconcilerHarness, name: str = NAME, *, device: str = "GPU-7", **container: Any) -> None:
    """A reservation of ours in the namespace that settings named before."""
    meta = {"labels": {"runai-gpu-group": GROUP, **MARK}, "annotations": {DEVICE_INDEX_ANNOTATION: device}}
    main = {"name": "reservation", "image": "example.com/main:1", **(container or WHOLE_GPU)}
    await rig.client.create(NAMESPACES, {"metadata": {"name": BEFORE}})
    await rig.make(PODS, pod_tree(name, **meta, spec={"nodeName": "n1", "containers": [main]}), BEFORE)
    await rig.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status", namespace=BEFORE)


async def user(rig: ReconcilerHarness, name: str = "web") -> None:
    """One of ours that runs on the device."""
    await rig.pod(name, labels={"runai-gpu-group": GROUP, **MARK}, spec={"nodeName": "n1"})
    await rig.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status")


async def is_going(rig: ReconcilerHarness, name: str, namespace: str = "default") -> bool:
    found = await rig.find(PODS, name, namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


def test_who_runs_on_a_device_stays_when_reservations_move(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held_before(rig)
        await user(rig)
        await rig.reservations.sync_all()
        await rig.reservations.sync_all()
        assert not await is_going(rig, "web")
        assert not await is_going(rig, NAME, BEFORE)

    run_with_reconciler(tmp_path, test)
    (said,) = [each.getMessage() for each in caplog.records if BEFORE in each.getMessage()]
    assert RESERVATIONS in said


def test_a_pod_comes_to_the_device_that_is_held_in_the_namespace_before(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held_before(rig)
        pod = await rig.pod(annotations={"runai/shared-gpu-configmap": "web-gpu"})
        given = {"receivedGPU": {"count": 1, "portion": "0.50"}, "selectedGPUGroups": [GROUP]}
        await rig.request(pod, receivedResourceType="Fraction", **given)
        assert await rig.sync() is None
        assert await rig.node_of() == "n1"
        assert (await rig.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
        assert await rig.find(PODS, NAME, RESERVATIONS) is None, "one device would be held twice"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_it_goes_with_its_last_user_as_any_other(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held_before(rig)
        await rig.reservations.sync_all()
        assert await is_going(rig, NAME, BEFORE)

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize(
    ("name", "container"),
    [
        pytest.param("main-0", WHOLE_GPU, id="another name"),
        pytest.param(NAME, {"resources": {}}, id="no device of its own"),
    ],
)
def test_a_pod_elsewhere_that_only_looks_like_one_reserves_nothing(
    tmp_path: Path, name: str, container: dict[str, Any]
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await held_before(rig, name, **container)
        await user(rig)
        await rig.reservations.sync_all()
        assert await is_going(rig, "web")

    run_with_reconciler(tmp_path, test)
