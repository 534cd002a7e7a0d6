"""Who only waits for others holds up nobody, and waits no longer than its request wants that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.cancellable_waits import BindingCancelled, CancellableWaits
from bayplan.binder.gpu.reservations import DEVICE_INDEX_ANNOTATION, reservation_name
from bayplan.binder.plugins.volume_binding import VolumeBindingBinderPlugin
from bayplan.client import resource_of
from bayplan.errors import BayplanError
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from support.e2e.volumes_and_devices import claim
from support.harness.async_tests import async_test
from support.harness.reconciler import (
    PODS,
    REQUESTS,
    RESERVATIONS,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)

VOLUMES, VOLUME_CLAIMS, CLASSES = (
    resource_of(kind_of(struct)) for struct in (PersistentVolume, PersistentVolumeClaim, StorageClass)
)
CHOSEN = "volume.kubernetes.io/selected-node"


class Patient(RecordingPlugin):
    """Waits on n1 until it is told that it may go on."""

    def __init__(self) -> None:
        super().__init__("patient")
        self.go_on = asyncio.Event()

    async def pre_bind(self, ctx: Any, pod: Any, node: Any, bind_request: BindRequest, state: Any) -> None:
        await super().pre_bind(ctx, pod, node, bind_request, state)
        if node.name == "n1":
            async with ctx.cancellable_wait():
                await self.go_on.wait()


async def with_slow_volume(rig: ReconcilerHarness) -> None:
    """A pod whose claim somebody has to make a volume for, and the request; both are at work when it returns."""
    late = {
        "metadata": {"name": "late"},
        "provisioner": "example.com/slow",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await rig.make(CLASSES, late)
    await rig.make(VOLUME_CLAIMS, claim("data", "late"))
    await rig.deliver_event(StorageClass, "late")
    await rig.deliver_event(PersistentVolumeClaim, "data")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    pod = await rig.pod(spec={"volumes": volumes})
    await rig.deliver_event(Pod, "web")
    await rig.request(pod)
    while CHOSEN not in (await rig.get(VOLUME_CLAIMS, "data"))["metadata"].get("annotations", {}):
        await asyncio.sleep(0.01)


async def provision(rig: ReconcilerHarness) -> None:
    """What a provisioner and the volume controller do, seen by the watch."""
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    host_path = {"hostPath": {"path": "/none"}}
    await rig.make(VOLUMES, {"metadata": {"name": "v"}, "spec": {**spec, **host_path}})
    done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    await rig.patch(VOLUME_CLAIMS, "data", {"metadata": done, "spec": {"volumeName": "v"}})
    await rig.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Bound"}}, sub="status")
    await rig.deliver_event(PersistentVolume, "v")
    await rig.deliver_event(PersistentVolumeClaim, "data")


def test_a_pod_whose_volume_is_awaited_takes_no_place_from_another(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder(workers=1):
            await with_slow_volume(rig)
            await rig.request(await rig.pod("plain"), name="plain")
            await rig.until_phase("Succeeded", "plain")
            assert await rig.node_of() == ""
            await provision(rig)
            await rig.until_phase("Succeeded")
            assert await rig.node_of() == "n1"

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_pods_whose_device_is_awaited_take_no_place_from_another(tmp_path: Path) -> None:
    """The second waits for its turn at the group, which the first has until it knows the device."""
    name = reservation_name("n1", "g")
    kind = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g"]}

    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder(workers=1):
            for each in ("web", "second"):
                await rig.request(await rig.pod(each), name=each, **kind)
            while await rig.find(PODS, name, RESERVATIONS) is None or rig.steps.reached.count("taken") < 2:
                await asyncio.sleep(0.01)
            await rig.request(await rig.pod("plain"), name="plain")
            await rig.until_phase("Succeeded", "plain")
            assert [await rig.node_of(each) for each in ("web", "second")] == ["", ""]
            await rig.patch(
                PODS, name, {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: "GPU-7"}}}, namespace=RESERVATIONS
            )
            for each in ("web", "second"):
                await rig.until_phase("Succeeded", each)

    run_with_reconciler(tmp_path, test)


def test_a_volume_is_not_awaited_for_a_request_that_is_gone(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder(workers=1):
            await with_slow_volume(rig)
            await rig.client.delete(REQUESTS, name="web", namespace="default")
            while "rolled-back" not in rig.steps.reached:
                await asyncio.sleep(0.01)
        known = rig.view.cache.volumes.claims.get("default/data")
        assert known is not None
        assert known.metadata.annotations == {}  # what was assumed for the pod is not any more
        assert (rig.attempts, rig.reasons) == ([], [])

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin(), plugin)
    assert plugin.calls == ["noting rollback None"]


@pytest.mark.parametrize("how", ["replaced", "changed"])
def test_a_request_for_another_node_does_not_wait_for_what_the_first_one_wanted(tmp_path: Path, how: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder(workers=1):
            pod = await rig.pod()
            await rig.request(pod)
            while not plugin.calls:
                await asyncio.sleep(0.01)
            if how == "replaced":
                await rig.client.delete(REQUESTS, name="web", namespace="default")
                await rig.request(pod, "n2")
            else:
                await rig.patch(REQUESTS, "web", {"spec": {"selectedNode": "n2"}})
            assert (await rig.until_phase("Succeeded"))["failedAttempts"] == 0
            assert await rig.node_of() == "n2"

    plugin = Patient()
    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["patient pre_bind", "patient rollback 1", "patient pre_bind", "patient post_bind"]


def test_what_is_told_of_others_cuts_no_wait(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder(workers=1):
            await rig.request(await rig.pod())
            while not plugin.calls:
                await asyncio.sleep(0.01)
            await rig.patch(REQUESTS, "web", {"metadata": {"annotations": {"somebody": "looks on"}}})
            await rig.request(await rig.pod("other"), "n2", name="other")
            await rig.until_phase("Succeeded", "other")
            assert await rig.node_of() == ""
            plugin.go_on.set()
            await rig.until_phase("Succeeded")

    plugin = Patient()
    run_with_reconciler(tmp_path, test, plugin)


def test_a_pod_that_waits_for_long_is_told_so(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder(workers=1):
            await rig.request(await rig.pod())
            while not rig.events:
                await asyncio.sleep(0.01)
            (said,) = rig.events
            assert (said.reason, said.type, said.regarding.name) == ("BindingWaits", "Normal", "web")
            assert said.note == (
                "Pod default/web is on its way to node n1: the binder waits for a volume, a device or a plugin"
            )
            plugin.go_on.set()
            await rig.until_phase("Succeeded")
        assert rig.reasons == ["BindingWaits", "Bound"]

    plugin = Patient()
    run_with_reconciler(tmp_path, test, plugin, notice_s=0.0)


# by themselves


REQUEST = BindRequest(metadata=ObjectMeta(name="web", namespace="default", uid="1"))
KEY = ("default", "web")


@async_test
async def test_what_is_awaited_to_take_things_back_is_not_cut() -> None:
    waits = CancellableWaits(lambda _: False)
    with pytest.raises(BindingCancelled), waits.for_request(REQUEST):
        async with waits():
            raise AssertionError("nobody wants it any more")
    async with waits():
        waits.cancel_if_outdated(KEY)
        await asyncio.sleep(0)


@async_test
async def test_faults_of_what_is_awaited_are_its_own() -> None:
    waits = CancellableWaits(lambda _: True)
    for fault in (TimeoutError("its own"), BayplanError("no"), asyncio.CancelledError()):
        with pytest.raises(type(fault)), waits.for_request(REQUEST):
            async with waits():
                raise fault


@async_test
async def test_a_wait_that_is_over_cannot_be_cut_any_more() -> None:
    there = True
    waits = CancellableWaits(lambda _: there)
    with waits.for_request(REQUEST):
        async with waits():
            pass
        there = False
        waits.cancel_if_outdated(KEY)
        await asyncio.sleep(0)
        with pytest.raises(BindingCancelled, match="default/web"):
            waits.require_current(REQUEST)


@async_test
async def test_a_wait_that_ends_in_time_is_nothing_to_tell() -> None:
    waits, told = CancellableWaits(lambda _: True, notice_s=0.0), list[BindRequest]()
    waits.on_long_wait = told.append
    with waits.for_request(REQUEST):
        async with waits():
            pass
        await asyncio.sleep(0.01)
        assert told == []
        async with waits():
            await asyncio.sleep(0.01)
    assert told == [REQUEST]
