"""The labels that tie a pod to its devices: who puts them on, who takes them off, and from whom nobody does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bayplan.binder.gpu_reservations import reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharing
from bayplan.errors import BayplanError
from bayplan.objects.core import Pod
from bayplan.objects.gpu_sharing import DEVICE
from binder_rig import PODS, RESERVATIONS, BinderRig, Tree, on_rig

GROUP = "g-1"
MARK = {"bayplan.dev/binder": "bayplan"}


async def sharing(rig: BinderRig, name: str = "web") -> Tree:
    """A pod that wants a part of a device."""
    return await rig.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})


async def request(rig: BinderRig, pod: Tree, *groups: str, node: str = "n1", name: str = "web") -> None:
    """One for a part of the device of each group."""
    given: Tree = {"receivedGPU": {"count": len(groups), "portion": "0.50"}, "selectedGPUGroups": list(groups)}
    meta = {"podName": pod["metadata"]["name"], "podUID": pod["metadata"]["uid"]}
    await rig.request(None, node, name=name, receivedResourceType="Fraction", **meta, **given)


async def attempt(rig: BinderRig, *groups: str, node: str = "n1", name: str = "web") -> float | None:
    """One attempt, while the reservations of these groups say which device they hold."""
    syncing = asyncio.ensure_future(rig.sync(name))
    for group in groups:
        said = reservation_name(node, group)
        while not syncing.done() and await rig.find(PODS, said, RESERVATIONS) is None:
            await asyncio.sleep(0.01)
        if not syncing.done():
            await rig.patch(PODS, said, {"metadata": {"annotations": {DEVICE: f"GPU-{group}"}}}, namespace=RESERVATIONS)
    return await syncing


async def labels_of(rig: BinderRig, name: str = "web") -> dict[str, str]:
    found: dict[str, str] = (await rig.get(PODS, name))["metadata"].get("labels", {})
    return found


async def is_held(rig: BinderRig, group: str, node: str = "n1") -> bool:
    found = await rig.find(PODS, reservation_name(node, group), RESERVATIONS)
    return found is not None and "deletionTimestamp" not in found["metadata"]


class FailsOnce:
    """The watch tells of the pod while it is labelled, and of nothing after that."""

    name = "failsonce"
    rig: BinderRig

    async def pre_bind(self, *_: Any) -> None:
        if self.rig.steps.reached.count("labelled") == 1:
            await self.rig.hear(Pod, "web")
            raise BayplanError("not now")


def test_a_label_that_we_took_off_is_put_on_again_though_the_watch_still_tells_of_it(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        plugin.rig = rig
        await request(rig, await sharing(rig), GROUP)
        assert await attempt(rig, GROUP) is not None
        assert await labels_of(rig) == {}
        assert await attempt(rig, GROUP) is None
        assert await labels_of(rig) == {"runai-gpu-group": GROUP, **MARK}
        await rig.reservations.sync_all()
        assert await is_held(rig, GROUP), "the pod is on the device"

    plugin = FailsOnce()
    on_rig(tmp_path, test, GpuSharing(), plugin)
