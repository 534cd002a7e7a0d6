"""Cancellable waits: a waiting attempt releases its worker, and ends when its request changes."""

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


class WaitingPlugin(RecordingPlugin):
    """Waits on n1 until the test sets `go_on`."""

    def __init__(self) -> None:
        super().__init__("patient")
        self.go_on = asyncio.Event()

    async def pre_bind(self, ctx: Any, pod: Any, node: Any, bind_request: BindRequest, state: Any) -> None:
        await super().pre_bind(ctx, pod, node, bind_request, state)
        if node.name == "n1":
            async with ctx.cancellable_wait():
                await self.go_on.wait()


async def create_pod_with_slow_volume(harness: ReconcilerHarness) -> None:
    """Create a pod whose claim needs a provisioned volume, and the request; returns when the attempt waits."""
    late = {
        "metadata": {"name": "late"},
        "provisioner": "example.com/slow",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await harness.make(CLASSES, late)
    await harness.make(VOLUME_CLAIMS, claim("data", "late"))
    await harness.deliver_event(StorageClass, "late")
    await harness.deliver_event(PersistentVolumeClaim, "data")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    pod = await harness.pod(spec={"volumes": volumes})
    await harness.deliver_event(Pod, "web")
    await harness.request(pod)
    while CHOSEN not in (await harness.get(VOLUME_CLAIMS, "data"))["metadata"].get("annotations", {}):
        await asyncio.sleep(0.01)


async def provision(harness: ReconcilerHarness) -> None:
    """Provision and bind the volume, and deliver the events."""
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    host_path = {"hostPath": {"path": "/none"}}
    await harness.make(VOLUMES, {"metadata": {"name": "v"}, "spec": {**spec, **host_path}})
    done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    await harness.patch(VOLUME_CLAIMS, "data", {"metadata": done, "spec": {"volumeName": "v"}})
    await harness.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Bound"}}, sub="status")
    await harness.deliver_event(PersistentVolume, "v")
    await harness.deliver_event(PersistentVolumeClaim, "data")


def test_a_pod_that_waits_for_its_volume_blocks_no_worker(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1):
            await create_pod_with_slow_volume(harness)
            await harness.request(await harness.pod("plain"), name="plain")
            await harness.until_phase("Succeeded", "plain")
            assert await harness.node_of() == ""
            await provision(harness)
            await harness.until_phase("Succeeded")
            assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_pods_that_wait_for_their_device_block_no_worker(tmp_path: Path) -> None:
    """The second pod waits for the lock of the group, which the first has until it knows the device."""
    name = reservation_name("n1", "g")
    kind = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g"]}

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1):
            for each in ("web", "second"):
                await harness.request(await harness.pod(each), name=each, **kind)
            while await harness.find(PODS, name, RESERVATIONS) is None or harness.steps.reached.count("taken") < 2:
                await asyncio.sleep(0.01)
            await harness.request(await harness.pod("plain"), name="plain")
            await harness.until_phase("Succeeded", "plain")
            assert [await harness.node_of(each) for each in ("web", "second")] == ["", ""]
            await harness.patch(
                PODS, name, {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: "GPU-7"}}}, namespace=RESERVATIONS
            )
            for each in ("web", "second"):
                await harness.until_phase("Succeeded", each)

    run_with_reconciler(tmp_path, test)


def test_the_wait_for_a_volume_ends_when_the_request_is_deleted(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1):
            await create_pod_with_slow_volume(harness)
            await harness.client.delete(REQUESTS, name="web", namespace="default")
            while "rolled-back" not in harness.steps.reached:
                await asyncio.sleep(0.01)
        known = harness.view.volumes.claims.get("default/data")
        assert known is not None
        assert known.metadata.annotations == {}  # the assumption for the pod is reverted
        assert (harness.attempts, harness.reasons) == ([], [])

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin(), plugin)
    assert plugin.calls == ["noting rollback None"]


@pytest.mark.parametrize("how", ["replaced", "changed"])
def test_the_wait_of_a_request_ends_when_it_is_replaced_or_changed(tmp_path: Path, how: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1):
            pod = await harness.pod()
            await harness.request(pod)
            while not plugin.calls:
                await asyncio.sleep(0.01)
            if how == "replaced":
                await harness.client.delete(REQUESTS, name="web", namespace="default")
                await harness.request(pod, "n2")
            else:
                await harness.patch(REQUESTS, "web", {"spec": {"selectedNode": "n2"}})
            assert (await harness.until_phase("Succeeded"))["failedAttempts"] == 0
            assert await harness.node_of() == "n2"

    plugin = WaitingPlugin()
    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["patient pre_bind", "patient rollback 1", "patient pre_bind", "patient post_bind"]


def test_events_of_other_requests_end_no_wait(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1):
            await harness.request(await harness.pod())
            while not plugin.calls:
                await asyncio.sleep(0.01)
            await harness.patch(REQUESTS, "web", {"metadata": {"annotations": {"example.com/seen": "yes"}}})
            await harness.request(await harness.pod("other"), "n2", name="other")
            await harness.until_phase("Succeeded", "other")
            assert await harness.node_of() == ""
            plugin.go_on.set()
            await harness.until_phase("Succeeded")

    plugin = WaitingPlugin()
    run_with_reconciler(tmp_path, test, plugin)


def test_a_pod_that_waits_for_long_gets_an_event(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder(workers=1):
            await harness.request(await harness.pod())
            while not harness.events:
                await asyncio.sleep(0.01)
            (event,) = harness.events
            assert (event.reason, event.type, event.regarding.name) == ("BindingWaits", "Normal", "web")
            assert event.note == (
                "Pod default/web is on its way to node n1: the binder waits for a volume, a device or a plugin"
            )
            plugin.go_on.set()
            await harness.until_phase("Succeeded")
        assert harness.reasons == ["BindingWaits", "Bound"]

    plugin = WaitingPlugin()
    run_with_reconciler(tmp_path, test, plugin, notice_s=0.0)


# CancellableWaits alone


REQUEST = BindRequest(metadata=ObjectMeta(name="web", namespace="default", uid="1"))
KEY = ("default", "web")


@async_test
async def test_a_wait_outside_an_attempt_is_not_cancelled() -> None:
    waits = CancellableWaits(lambda _: False)
    with pytest.raises(BindingCancelled), waits.for_request(REQUEST):
        async with waits():
            raise AssertionError("the request is outdated")
    async with waits():
        waits.cancel_if_outdated(KEY)
        await asyncio.sleep(0)


@async_test
async def test_errors_of_the_awaited_work_pass_unchanged() -> None:
    waits = CancellableWaits(lambda _: True)
    for fault in (TimeoutError("its own"), BayplanError("no"), asyncio.CancelledError()):
        with pytest.raises(type(fault)), waits.for_request(REQUEST):
            async with waits():
                raise fault


@async_test
async def test_a_finished_wait_cannot_be_cancelled() -> None:
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
async def test_a_short_wait_is_not_reported() -> None:
    waits, reported = CancellableWaits(lambda _: True, notice_s=0.0), list[BindRequest]()
    waits.on_long_wait = reported.append
    with waits.for_request(REQUEST):
        async with waits():
            pass
        await asyncio.sleep(0.01)
        assert reported == []
        async with waits():
            await asyncio.sleep(0.01)
    assert reported == [REQUEST]
