"""The labels that tie a pod to its devices: who puts them on, who takes them off, and from whom nobody does."""

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


async def sharing(rig: ReconcilerHarness, name: str = "web") -> Tree:
    """A pod that wants a part of a device."""
    return await rig.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})


async def request(rig: ReconcilerHarness, pod: Tree, *groups: str, node: str = "n1", name: str = "web") -> None:
    """One for a part of the device of each group."""
    given: Tree = {"receivedGPU": {"count": len(groups), "portion": "0.50"}, "selectedGPUGroups": list(groups)}
    meta = {"podName": pod["metadata"]["name"], "podUID": pod["metadata"]["uid"]}
    await rig.request(None, node, name=name, receivedResourceType="Fraction", **meta, **given)


async def attempt(rig: ReconcilerHarness, *groups: str, node: str = "n1", name: str = "web") -> float | None:
    """One attempt, while the reservations of these groups say which device they hold."""
    syncing = asyncio.ensure_future(rig.sync(name))
    for group in groups:
        said = reservation_name(node, group)
        while not syncing.done() and await rig.find(PODS, said, RESERVATIONS) is None:
            await asyncio.sleep(0.01)
        if not syncing.done():
            await rig.patch(
                PODS,
                said,
                {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: f"GPU-{group}"}}},
                namespace=RESERVATIONS,
            )
    return await syncing


async def labels_of(rig: ReconcilerHarness, name: str = "web") -> dict[str, str]:
    found: dict[str, str] = (await rig.get(PODS, name))["metadata"].get("labels", {})
    return found


async def is_held(rig: ReconcilerHarness, group: str, node: str = "n1") -> bool:
    found = await rig.find(PODS, reservation_name(node, group), RESERVATIONS)
    return found is not None and "deletionTimestamp" not in found["metadata"]


class FailsOnce:
    """The watch tells of the pod while it is labelled, and of nothing after that."""

    name = "failsonce"
    rig: ReconcilerHarness

    async def pre_bind(self, *_: Any) -> None:
        if self.rig.steps.reached.count("labelled") == 1:
            await self.rig.deliver_event(Pod, "web")
            raise BayplanError("not now")


def test_a_label_that_we_took_off_is_put_on_again_though_the_watch_still_tells_of_it(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await request(rig, await sharing(rig), GROUP)
        assert await attempt(rig, GROUP) is not None
        assert await labels_of(rig) == {}
        assert await attempt(rig, GROUP) is None
        assert await labels_of(rig) == {"runai-gpu-group": GROUP, **MARK}
        await rig.reservations.sync_all()
        assert await is_held(rig, GROUP), "the pod is on the device"

    plugin = FailsOnce()
    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), plugin)


async def bound(rig: ReconcilerHarness, *groups: str) -> Tree:
    """A pod that shares the devices of these groups on n1."""
    await request(rig, await sharing(rig), *groups)
    assert await attempt(rig, *groups) is None
    await rig.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")
    return await rig.get(PODS, "web")


async def is_whole(rig: ReconcilerHarness, before: Tree) -> None:
    """The pod has all that it was given on its node."""
    assert await labels_of(rig) == before["metadata"]["labels"]
    told = (await rig.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"]
    assert told == ",".join(
        f"GPU-{group}" for group in sorted(before["metadata"]["labels"].values()) if group != "bayplan"
    )
    assert await rig.find(CONFIG_MAPS, "web-gpu-0-evar") is not None
    await rig.reservations.sync_all()
    for group in before["metadata"]["labels"].values():
        assert group == "bayplan" or await is_held(rig, group)


@pytest.mark.parametrize(
    ("groups", "others"),
    [
        pytest.param(("g-1",), ("g-2",), id="another device"),
        pytest.param(("g-1",), ("g-1",), id="a device of that name"),
        pytest.param(("g-1", "g-2"), ("g-2", "g-3"), id="several, of which one has that name"),
    ],
)
@pytest.mark.parametrize("first_is_gone", [False, True], ids=["beside the first", "in place of the first"])
def test_a_second_request_takes_nothing_from_a_pod_that_is_bound(
    tmp_path: Path, groups: tuple[str, ...], others: tuple[str, ...], first_is_gone: bool
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        before = await bound(rig, *groups)
        if first_is_gone:
            await rig.client.delete(REQUESTS, name="web", namespace="default")
        await request(rig, before, *others, node="n2", name="again")
        assert await attempt(rig, name="again") is None
        assert (await rig.status("again"))["reason"] == 'the pod is bound elsewhere: to node "n1"'
        await is_whole(rig, before)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


class Telling:
    """The watch tells of the pod before it is bound, and of nothing after that."""

    name = "telling"
    rig: ReconcilerHarness

    async def pre_bind(self, *_: Any) -> None:
        await self.rig.deliver_event(Pod, "web")


@pytest.mark.parametrize("telling", [True, False], ids=["labelled", "as it was made"])
def test_a_second_request_takes_nothing_though_the_watch_does_not_tell_of_the_node_yet(
    tmp_path: Path, telling: bool
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        pod = await sharing(rig)
        await rig.deliver_event(Pod, "web")
        await request(rig, pod, "g-1")
        assert await attempt(rig, "g-1") is None
        before = await rig.get(PODS, "web")
        await request(rig, before, "g-2", node="n2", name="again")
        assert await attempt(rig, "g-2", node="n2", name="again") is None
        assert (await rig.status("again"))["reason"] == 'the pod is bound elsewhere: to node "n1"'
        await is_whole(rig, before)
        assert not await is_held(rig, "g-2", "n2"), "for whom it was reserved does not come"

    plugin = Telling()
    run_with_reconciler(
        tmp_path, test, *([GpuSharingBinderPlugin(), plugin] if telling else [GpuSharingBinderPlugin()])
    )


def test_a_pod_that_others_write_to_is_labelled_all_the_same(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await request(rig, await sharing(rig), GROUP)
        await rig.deliver_event(Pod, "web")
        await rig.patch(PODS, "web", {"metadata": {"annotations": {"seen": "yes"}}})
        assert await attempt(rig, GROUP) is None
        assert await labels_of(rig) == {"runai-gpu-group": GROUP, **MARK}

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
def test_a_pod_that_is_bound_anew_keeps_no_device_of_the_request_before(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """The binder died before the pod was bound, and the engine has placed it anew before the next one began."""

    async def test(rig: ReconcilerHarness) -> None:
        def dies() -> None:
            raise asyncio.CancelledError

        pod = await sharing(rig)
        await request(rig, pod, *before)
        rig.steps.at["prepared"] = dies
        with pytest.raises(asyncio.CancelledError):
            await attempt(rig, *before)
        rig.steps.at.clear()
        await rig.client.delete(REQUESTS, name="web", namespace="default")
        rig.view.requests.clear()
        await rig.deliver_event(Pod, "web")
        await request(rig, pod, *after)
        assert await attempt(rig, *after) is None
        assert {key: value for key, value in (await labels_of(rig)).items() if key not in MARK} == (
            {f"runai-gpu-group/{each}": each for each in after} if len(after) > 1 else {"runai-gpu-group": after[0]}
        )
        await rig.reservations.sync_all()
        assert [each for each in ("g-1", "g-2", "g-3", "g-4") if await is_held(rig, each)] == list(after)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())
