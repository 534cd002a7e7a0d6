"""GPU sharing in the binder: reservations, ConfigMaps of containers, and release of devices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder import controller
from bayplan.binder.gpu.reservations import DEVICE_INDEX_ANNOTATION, reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.binder.plugins.hami_core import HamiCoreBinderPlugin
from bayplan.client import EVERYTHING, GroupVersionResource, Selection
from bayplan.client.informer.pager import ListResult
from bayplan.errors import Conflict, Forbidden, Invalid
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from support.harness.reconciler import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    REQUESTS,
    RESERVATIONS,
    FailingPlugin,
    ReconcilerHarness,
    pod_tree,
    run_with_reconciler,
)

GROUP = "g-1"
NAME = reservation_name("n1", GROUP)
MARK = {"bayplan.dev/binder": "bayplan"}


async def shared(harness: ReconcilerHarness, name: str = "web", groups: tuple[str, ...] = (GROUP,)) -> None:
    pod = await harness.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})
    given = {"count": len(groups), "portion": "0.50"}
    kind: dict[str, Any] = {"receivedResourceType": "Fraction", "receivedGPU": given, "selectedGPUGroups": list(groups)}
    await harness.request(pod, name=name, **kind)


async def attempt(harness: ReconcilerHarness, name: str = "web", *devices: tuple[str, str]) -> float | None:
    """Make one attempt, while reservation pods report their devices."""
    await harness.deliver_event(BindRequest, name)
    syncing = asyncio.ensure_future(harness.reconciler.reconcile(("default", name)))
    for group, device in devices:
        reserving_pod = reservation_name("n1", group)
        while not syncing.done() and await harness.find(PODS, reserving_pod, RESERVATIONS) is None:
            await asyncio.sleep(0.01)
        if not syncing.done():
            await harness.patch(
                PODS,
                reserving_pod,
                {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: device}}},
                namespace=RESERVATIONS,
            )
    return await syncing


def test_a_device_is_reserved_once_and_its_users_get_its_id(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        reservation = await harness.get(PODS, NAME, RESERVATIONS)
        assert reservation["spec"]["nodeName"] == "n1"
        assert reservation["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        pod = await harness.get(PODS, "web")
        assert pod["metadata"]["labels"]["runai-gpu-group"] == GROUP
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Fraction"
        by_key, as_a_whole = (
            await harness.get(CONFIG_MAPS, "web-gpu-0"),
            await harness.get(CONFIG_MAPS, "web-gpu-0-evar"),
        )
        assert by_key["data"] == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-7",
            "GPU_PORTION": "0.50",
            "RUNAI_NUM_OF_GPUS": "0.50",  # the older name of the variable
        }
        assert as_a_whole["data"] == {"NVIDIA_VISIBLE_DEVICES": "GPU-7"}
        assert [each["metadata"]["ownerReferences"][0]["name"] for each in (by_key, as_a_whole)] == ["web", "web"]
        assert harness.steps.reached == ["taken", "reserved", "labelled", "prepared", "bound", "finished"]
        await shared(harness, "second")
        assert await attempt(harness, "second") is None  # the reservation has reported its device already
        assert (await harness.get(PODS, NAME, RESERVATIONS))["metadata"]["uid"] == reservation["metadata"]["uid"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


async def config_map(harness: ReconcilerHarness, name: str, *owners: dict[str, str]) -> dict[str, Any]:
    """Create a ConfigMap before the attempt."""
    meta = {"name": name, "ownerReferences": list(owners)}
    return await harness.make(
        CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}}
    )


@pytest.mark.parametrize("name", ["web-gpu-0", "web-gpu-0-evar"])
@pytest.mark.parametrize("owned", [False, True], ids=["without owner", "of another pod"])
def test_a_foreign_config_map_is_neither_written_nor_deleted(tmp_path: Path, name: str, owned: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        uid = (await harness.pod("other"))["metadata"]["uid"]
        other = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": uid}
        before = await config_map(harness, name, *([other] if owned else []))
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is not None  # it may be deleted before the retry
        assert f"the ConfigMap default/{name} is not the pod's own" in (await harness.status())["reason"]
        assert await harness.get(CONFIG_MAPS, name) == before
        left = [each for each in ("web-gpu-0", "web-gpu-0-evar") if await harness.find(CONFIG_MAPS, each)]
        assert left == [name], "the pod's own ConfigMap is deleted"
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_config_map_of_an_earlier_attempt_is_updated(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        uid = (await harness.get(PODS, "web"))["metadata"]["uid"]
        await config_map(harness, "web-gpu-0", {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid})
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        data = (await harness.get(CONFIG_MAPS, "web-gpu-0"))["data"]
        assert (data["a"], data["NVIDIA_VISIBLE_DEVICES"]) == ("b", "GPU-7")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_config_map_of_an_earlier_pod_of_the_name_is_replaced(tmp_path: Path) -> None:
    """The garbage collector has not deleted it yet."""

    async def test(harness: ReconcilerHarness) -> None:
        earlier = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "11111111-1111-4111-8111-111111111111"}
        before = await config_map(harness, "web-gpu-0", earlier)
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        assert await harness.node_of() == "n1"
        found = await harness.get(CONFIG_MAPS, "web-gpu-0")
        assert found["metadata"]["uid"] != before["metadata"]["uid"]
        assert "a" not in found["data"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_hamicore_adds_a_limit_and_devices_may_be_named_for_cdi(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.patch(NODES, "n1", {"metadata": {"labels": {"nvidia.com/gpu.memory": "16001"}}})
        await harness.deliver_event(Node, "n1")
        await shared(harness)
        await attempt(harness, "web", (GROUP, "GPU-7"))
        data = (await harness.get(CONFIG_MAPS, "web-gpu-0"))["data"]
        assert data["CUDA_DEVICE_MEMORY_LIMIT"] == "8000m"
        assert data["NVIDIA_VISIBLE_DEVICES"] == "k8s.device-plugin.nvidia.com/gpu=GPU-7"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(cdi=True), HamiCoreBinderPlugin())


def test_a_failure_after_hamicore_leaves_no_limit(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.patch(NODES, "n1", {"metadata": {"labels": {"nvidia.com/gpu.memory": "16001"}}})
        await harness.deliver_event(Node, "n1")
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is not None
        assert 'plugin "failing"' in (await harness.status())["reason"]
        assert await harness.find(CONFIG_MAPS, "web-gpu-0") is None

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), HamiCoreBinderPlugin(), FailingPlugin())


def test_hamicore_rejects_a_node_without_the_gpu_memory_label(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        assert 'the label nvidia.com/gpu.memory of node n1 is ""' in (await harness.status())["reason"]
        assert await harness.find(CONFIG_MAPS, "web-gpu-0") is None
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), HamiCoreBinderPlugin())


def test_several_devices_have_a_label_each(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness, groups=("g-1", "g-2"))
        assert await attempt(harness, "web", ("g-1", "GPU-7"), ("g-2", "GPU-8")) is None
        labels = (await harness.get(PODS, "web"))["metadata"]["labels"]
        assert labels == {"runai-gpu-group/g-1": "g-1", "runai-gpu-group/g-2": "g-2", **MARK}
        assert (await harness.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-7,GPU-8"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_failure_removes_labels_and_config_maps_and_keeps_the_device_for_the_retry(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is not None
        assert (await harness.get(PODS, "web"))["metadata"].get("labels", {}) == {}
        assert await harness.find(CONFIG_MAPS, "web-gpu-0") is None
        assert await harness.find(PODS, NAME, RESERVATIONS) is not None

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), FailingPlugin())


@pytest.mark.parametrize("is_crash", [True, False])
def test_nothing_is_left_for_a_pod_that_is_bound_elsewhere_while_its_device_is_reserved(
    tmp_path: Path, *, is_crash: bool
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        uid = (await harness.get(PODS, "web"))["metadata"]["uid"]
        if is_crash:
            await crash_after_pre_bind(harness)
            await harness.client.bind("default", "web", "n2", uid=uid)
            assert await attempt(harness) is None
        else:
            stealing.bind = lambda: harness.client.bind("default", "web", "n2", uid=uid)
            assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        assert (await harness.status())["reason"] == 'the pod is bound elsewhere: to node "n2"'
        await assert_nothing_is_left(harness)

    class Stealing:
        name = "stealing"
        bind: Any

        async def pre_bind(self, *_: Any) -> None:
            if not is_crash:
                await self.bind()

    stealing = Stealing()
    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), stealing)


def test_nothing_is_left_for_a_node_that_is_deleted_after_a_crash(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        await crash_after_pre_bind(harness)
        harness.view.handle_event(harness.view.node("n1"), None)
        while await attempt(harness) is not None:
            await harness.deliver_event(BindRequest, "web")
        assert (await harness.status())["reason"] == 'node "n1" is not there'
        await assert_nothing_is_left(harness)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


async def crash_after_pre_bind(harness: ReconcilerHarness) -> None:
    """Let a binder die after PreBind."""

    def dies() -> None:
        raise asyncio.CancelledError

    harness.steps.at["prepared"] = dies
    with pytest.raises(asyncio.CancelledError):
        await attempt(harness, "web", (GROUP, "GPU-7"))
    harness.steps.at.clear()
    assert await harness.find(CONFIG_MAPS, "web-gpu-0") is not None


async def assert_nothing_is_left(harness: ReconcilerHarness) -> None:
    assert "runai-gpu-group" not in (await harness.get(PODS, "web"))["metadata"].get("labels", {})
    assert await harness.find(CONFIG_MAPS, "web-gpu-0") is None
    assert await harness.find(CONFIG_MAPS, "web-gpu-0-evar") is None
    await harness.reservations.sync_all()  # as in the periodic sync: the request kept the device until it was given up
    assert await is_deleted(harness, NAME, RESERVATIONS)
    assert not await is_deleted(harness, "web")


def test_a_reservation_without_users_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        await attempt(harness, "web", (GROUP, "GPU-7"))
        await harness.reservations.sync_all()
        assert await harness.find(PODS, NAME, RESERVATIONS) is not None
        await harness.patch(PODS, "web", {"status": {"phase": "Succeeded"}}, sub="status")
        await harness.reservations.sync_all()
        found = await harness.find(PODS, NAME, RESERVATIONS)
        assert found is None or "deletionTimestamp" in found["metadata"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_reservation_with_users_only_on_other_nodes_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, "here", GROUP, "GPU-7")
        await harness.pod("there", labels={"runai-gpu-group": GROUP, **MARK}, spec={"nodeName": "n2"})
        await harness.reservations.sync_group(GROUP)
        assert await is_deleted(harness, "here", RESERVATIONS)
        await reservation(harness, "awaited", GROUP, "GPU-8")
        await harness.pod("waiting", labels={"runai-gpu-group": GROUP, **MARK})
        await harness.reservations.sync_group(GROUP)
        assert not await is_deleted(harness, "awaited", RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_reservation_of_a_live_request_is_not_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        await attempt(harness, "web", (GROUP, "GPU-7"))
        await harness.patch(REQUESTS, "web", {"status": {"phase": ""}}, sub="status")
        harness.view.requests.clear()
        await harness.deliver_event(BindRequest, "web")
        await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await harness.reservations.sync_group(GROUP)
        found = await harness.get(PODS, NAME, RESERVATIONS)
        assert "deletionTimestamp" not in found["metadata"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_running_pod_on_a_device_without_a_reservation_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        await attempt(harness, "web", (GROUP, "GPU-7"))
        await harness.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")
        await harness.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
        await harness.reservations.sync_group(GROUP)
        found = await harness.find(PODS, "web")
        assert found is None or "deletionTimestamp" in found["metadata"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


async def running_user(harness: ReconcilerHarness, name: str = "web", group: str = GROUP) -> None:
    await shared(harness, name, (group,))
    await attempt(harness, name, (group, "GPU-7"))
    await harness.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status")


async def is_deleted(harness: ReconcilerHarness, name: str, namespace: str = "default") -> bool:
    """Whether the object is terminating or deleted."""
    found = await harness.find(PODS, name, namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


def test_a_user_in_its_grace_period_keeps_the_device_reserved(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await running_user(harness)
        await harness.client.delete(PODS, name="web", namespace="default", grace_s=600)
        await harness.reservations.sync_all()
        assert not await is_deleted(harness, NAME, RESERVATIONS)
        await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await harness.reservations.sync_all()
        assert await is_deleted(harness, NAME, RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_users_of_a_terminating_reservation_are_deleted_only_after_it(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await running_user(harness)
        await harness.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=600)
        await harness.reservations.sync_all()
        assert not await is_deleted(harness, "web")
        await harness.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
        await harness.reservations.sync_all()
        assert await is_deleted(harness, "web")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_terminating_reservation_gets_no_new_user(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await running_user(harness)
        await harness.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=600)
        await shared(harness, "second")
        assert await attempt(harness, "second") is not None
        assert "of an earlier pod is still terminating" in (await harness.status("second"))["reason"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_reservation_that_has_ended_reserves_nothing(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await running_user(harness)
        await harness.patch(PODS, NAME, {"status": {"phase": "Failed"}}, sub="status", namespace=RESERVATIONS)
        await harness.reservations.sync_all()
        assert await is_deleted(harness, "web")
        await shared(harness, "second")
        assert await attempt(harness, "second") is not None
        assert "has ended; it is created again" in (await harness.status("second"))["reason"]
        assert await attempt(harness, "second", (GROUP, "GPU-8")) is None
        data = (await harness.get(CONFIG_MAPS, "second-gpu-0"))["data"]
        assert data["NVIDIA_VISIBLE_DEVICES"] == "GPU-8"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_device_is_free_when_its_last_user_is_deleted_after_the_request(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await running_user(harness)
        await running_user(harness, "second", "g-2")
        async with harness.run_binder():
            for name in ("web", "second"):
                await harness.client.delete(REQUESTS, name=name, namespace="default")
            while harness.view.requests:
                await asyncio.sleep(0.02)
            await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)  # one is deleted
            await harness.patch(PODS, "second", {"status": {"phase": "Succeeded"}}, sub="status")  # and one completes
            for group in (GROUP, "g-2"):
                while not await is_deleted(harness, reservation_name("n1", group), RESERVATIONS):
                    await asyncio.sleep(0.02)
        assert await is_deleted(harness, NAME, RESERVATIONS), "the first pod is not created again for the second"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_users_are_deleted_as_soon_as_their_reservation_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await running_user(harness)
        async with harness.run_binder():
            await harness.client.delete(REQUESTS, name="web", namespace="default")
            while harness.view.requests:
                await asyncio.sleep(0.02)
            await harness.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
            while not await is_deleted(harness, "web"):
                await asyncio.sleep(0.02)
        assert await is_deleted(harness, NAME, RESERVATIONS), "the device is not reserved again"

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_devices_of_a_user_of_several_are_released_by_the_periodic_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "SYNC_EVERY_S", 0.1)

    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness, groups=("g-1", "g-2"))
        await attempt(harness, "web", ("g-1", "GPU-7"), ("g-2", "GPU-8"))
        async with harness.run_binder():
            await harness.client.delete(REQUESTS, name="web", namespace="default")
            while harness.view.requests:
                await asyncio.sleep(0.02)
            await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
            for group in ("g-1", "g-2"):
                while not await is_deleted(harness, reservation_name("n1", group), RESERVATIONS):
                    await asyncio.sleep(0.02)
        assert await is_deleted(harness, reservation_name("n1", "g-1"), RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_without_reservations_there_is_no_periodic_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "SYNC_EVERY_S", 0.00123)
    looks: list[str] = []
    minutes: list[float] = []

    async def work(harness: ReconcilerHarness) -> None:
        sleep = harness.client.clock.sleep

        async def look() -> None:
            looks.append("look")

        async def counted(duration_s: float) -> None:
            minutes.extend([duration_s] if duration_s == controller.SYNC_EVERY_S else [])
            await sleep(duration_s)

        monkeypatch.setattr(harness.reservations, "sync_all", look)
        monkeypatch.setattr(harness.client.clock, "sleep", counted)
        async with harness.run_binder():
            await harness.request(await harness.pod())
            await harness.until_phase("Succeeded")
            before = len(minutes)
            while len(minutes) < before + 3:
                await asyncio.sleep(0)

    run_with_reconciler(tmp_path, work, GpuSharingBinderPlugin())
    assert looks == ["look"]  # the sync at the start


async def reservation(
    harness: ReconcilerHarness,
    name: str,
    group: str,
    device: str,
    *,
    mark: dict[str, str] = MARK,
    namespace: str = RESERVATIONS,
) -> None:
    """Create a reservation; without the mark it belongs to another binder."""
    labels, annotations = {"runai-gpu-group": group, **mark}, {DEVICE_INDEX_ANNOTATION: device} if device else {}
    tree = pod_tree(name, labels=labels, annotations=annotations, spec={"nodeName": "n1"})
    await harness.make(PODS, tree, namespace)


async def create_foreign_user(harness: ReconcilerHarness, name: str, group: str = GROUP) -> None:
    """Create a running pod that another binder has put onto a shared device."""
    await harness.pod(name, labels={"runai-gpu-group": group}, spec={"nodeName": "n1"})
    await harness.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status")


def test_a_reservation_of_another_binder_is_not_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, "foreign", "g-0", "GPU-0", mark={})
        await harness.reservations.sync_all()
        await running_user(harness)  # its attempt syncs the node first
        assert not await is_deleted(harness, "foreign", RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_binder_that_handles_all_requests_deletes_every_unused_reservation(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, "foreign", "g-0", "GPU-0", mark={})
        await create_foreign_user(harness, "alone", "g-2")
        await harness.reservations.sync_all()
        assert await is_deleted(harness, "foreign", RESERVATIONS)
        assert await is_deleted(harness, "alone")

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), takes_all=True)


def test_a_foreign_request_keeps_an_own_reservation(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, NAME, GROUP, "GPU-7")
        pod = await harness.pod("foreign")
        await harness.request(pod, name="foreign", selectedGPUGroups=[GROUP])  # which this binder does not watch
        await harness.reservations.sync_all()
        assert not await is_deleted(harness, NAME, RESERVATIONS)
        await harness.patch(REQUESTS, "foreign", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
        await harness.reservations.sync_all()
        assert await is_deleted(harness, NAME, RESERVATIONS)

    run_with_reconciler(tmp_path, test)


def test_a_pod_that_another_binder_has_bound_is_never_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.client.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
        await reservation(harness, "foreign", GROUP, "GPU-7", mark={}, namespace="elsewhere")
        await harness.patch(PODS, "foreign", {"status": {"phase": "Running"}}, sub="status", namespace="elsewhere")
        await create_foreign_user(harness, "web")
        await create_foreign_user(harness, "alone", "g-2")
        await harness.reservations.sync_all()
        gone = [name for name in ("web", "alone") if await is_deleted(harness, name)]
        assert (gone, await is_deleted(harness, "foreign", "elsewhere")) == ([], False)

    run_with_reconciler(tmp_path, test)


def test_users_of_a_foreign_reservation_are_not_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, NAME, GROUP, "GPU-7", mark={})
        await shared(harness)
        assert await attempt(harness) is None
        assert (await harness.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
        await harness.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")
        await harness.patch(PODS, NAME, {"status": {"phase": "Failed"}}, sub="status", namespace=RESERVATIONS)
        await harness.reservations.sync_all()
        assert not await is_deleted(harness, "web")
        await shared(harness, "second")
        assert await attempt(harness, "second") is not None
        assert "has ended; its creator has to delete it" in (await harness.status("second"))["reason"]
        assert not await is_deleted(harness, NAME, RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_an_invalid_group_name_does_not_block_the_sync_of_other_groups(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, "orphan", "g-0", "GPU-0")
        names = ("a b!", "", "g" * 64)
        await shared(harness, groups=names)
        await harness.deliver_event(BindRequest, "web")
        await harness.reservations.sync_all()
        assert await is_deleted(harness, "orphan", RESERVATIONS)
        for name in names:  # as when the request is deleted: a failing key would be retried forever
            await harness.reservations.sync_group(name)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_group_that_the_server_refuses_does_not_block_the_sync_of_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        listed = harness.client.list

        async def refusing(
            resource: GroupVersionResource, selection: Selection = EVERYTHING, **more: Any
        ) -> ListResult:
            if selection.label_selector == "runai-gpu-group=g-0":
                raise Forbidden("not this one")
            return await listed(resource, selection, **more)

        monkeypatch.setattr(harness.client, "list", refusing)
        await reservation(harness, "refused", "g-0", "GPU-0")
        await reservation(harness, "orphan", "g-1", "GPU-1")
        await harness.reservations.sync_all()
        await reservation(harness, "another", "g-2", "GPU-2")
        await harness.reservations.sync_node("n1")
        assert [await is_deleted(harness, name, RESERVATIONS) for name in ("refused", "orphan", "another")] == [
            False,
            True,
            True,
        ]

    run_with_reconciler(tmp_path, test)


def test_a_silent_foreign_reservation_fails_the_attempt_and_stays(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, NAME, GROUP, "", mark={})
        await shared(harness)
        assert await attempt(harness) is not None
        assert "has not reported its device" in (await harness.status())["reason"]
        assert not await is_deleted(harness, NAME, RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=0.6)


def test_a_node_is_synced_before_one_of_its_devices_is_reserved(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, "orphan", "g-0", "GPU-0")
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        assert await is_deleted(harness, "orphan", RESERVATIONS)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_reservation_that_does_not_report_its_device_in_time_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        assert await attempt(harness) is not None
        assert "has not reported its device within 1 s" in (await harness.status())["reason"]
        assert await is_deleted(harness, NAME, RESERVATIONS)
        assert "reserved" not in harness.steps.reached

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), patience_s=0.6)


def test_another_pod_of_the_name_is_not_labelled(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, NAME, GROUP, "GPU-7")
        await harness.pod()
        pod = await harness.client.get(Pod, "default", "web")
        node = harness.view.node("n1")
        assert node is not None
        await harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await harness.pod()
        with pytest.raises((Conflict, Invalid)):
            await harness.reservations.reserve(pod, node, GROUP, several=False)
        assert "labels" not in (await harness.get(PODS, "web"))["metadata"]

    run_with_reconciler(tmp_path, test)


def test_a_reservation_tolerates_what_its_first_user_does(tmp_path: Path) -> None:
    taint = {"key": "example.com/gpus", "operator": "Exists", "effect": "NoExecute"}

    async def test(harness: ReconcilerHarness) -> None:
        annotations = {"runai/shared-gpu-configmap": "web-gpu"}
        pod = await harness.pod(annotations=annotations, spec={"tolerations": [taint]})
        given = {"count": 1, "portion": "0.50"}
        await harness.request(pod, receivedResourceType="Fraction", receivedGPU=given, selectedGPUGroups=[GROUP])
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is None
        assert taint in (await harness.get(PODS, NAME, RESERVATIONS))["spec"]["tolerations"]

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())


def test_a_device_that_only_a_request_keeps_is_free_when_the_request_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await shared(harness)
        assert await attempt(harness, "web", (GROUP, "GPU-7")) is not None
        async with harness.run_binder(workers=0):  # without workers there is no attempt and no rollback
            assert not await is_deleted(harness, NAME, RESERVATIONS)
            await harness.client.delete(REQUESTS, name="web", namespace="default")
            while not await is_deleted(harness, NAME, RESERVATIONS):
                await asyncio.sleep(0.02)

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin(), FailingPlugin())


def test_nothing_is_reserved_while_the_cluster_is_scaled_for_fractional_pods(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:

        await harness.client.create(NAMESPACES, {"metadata": {"name": "kai-scale-adjust"}})
        await harness.make(PODS, pod_tree("scaling"), "kai-scale-adjust")
        await shared(harness)
        assert await attempt(harness) is not None
        assert "the cluster is being scaled" in (await harness.status())["reason"]
        assert await harness.find(PODS, NAME, RESERVATIONS) is None

    run_with_reconciler(tmp_path, test, GpuSharingBinderPlugin())
