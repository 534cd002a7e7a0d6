"""GPU group labels of pods: when the binder adds them, removes them, and leaves them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.gpu.reservations import reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.errors import BayplanError
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION
from support.harness.reconciler import (
    CONFIG_MAPS,
    PODS,
    REQUESTS,
    RESERVATIONS,
    ReconcilerHarness,
    Tree,
    run_with_reconciler,
)

GROUP = "g-1"
MARK = {"bayplan.dev/binder": "bayplan"}


async def sharing(harness: ReconcilerHarness, name: str = "web") -> Tree:
    """Create a pod that requests a fraction of a GPU."""
    return await harness.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})


async def request(harness: ReconcilerHarness, pod: Tree, *groups: str, node: str = "n1", name: str = "web") -> None:
    """Create a request for a fraction of the device of each group."""
    given: Tree = {"receivedGPU": {"count": len(groups), "portion": "0.50"}, "selectedGPUGroups": list(groups)}
    meta = {"podName": pod["metadata"]["name"], "podUID": pod["metadata"]["uid"]}
    await harness.request(None, node, name=name, receivedResourceType="Fraction", **meta, **given)


async def attempt(harness: ReconcilerHarness, *groups: str, node: str = "n1", name: str = "web") -> float | None:
    """Make one attempt, while the reservations of these groups report their devices."""
    syncing = asyncio.ensure_future(harness.sync(name))
    for group in groups:
        name_of_reservation = reservation_name(node, group)
        while not syncing.done() and await harness.find(PODS, name_of_reservation, RESERVATIONS) is None:
            await asyncio.sleep(0.01)
        if not syncing.done():
            await harness.patch(
                PODS,
                name_of_reservation,
                {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: f"GPU-{group}"}}},
                namespace=RESERVATIONS,
            )
    return await syncing


async def labels_of(harness: ReconcilerHarness, name: str = "web") -> dict[str, str]:
    found: dict[str, str] = (await harness.get(PODS, name))["metadata"].get("labels", {})
    return found


async def is_held(harness: ReconcilerHarness, group: str, node: str = "n1") -> bool:
    found = await harness.find(PODS, reservation_name(node, group), RESERVATIONS)
    return found is not None and "deletionTimestamp" not in found["metadata"]


class FailsOnce:
    """Delivers an event of the pod while it is labelled, and none after that."""

    name = "failsonce"
    harness: ReconcilerHarness

    async def pre_bind(self, *_: Any) -> None:
        if self.harness.steps.reached.count("labelled") == 1:
            await self.harness.deliver_event(Pod, "web")
            raise BayplanError("not now")


def test_a_removed_label_is_added_again_although_the_cached_pod_still_has_it(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await request(harness, await sharing(harness), GROUP)
        assert await attempt(harness, GROUP) is not None
        assert await labels_of(harness) == {}
        assert await attempt(harness, GROUP) is None
        assert await labels_of(harness) == {"runai-gpu-group": GROUP, **MARK}
        await harness.reservations.sync_all()
        assert await is_held(harness, GROUP), "the pod is on the device"

    plugin = FailsOnce()
    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), plugin)


async def bound(harness: ReconcilerHarness, *groups: str) -> Tree:
    """Bind a pod that shares the devices of these groups on n1."""
    await request(harness, await sharing(harness), *groups)
    assert await attempt(harness, *groups) is None
    await harness.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")
    return await harness.get(PODS, "web")


async def is_whole(harness: ReconcilerHarness, before: Tree) -> None:
    """Assert that the pod has all that it got on its node."""
    assert await labels_of(harness) == before["metadata"]["labels"]
    devices = (await harness.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"]
    assert devices == ",".join(
        f"GPU-{group}" for group in sorted(before["metadata"]["labels"].values()) if group != "bayplan"
    )
    assert await harness.find(CONFIG_MAPS, "web-gpu-0-evar") is not None
    await harness.reservations.sync_all()
    for group in before["metadata"]["labels"].values():
        assert group == "bayplan" or await is_held(harness, group)


@pytest.mark.parametrize(
    ("groups", "new_groups"),
    [
        pytest.param(("g-1",), ("g-2",), id="another device"),
        pytest.param(("g-1",), ("g-1",), id="a device of that name"),
        pytest.param(("g-1", "g-2"), ("g-2", "g-3"), id="several, of which one has that name"),
    ],
)
@pytest.mark.parametrize("first_is_gone", [False, True], ids=["beside the first", "in place of the first"])
def test_a_second_request_removes_nothing_from_a_bound_pod(
    tmp_path: Path, groups: tuple[str, ...], new_groups: tuple[str, ...], first_is_gone: bool
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        before = await bound(harness, *groups)
        if first_is_gone:
            await harness.client.delete(REQUESTS, name="web", namespace="default")
        await request(harness, before, *new_groups, node="n2", name="again")
        assert await attempt(harness, name="again") is None
        assert (await harness.status("again"))["reason"] == 'the pod is bound elsewhere: to node "n1"'
        await is_whole(harness, before)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


class Telling:
    """Delivers an event of the pod before it is bound, and none after that."""

    name = "telling"
    harness: ReconcilerHarness

    async def pre_bind(self, *_: Any) -> None:
        await self.harness.deliver_event(Pod, "web")


@pytest.mark.parametrize("telling", [True, False], ids=["labelled", "as it was made"])
def test_a_second_request_removes_nothing_although_the_cached_pod_has_no_node(tmp_path: Path, telling: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        pod = await sharing(harness)
        await harness.deliver_event(Pod, "web")
        await request(harness, pod, "g-1")
        assert await attempt(harness, "g-1") is None
        before = await harness.get(PODS, "web")
        await request(harness, before, "g-2", node="n2", name="again")
        assert await attempt(harness, "g-2", node="n2", name="again") is None
        assert (await harness.status("again"))["reason"] == 'the pod is bound elsewhere: to node "n1"'
        await is_whole(harness, before)
        assert not await is_held(harness, "g-2", "n2"), "the pod that it was reserved for will not be bound"

    plugin = Telling()
    run_with_reconciler(
        tmp_path, test, *([GpuSharingBinderPlugin(), plugin] if telling else [GpuSharingBinderPlugin()])
    )


def test_a_pod_with_concurrent_writers_is_labelled(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await request(harness, await sharing(harness), GROUP)
        await harness.deliver_event(Pod, "web")
        await harness.patch(PODS, "web", {"metadata": {"annotations": {"seen": "yes"}}})
        assert await attempt(harness, GROUP) is None
        assert await labels_of(harness) == {"runai-gpu-group": GROUP, **MARK}

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(("g-1", "g-2"), ("g-3", "g-4"), id="several"),
        pytest.param(("g-1", "g-2"), ("g-2", "g-3"), id="one of them again"),
        pytest.param(("g-1", "g-2"), ("g-3",), id="one after several"),
        pytest.param(("g-1",), ("g-3", "g-4"), id="several after one"),
    ],
)
def test_a_pod_with_a_new_request_keeps_no_device_of_the_earlier_one(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """The binder died before the pod was bound, and the engine created a new request before the next binder started."""

    async def test(harness: ReconcilerHarness) -> None:
        def dies() -> None:
            raise asyncio.CancelledError

        pod = await sharing(harness)
        await request(harness, pod, *before)
        harness.steps.at["prepared"] = dies
        with pytest.raises(asyncio.CancelledError):
            await attempt(harness, *before)
        harness.steps.at.clear()
        await harness.client.delete(REQUESTS, name="web", namespace="default")
        harness.view.requests.clear()
        await harness.deliver_event(Pod, "web")
        await request(harness, pod, *after)
        assert await attempt(harness, *after) is None
        assert {key: value for key, value in (await labels_of(harness)).items() if key not in MARK} == (
            {f"runai-gpu-group/{each}": each for each in after} if len(after) > 1 else {"runai-gpu-group": after[0]}
        )
        await harness.reservations.sync_all()
        assert [each for each in ("g-1", "g-2", "g-3", "g-4") if await is_held(harness, each)] == list(after)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())
