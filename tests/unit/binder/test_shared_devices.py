"""Pods that share a device: who holds it, what their containers are told, and when it is free again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder import live
from bayplan.binder.gpu_reservations import DEVICE, reservation_name
from bayplan.binder.plugins.gpu_sharing import GpuSharing
from bayplan.binder.plugins.hami_core import HamiCore
from bayplan.client import EVERYTHING, Resource, Selection
from bayplan.client.lists import Listed
from bayplan.errors import Conflict, Forbidden, Invalid
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.core import Node, Pod
from binder_rig import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    REQUESTS,
    RESERVATIONS,
    BinderRig,
    Failing,
    on_rig,
    pod_tree,
)

GROUP = "g-1"
NAME = reservation_name("n1", GROUP)
MARK = {"bayplan.dev/binder": "bayplan"}


async def shared(rig: BinderRig, name: str = "web", groups: tuple[str, ...] = (GROUP,)) -> None:
    pod = await rig.pod(name, annotations={"runai/shared-gpu-configmap": f"{name}-gpu"})
    given = {"count": len(groups), "portion": "0.50"}
    kind: dict[str, Any] = {"receivedResourceType": "Fraction", "receivedGPU": given, "selectedGPUGroups": list(groups)}
    await rig.request(pod, name=name, **kind)


async def attempt(rig: BinderRig, name: str = "web", *devices: tuple[str, str]) -> float | None:
    """One attempt, while reservation pods say which device they hold."""
    await rig.hear(BindRequest, name)
    syncing = asyncio.ensure_future(rig.reconciler.sync(("default", name)))
    for group, device in devices:
        said = reservation_name("n1", group)
        while not syncing.done() and await rig.find(PODS, said, RESERVATIONS) is None:
            await asyncio.sleep(0.01)
        if not syncing.done():
            await rig.patch(PODS, said, {"metadata": {"annotations": {DEVICE: device}}}, namespace=RESERVATIONS)
    return await syncing


def test_a_device_is_reserved_once_and_its_users_are_told_which_it_is(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        reservation = await rig.get(PODS, NAME, RESERVATIONS)
        assert reservation["spec"]["nodeName"] == "n1"
        assert reservation["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        pod = await rig.get(PODS, "web")
        assert pod["metadata"]["labels"]["runai-gpu-group"] == GROUP
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Fraction"
        by_key, as_a_whole = await rig.get(CONFIG_MAPS, "web-gpu-0"), await rig.get(CONFIG_MAPS, "web-gpu-0-evar")
        assert by_key["data"] == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-7",
            "GPU_PORTION": "0.50",
            "RUNAI_NUM_OF_GPUS": "0.50",  # the older name of the same
        }
        assert as_a_whole["data"] == {"NVIDIA_VISIBLE_DEVICES": "GPU-7"}
        assert [each["metadata"]["ownerReferences"][0]["name"] for each in (by_key, as_a_whole)] == ["web", "web"]
        assert rig.steps.reached == ["taken", "reserved", "labelled", "prepared", "bound", "finished"]
        await shared(rig, "second")
        assert await attempt(rig, "second") is None  # nobody has to say it again
        assert (await rig.get(PODS, NAME, RESERVATIONS))["metadata"]["uid"] == reservation["metadata"]["uid"]

    on_rig(tmp_path, test, GpuSharing())


async def config_map(rig: BinderRig, name: str, *owners: dict[str, str]) -> dict[str, Any]:
    """One that is there before."""
    meta = {"name": name, "ownerReferences": list(owners)}
    return await rig.make(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}})


@pytest.mark.parametrize("name", ["web-gpu-0", "web-gpu-0-evar"])
@pytest.mark.parametrize("owned", [False, True], ids=["nobody's", "another pod's"])
def test_a_config_map_of_somebody_elses_is_neither_written_nor_deleted(tmp_path: Path, name: str, owned: bool) -> None:
    async def test(rig: BinderRig) -> None:
        uid = (await rig.pod("other"))["metadata"]["uid"]
        other = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": uid}
        before = await config_map(rig, name, *([other] if owned else []))
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is not None  # it may be gone when it is tried again
        assert f"the ConfigMap default/{name} is not the pod's own" in (await rig.status())["reason"]
        assert await rig.get(CONFIG_MAPS, name) == before
        left = [each for each in ("web-gpu-0", "web-gpu-0-evar") if await rig.find(CONFIG_MAPS, each)]
        assert left == [name], "what was the pod's own is taken back"
        assert await rig.node_of() == ""

    on_rig(tmp_path, test, GpuSharing())


def test_a_config_map_that_an_earlier_attempt_has_left_is_brought_up_to_date(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        uid = (await rig.get(PODS, "web"))["metadata"]["uid"]
        await config_map(rig, "web-gpu-0", {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid})
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        told = (await rig.get(CONFIG_MAPS, "web-gpu-0"))["data"]
        assert (told["a"], told["NVIDIA_VISIBLE_DEVICES"]) == ("b", "GPU-7")

    on_rig(tmp_path, test, GpuSharing())


def test_a_config_map_of_an_earlier_pod_of_the_name_is_replaced(tmp_path: Path) -> None:
    """The garbage collector has not deleted it yet."""

    async def test(rig: BinderRig) -> None:
        earlier = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "11111111-1111-4111-8111-111111111111"}
        before = await config_map(rig, "web-gpu-0", earlier)
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        assert await rig.node_of() == "n1"
        found = await rig.get(CONFIG_MAPS, "web-gpu-0")
        assert found["metadata"]["uid"] != before["metadata"]["uid"]
        assert "a" not in found["data"]

    on_rig(tmp_path, test, GpuSharing())


def test_hamicore_adds_a_limit_and_devices_may_be_named_for_cdi(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.patch(NODES, "n1", {"metadata": {"labels": {"nvidia.com/gpu.memory": "16001"}}})
        await rig.hear(Node, "n1")
        await shared(rig)
        await attempt(rig, "web", (GROUP, "GPU-7"))
        told = (await rig.get(CONFIG_MAPS, "web-gpu-0"))["data"]
        assert told["CUDA_DEVICE_MEMORY_LIMIT"] == "8000m"
        assert told["NVIDIA_VISIBLE_DEVICES"] == "k8s.device-plugin.nvidia.com/gpu=GPU-7"

    on_rig(tmp_path, test, GpuSharing(cdi=True), HamiCore())


def test_a_failure_after_hamicore_leaves_no_limit(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.patch(NODES, "n1", {"metadata": {"labels": {"nvidia.com/gpu.memory": "16001"}}})
        await rig.hear(Node, "n1")
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is not None
        assert 'plugin "failing"' in (await rig.status())["reason"]
        assert await rig.find(CONFIG_MAPS, "web-gpu-0") is None

    on_rig(tmp_path, test, GpuSharing(), HamiCore(), Failing())


def test_hamicore_refuses_a_node_that_does_not_say_how_much_a_device_has(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        assert 'the label nvidia.com/gpu.memory of node n1 is ""' in (await rig.status())["reason"]
        assert await rig.find(CONFIG_MAPS, "web-gpu-0") is None
        assert await rig.node_of() == ""

    on_rig(tmp_path, test, GpuSharing(), HamiCore())


def test_several_devices_have_a_label_each(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig, groups=("g-1", "g-2"))
        assert await attempt(rig, "web", ("g-1", "GPU-7"), ("g-2", "GPU-8")) is None
        labels = (await rig.get(PODS, "web"))["metadata"]["labels"]
        assert labels == {"runai-gpu-group/g-1": "g-1", "runai-gpu-group/g-2": "g-2", **MARK}
        assert (await rig.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-7,GPU-8"

    on_rig(tmp_path, test, GpuSharing())


def test_a_failure_takes_labels_and_config_maps_back_and_keeps_the_device_while_it_is_tried_again(
    tmp_path: Path,
) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is not None
        assert (await rig.get(PODS, "web"))["metadata"].get("labels", {}) == {}
        assert await rig.find(CONFIG_MAPS, "web-gpu-0") is None
        assert await rig.find(PODS, NAME, RESERVATIONS) is not None

    on_rig(tmp_path, test, GpuSharing(), Failing())


@pytest.mark.parametrize("is_crash", [True, False])
def test_nothing_is_left_for_a_pod_that_is_bound_elsewhere_while_its_device_is_reserved(
    tmp_path: Path, *, is_crash: bool
) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        uid = (await rig.get(PODS, "web"))["metadata"]["uid"]
        if is_crash:
            await left_behind(rig)
            await rig.client.bind("default", "web", "n2", uid=uid)
            assert await attempt(rig) is None
        else:
            stealing.bind = lambda: rig.client.bind("default", "web", "n2", uid=uid)
            assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        assert (await rig.status())["reason"] == 'the pod is bound elsewhere: to node "n2"'
        await nothing_is_left(rig)

    class Stealing:
        name = "stealing"
        bind: Any

        async def pre_bind(self, *_: Any) -> None:
            if not is_crash:
                await self.bind()

    stealing = Stealing()
    on_rig(tmp_path, test, GpuSharing(), stealing)


def test_nothing_is_left_for_a_node_that_goes_after_a_crash(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        await left_behind(rig)
        rig.view.hear(rig.view.node("n1"), None)
        while await attempt(rig) is not None:
            await rig.hear(BindRequest, "web")
        assert (await rig.status())["reason"] == 'node "n1" is not there'
        await nothing_is_left(rig)

    on_rig(tmp_path, test, GpuSharing())


async def left_behind(rig: BinderRig) -> None:
    """What a binder has prepared before it died."""

    def dies() -> None:
        raise asyncio.CancelledError

    rig.steps.at["prepared"] = dies
    with pytest.raises(asyncio.CancelledError):
        await attempt(rig, "web", (GROUP, "GPU-7"))
    rig.steps.at.clear()
    assert await rig.find(CONFIG_MAPS, "web-gpu-0") is not None


async def nothing_is_left(rig: BinderRig) -> None:
    assert "runai-gpu-group" not in (await rig.get(PODS, "web"))["metadata"].get("labels", {})
    assert await rig.find(CONFIG_MAPS, "web-gpu-0") is None
    assert await rig.find(CONFIG_MAPS, "web-gpu-0-evar") is None
    await rig.reservations.sync_all()  # as every minute: a live request has kept the device until it was given up
    assert await is_going(rig, NAME, RESERVATIONS)
    assert not await is_going(rig, "web")


def test_a_reservation_that_nobody_uses_goes(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        await attempt(rig, "web", (GROUP, "GPU-7"))
        await rig.reservations.sync_all()
        assert await rig.find(PODS, NAME, RESERVATIONS) is not None
        await rig.patch(PODS, "web", {"status": {"phase": "Succeeded"}}, sub="status")
        await rig.reservations.sync_all()
        found = await rig.find(PODS, NAME, RESERVATIONS)
        assert found is None or "deletionTimestamp" in found["metadata"]

    on_rig(tmp_path, test, GpuSharing())


def test_a_reservation_goes_whose_group_has_users_on_other_nodes_alone(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, "here", GROUP, "GPU-7")
        await rig.pod("there", labels={"runai-gpu-group": GROUP, **MARK}, spec={"nodeName": "n2"})
        await rig.reservations.sync_group(GROUP)
        assert await is_going(rig, "here", RESERVATIONS)
        await reservation(rig, "awaited", GROUP, "GPU-8")
        await rig.pod("waiting", labels={"runai-gpu-group": GROUP, **MARK})
        await rig.reservations.sync_group(GROUP)
        assert not await is_going(rig, "awaited", RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing())


def test_a_reservation_of_a_live_request_is_nobodys_orphan(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        await attempt(rig, "web", (GROUP, "GPU-7"))
        await rig.patch(REQUESTS, "web", {"status": {"phase": ""}}, sub="status")
        rig.view.requests.clear()
        await rig.hear(BindRequest, "web")
        await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await rig.reservations.sync_group(GROUP)
        found = await rig.get(PODS, NAME, RESERVATIONS)
        assert "deletionTimestamp" not in found["metadata"]

    on_rig(tmp_path, test, GpuSharing())


def test_a_running_pod_on_a_device_that_nobody_reserves_goes(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        await attempt(rig, "web", (GROUP, "GPU-7"))
        await rig.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")
        await rig.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
        await rig.reservations.sync_group(GROUP)
        found = await rig.find(PODS, "web")
        assert found is None or "deletionTimestamp" in found["metadata"]

    on_rig(tmp_path, test, GpuSharing())


async def running_user(rig: BinderRig, name: str = "web", group: str = GROUP) -> None:
    await shared(rig, name, (group,))
    await attempt(rig, name, (group, "GPU-7"))
    await rig.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status")


async def is_going(rig: BinderRig, name: str, namespace: str = "default") -> bool:
    """Whether somebody has deleted it; true also for what is gone."""
    found = await rig.find(PODS, name, namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


def test_a_user_in_its_grace_period_keeps_the_device_reserved(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await running_user(rig)
        await rig.client.delete(PODS, name="web", namespace="default", grace_s=600)
        await rig.reservations.sync_all()
        assert not await is_going(rig, NAME, RESERVATIONS)
        await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await rig.reservations.sync_all()
        assert await is_going(rig, NAME, RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing())


def test_a_reservation_in_its_grace_period_costs_no_user_its_life_until_it_is_gone(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await running_user(rig)
        await rig.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=600)
        await rig.reservations.sync_all()
        assert not await is_going(rig, "web")
        await rig.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
        await rig.reservations.sync_all()
        assert await is_going(rig, "web")

    on_rig(tmp_path, test, GpuSharing())


def test_a_reservation_in_its_grace_period_is_given_to_no_new_user(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await running_user(rig)
        await rig.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=600)
        await shared(rig, "second")
        assert await attempt(rig, "second") is not None
        assert "of an earlier pod is still going" in (await rig.status("second"))["reason"]

    on_rig(tmp_path, test, GpuSharing())


def test_a_reservation_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await running_user(rig)
        await rig.patch(PODS, NAME, {"status": {"phase": "Failed"}}, sub="status", namespace=RESERVATIONS)
        await rig.reservations.sync_all()
        assert await is_going(rig, "web")
        await shared(rig, "second")
        assert await attempt(rig, "second") is not None
        assert "has ended; it is made anew" in (await rig.status("second"))["reason"]
        assert await attempt(rig, "second", (GROUP, "GPU-8")) is None
        told = (await rig.get(CONFIG_MAPS, "second-gpu-0"))["data"]
        assert told["NVIDIA_VISIBLE_DEVICES"] == "GPU-8"

    on_rig(tmp_path, test, GpuSharing())


def test_a_device_is_free_when_its_last_user_goes_after_the_request(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await running_user(rig)
        await running_user(rig, "second", "g-2")
        async with rig.at_work():
            for name in ("web", "second"):
                await rig.client.delete(REQUESTS, name=name, namespace="default")
            while rig.view.requests:
                await asyncio.sleep(0.02)
            await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)  # one is deleted
            await rig.patch(PODS, "second", {"status": {"phase": "Succeeded"}}, sub="status")  # and one completes
            for group in (GROUP, "g-2"):
                while not await is_going(rig, reservation_name("n1", group), RESERVATIONS):
                    await asyncio.sleep(0.02)
        assert await is_going(rig, NAME, RESERVATIONS), "the first is not made anew for the second"

    on_rig(tmp_path, test, GpuSharing())


def test_who_runs_on_a_device_goes_as_soon_as_its_reservation_is_gone(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await running_user(rig)
        async with rig.at_work():
            await rig.client.delete(REQUESTS, name="web", namespace="default")
            while rig.view.requests:
                await asyncio.sleep(0.02)
            await rig.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
            while not await is_going(rig, "web"):
                await asyncio.sleep(0.02)
        assert await is_going(rig, NAME, RESERVATIONS), "nobody has reserved it again"

    on_rig(tmp_path, test, GpuSharing())


def test_devices_of_a_user_of_several_are_found_to_be_free_within_the_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SYNC_EVERY_S", 0.1)

    async def test(rig: BinderRig) -> None:
        await shared(rig, groups=("g-1", "g-2"))
        await attempt(rig, "web", ("g-1", "GPU-7"), ("g-2", "GPU-8"))
        async with rig.at_work():
            await rig.client.delete(REQUESTS, name="web", namespace="default")
            while rig.view.requests:
                await asyncio.sleep(0.02)
            await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
            for group in ("g-1", "g-2"):
                while not await is_going(rig, reservation_name("n1", group), RESERVATIONS):
                    await asyncio.sleep(0.02)
        assert await is_going(rig, reservation_name("n1", "g-1"), RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing())


def test_nobody_looks_after_reservations_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SYNC_EVERY_S", 0.00123)
    looks: list[str] = []
    minutes: list[float] = []

    async def work(rig: BinderRig) -> None:
        sleep = rig.client.clock.sleep

        async def look() -> None:
            looks.append("look")

        async def counted(duration_s: float) -> None:
            minutes.extend([duration_s] if duration_s == live.SYNC_EVERY_S else [])
            await sleep(duration_s)

        monkeypatch.setattr(rig.reservations, "sync_all", look)
        monkeypatch.setattr(rig.client.clock, "sleep", counted)
        async with rig.at_work():
            await rig.request(await rig.pod())
            await rig.until_phase("Succeeded")
            before = len(minutes)
            while len(minutes) < before + 3:
                await asyncio.sleep(0)

    on_rig(tmp_path, work, GpuSharing())
    assert looks == ["look"]  # the one at the start


async def reservation(
    rig: BinderRig, name: str, group: str, device: str, *, mark: dict[str, str] = MARK, namespace: str = RESERVATIONS
) -> None:
    """One that we have made before; without the mark one of another binder's."""
    labels, said = {"runai-gpu-group": group, **mark}, {DEVICE: device} if device else {}
    tree = pod_tree(name, labels=labels, annotations=said, spec={"nodeName": "n1"})
    await rig.make(PODS, tree, namespace)


async def user_of_others(rig: BinderRig, name: str, group: str = GROUP) -> None:
    """A pod that another binder has put onto a shared device, and that runs there."""
    await rig.pod(name, labels={"runai-gpu-group": group}, spec={"nodeName": "n1"})
    await rig.patch(PODS, name, {"status": {"phase": "Running"}}, sub="status")


def test_a_reservation_that_another_binder_has_made_is_its_own(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, "theirs", "g-0", "GPU-0", mark={})
        await rig.reservations.sync_all()
        await running_user(rig)  # which repairs the node before
        assert not await is_going(rig, "theirs", RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing())


def test_a_binder_that_takes_everything_deletes_whatever_nobody_uses(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, "theirs", "g-0", "GPU-0", mark={})
        await user_of_others(rig, "alone", "g-2")
        await rig.reservations.sync_all()
        assert await is_going(rig, "theirs", RESERVATIONS)
        assert await is_going(rig, "alone")

    on_rig(tmp_path, test, GpuSharing(), takes_all=True)


def test_a_request_of_others_keeps_a_reservation_of_ours(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, NAME, GROUP, "GPU-7")
        pod = await rig.pod("theirs")
        await rig.request(pod, name="theirs", selectedGPUGroups=[GROUP])  # of which no watch of ours tells
        await rig.reservations.sync_all()
        assert not await is_going(rig, NAME, RESERVATIONS)
        await rig.patch(REQUESTS, "theirs", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
        await rig.reservations.sync_all()
        assert await is_going(rig, NAME, RESERVATIONS)

    on_rig(tmp_path, test)


def test_a_pod_that_another_binder_has_bound_is_never_deleted(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.client.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
        await reservation(rig, "theirs", GROUP, "GPU-7", mark={}, namespace="elsewhere")
        await rig.patch(PODS, "theirs", {"status": {"phase": "Running"}}, sub="status", namespace="elsewhere")
        await user_of_others(rig, "web")
        await user_of_others(rig, "alone", "g-2")
        await rig.reservations.sync_all()
        gone = [name for name in ("web", "alone") if await is_going(rig, name)]
        assert (gone, await is_going(rig, "theirs", "elsewhere")) == ([], False)

    on_rig(tmp_path, test)


def test_who_shares_a_device_that_another_binder_reserved_is_left_to_that_binder(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, NAME, GROUP, "GPU-7", mark={})
        await shared(rig)
        assert await attempt(rig) is None
        assert (await rig.get(CONFIG_MAPS, "web-gpu-0"))["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
        await rig.patch(PODS, "web", {"status": {"phase": "Running"}}, sub="status")
        await rig.patch(PODS, NAME, {"status": {"phase": "Failed"}}, sub="status", namespace=RESERVATIONS)
        await rig.reservations.sync_all()
        assert not await is_going(rig, "web")
        await shared(rig, "second")
        assert await attempt(rig, "second") is not None
        assert "has ended; whoever made it has to delete it" in (await rig.status("second"))["reason"]
        assert not await is_going(rig, NAME, RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing())


def test_a_name_that_no_group_can_have_keeps_nobody_from_looking_after_the_others(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, "orphan", "g-0", "GPU-0")
        names = ("a b!", "", "g" * 64)
        await shared(rig, groups=names)
        await rig.hear(BindRequest, "web")
        await rig.reservations.sync_all()
        assert await is_going(rig, "orphan", RESERVATIONS)
        for name in names:  # as when the request is deleted: a queue that fails tries again for ever
            await rig.reservations.sync_group(name)

    on_rig(tmp_path, test, GpuSharing())


def test_a_group_that_the_server_refuses_costs_no_other_its_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: BinderRig) -> None:
        listed = rig.client.list

        async def refusing(resource: Resource, selection: Selection = EVERYTHING, **more: Any) -> Listed:
            if selection.label_selector == "runai-gpu-group=g-0":
                raise Forbidden("not this one")
            return await listed(resource, selection, **more)

        monkeypatch.setattr(rig.client, "list", refusing)
        await reservation(rig, "refused", "g-0", "GPU-0")
        await reservation(rig, "orphan", "g-1", "GPU-1")
        await rig.reservations.sync_all()
        await reservation(rig, "another", "g-2", "GPU-2")
        await rig.reservations.sync_node("n1")
        assert [await is_going(rig, name, RESERVATIONS) for name in ("refused", "orphan", "another")] == [
            False,
            True,
            True,
        ]

    on_rig(tmp_path, test)


def test_a_silent_reservation_of_others_fails_the_attempt_and_stays(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, NAME, GROUP, "", mark={})
        await shared(rig)
        assert await attempt(rig) is not None
        assert "which device it holds" in (await rig.status())["reason"]
        assert not await is_going(rig, NAME, RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing(), patience_s=0.6)


def test_a_node_is_repaired_before_a_device_of_it_is_reserved(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, "orphan", "g-0", "GPU-0")
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        assert await is_going(rig, "orphan", RESERVATIONS)

    on_rig(tmp_path, test, GpuSharing())


def test_a_reservation_that_does_not_say_its_device_in_time_is_deleted(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        assert await attempt(rig) is not None
        assert "has not said for 1 s which device it holds" in (await rig.status())["reason"]
        assert await is_going(rig, NAME, RESERVATIONS)
        assert "reserved" not in rig.steps.reached

    on_rig(tmp_path, test, GpuSharing(), patience_s=0.6)


def test_another_pod_of_the_name_is_not_labelled(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await reservation(rig, NAME, GROUP, "GPU-7")
        await rig.pod()
        pod = await rig.client.get(Pod, "default", "web")
        node = rig.view.node("n1")
        assert node is not None
        await rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
        await rig.pod()
        with pytest.raises((Conflict, Invalid)):
            await rig.reservations.reserve(pod, node, GROUP, several=False)
        assert "labels" not in (await rig.get(PODS, "web"))["metadata"]

    on_rig(tmp_path, test)


def test_a_reservation_tolerates_what_its_first_user_does(tmp_path: Path) -> None:
    taint = {"key": "example.com/gpus", "operator": "Exists", "effect": "NoExecute"}

    async def test(rig: BinderRig) -> None:
        said = {"runai/shared-gpu-configmap": "web-gpu"}
        pod = await rig.pod(annotations=said, spec={"tolerations": [taint]})
        given = {"count": 1, "portion": "0.50"}
        await rig.request(pod, receivedResourceType="Fraction", receivedGPU=given, selectedGPUGroups=[GROUP])
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is None
        assert taint in (await rig.get(PODS, NAME, RESERVATIONS))["spec"]["tolerations"]

    on_rig(tmp_path, test, GpuSharing())


def test_a_device_that_only_a_request_keeps_is_free_when_the_request_is_deleted(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await shared(rig)
        assert await attempt(rig, "web", (GROUP, "GPU-7")) is not None
        async with rig.at_work(workers=0):  # nobody tries it, and so nobody takes it back
            assert not await is_going(rig, NAME, RESERVATIONS)
            await rig.client.delete(REQUESTS, name="web", namespace="default")
            while not await is_going(rig, NAME, RESERVATIONS):
                await asyncio.sleep(0.02)

    on_rig(tmp_path, test, GpuSharing(), Failing())


def test_nothing_is_reserved_while_the_cluster_is_scaled_for_such_pods(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:

        await rig.client.create(NAMESPACES, {"metadata": {"name": "kai-scale-adjust"}})
        await rig.make(PODS, pod_tree("scaling"), "kai-scale-adjust")
        await shared(rig)
        assert await attempt(rig) is not None
        assert "the cluster is being scaled" in (await rig.status())["reason"]
        assert await rig.find(PODS, NAME, RESERVATIONS) is None

    on_rig(tmp_path, test, GpuSharing())
