"""The rules by which devices are reserved and given back, each by itself: who counts, who waits, who is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.gpu.reservations import APP_LABEL, DeviceNotReserved, reservation_name
from bayplan.client import Informer
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL, BindRequest
from bayplan.objects.kai.gpu_sharing import DEVICE_INDEX_ANNOTATION, GROUP_LABEL
from support.harness.reconciler import (
    NAMESPACE,
    NAMESPACES,
    PODS,
    RESERVATIONS,
    ReconcilerHarness,
    Tree,
    pod_tree,
    run_with_reconciler,
)

GROUP, ANOTHER = "g-1", "g-2"
NAME = reservation_name("n1", GROUP)
MARK = {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}
ONE = {GROUP_LABEL: GROUP}
SCALING = "kai-scale-adjust"


async def reservation(rig: ReconcilerHarness, node: str = "n1", group: str = GROUP, device: str = "GPU-7") -> str:
    """One of ours, which says what it holds; by its name."""
    name, labels = reservation_name(node, group), {GROUP_LABEL: group, APP_LABEL: RESERVATIONS, **MARK}
    tree = pod_tree(name, labels=labels, annotations={DEVICE_INDEX_ANNOTATION: device}, spec={"nodeName": node})
    await rig.make(PODS, tree, RESERVATIONS)
    return name


async def user(
    rig: ReconcilerHarness, name: str = "web", *, labels: dict[str, str] = ONE, phase: str = "Running"
) -> None:
    """A pod that we have put onto a device of n1."""
    await rig.pod(name, labels={**labels, **MARK}, spec={"nodeName": "n1"})
    await rig.patch(PODS, name, {"status": {"phase": phase}}, sub="status")


async def waiting(rig: ReconcilerHarness, name: str = "web", **meta: Any) -> Pod:
    await rig.pod(name, **meta)
    return await rig.client.get(Pod, NAMESPACE, name)


async def reserving(rig: ReconcilerHarness, pod: Pod) -> str:
    """The device of n1 that stands behind the group, once it is reserved for this pod."""
    node = rig.view.node("n1")
    assert isinstance(node, Node)
    return await rig.reservations.reserve(pod, node, GROUP, several=False)


async def reserved(rig: ReconcilerHarness, pod: Pod, device: str = "GPU-1") -> str:
    """The same, while a reservation that is made on n1 says that it holds this one."""
    found = asyncio.ensure_future(reserving(rig, pod))
    await until_there(rig, found)
    if not found.done():
        await says(rig, device)
    return await found


async def until_there(rig: ReconcilerHarness, found: asyncio.Future[str]) -> None:
    """The reservation on n1, unless all is over without it."""
    while not found.done() and await rig.find(PODS, NAME, RESERVATIONS) is None:
        await asyncio.sleep(0.01)


async def says(rig: ReconcilerHarness, device: str) -> None:
    await rig.patch(
        PODS, NAME, {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: device}}}, namespace=RESERVATIONS
    )


async def is_going(rig: ReconcilerHarness, name: str, namespace: str = RESERVATIONS) -> bool:
    """Whether somebody has deleted it; true also for what is gone."""
    found = await rig.find(PODS, name, namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


async def labels_of(rig: ReconcilerHarness, name: str = "web") -> dict[str, str]:
    found: Tree = await rig.get(PODS, name)
    return dict(found["metadata"].get("labels", {}))


# who counts -----------------------------------------------------------------------------------------------------


def test_a_user_of_several_devices_keeps_each_of_them_reserved(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        held = [await reservation(rig, group=group) for group in (GROUP, ANOTHER)]
        await user(rig, labels={f"{GROUP_LABEL}/{group}": group for group in (GROUP, ANOTHER)})
        await rig.reservations.sync_all()
        assert [await is_going(rig, name) for name in held] == [False, False]

    run_with_reconciler(tmp_path, test)


def test_a_user_of_several_devices_goes_when_one_of_them_is_reserved_by_nobody(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await reservation(rig, group=ANOTHER)
        await user(rig, labels={f"{GROUP_LABEL}/{group}": group for group in (GROUP, ANOTHER)})
        await rig.reservations.sync_group(ANOTHER)
        assert not await is_going(rig, "web", NAMESPACE)
        await rig.reservations.sync_group(GROUP)
        assert await is_going(rig, "web", NAMESPACE)

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("where", ["", "n1"], ids=["everywhere", "node"])
def test_a_user_of_several_devices_is_found_though_nothing_else_names_its_groups(tmp_path: Path, where: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await user(rig, labels={f"{GROUP_LABEL}/{group}": group for group in (GROUP, ANOTHER)})
        await (rig.reservations.sync_node(where) if where else rig.reservations.sync_all())
        assert await is_going(rig, "web", NAMESPACE)

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_of_those_whose_device_nobody_reserves_only_who_runs_goes(tmp_path: Path, phase: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await user(rig, phase=phase)
        await rig.reservations.sync_group(GROUP)
        assert await is_going(rig, "web", NAMESPACE) is (phase == "Running")

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize(("node", "is_kept"), [("n1", True), ("n2", False)])
def test_a_request_keeps_the_reservation_of_its_own_node_alone(tmp_path: Path, node: str, is_kept: bool) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await reservation(rig)
        await rig.request(await rig.pod(), node, selectedGPUGroups=[GROUP])
        await rig.deliver_event(BindRequest, "web")
        await rig.reservations.sync_group(GROUP)
        assert await is_going(rig, NAME) is not is_kept

    run_with_reconciler(tmp_path, test)


# reserving ------------------------------------------------------------------------------------------------------


def test_a_device_of_the_same_group_on_another_node_is_not_the_pods(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await reservation(rig, "n2", device="GPU-2")
        assert await reserved(rig, await waiting(rig)) == "GPU-1"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("fate", ["gone", "made-anew", "terminating"])
def test_nothing_is_reserved_for_a_pod_that_is_gone(tmp_path: Path, fate: str) -> None:
    """The binder was stopped in the middle of an attempt; meanwhile the scheduler has given the device away."""

    async def test(rig: ReconcilerHarness) -> None:
        pod = await waiting(rig, finalizers=["example.com/held"] if fate == "terminating" else [])
        await rig.client.delete(PODS, name="web", namespace=NAMESPACE)
        if fate == "made-anew":
            await rig.pod("web")
        with pytest.raises(DeviceNotReserved, match="pod default/web is gone"):
            await reserving(rig, pod)
        assert await rig.find(PODS, NAME, RESERVATIONS) is None

    run_with_reconciler(tmp_path, test)


def test_a_reservation_asks_not_to_be_disrupted(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await reserved(rig, await waiting(rig))
        annotations = (await rig.get(PODS, NAME, RESERVATIONS))["metadata"]["annotations"]
        assert annotations == {"karpenter.sh/do-not-disrupt": "true", DEVICE_INDEX_ANNOTATION: "GPU-1"}

    run_with_reconciler(tmp_path, test)


def test_a_pod_for_which_the_cluster_is_scaled_counts_until_it_is_deleted(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.client.create(NAMESPACES, {"metadata": {"name": SCALING}})
        await rig.make(PODS, pod_tree("scaling", finalizers=["example.com/kept"]), SCALING)
        pod = await waiting(rig)
        with pytest.raises(DeviceNotReserved, match="the cluster is being scaled"):
            await reserved(rig, pod)
        await rig.client.delete(PODS, name="scaling", namespace=SCALING, grace_s=0)
        assert await rig.find(PODS, "scaling", SCALING) is not None, "it is going, and not gone"
        assert await reserved(rig, pod) == "GPU-1"

    run_with_reconciler(tmp_path, test)


def test_a_reservation_that_goes_before_it_says_its_device_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        made: asyncio.Future[Informer] = asyncio.get_running_loop().create_future()
        informer = rig.client.informer

        def noted(*args: Any, **more: Any) -> Informer:
            made.set_result(found := informer(*args, **more))
            return found

        monkeypatch.setattr(rig.client, "informer", noted)
        found = asyncio.ensure_future(reserving(rig, await waiting(rig)))
        await (await made).wait_synced()
        await rig.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
        with pytest.raises(DeviceNotReserved, match=f"{NAME} was deleted before it reported a device"):
            await found
        assert await labels_of(rig) == {}

    run_with_reconciler(tmp_path, test, patience_s=5)


def test_nobody_gives_back_what_is_being_reserved_and_other_groups_do_not_wait(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        orphan = await reservation(rig, group=ANOTHER)
        found = asyncio.ensure_future(reserving(rig, await waiting(rig)))
        await until_there(rig, found)  # nobody uses it yet, and no request names it
        syncing = asyncio.ensure_future(rig.reservations.sync_group(GROUP))
        await rig.reservations.sync_group(ANOTHER)
        assert (await is_going(rig, orphan), found.done()) == (True, False)
        await says(rig, "GPU-1")
        assert await found == "GPU-1"
        await syncing
        assert not await is_going(rig, NAME)
        assert await labels_of(rig) == {**ONE, **MARK}

    run_with_reconciler(tmp_path, test)


# taking labels off ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [GROUP_LABEL, f"{GROUP_LABEL}/{GROUP}"], ids=["one device", "several"])
@pytest.mark.parametrize("value", [GROUP, "another"])
def test_a_label_is_taken_off_only_where_it_says_what_we_wrote(tmp_path: Path, key: str, value: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        pod = await waiting(rig, labels={key: value, HANDLED_BY_LABEL: "another"})
        await rig.reservations.release(pod, [GROUP])
        left = {} if value == GROUP else {key: value}
        assert await labels_of(rig) == {**left, HANDLED_BY_LABEL: "another"}

    run_with_reconciler(tmp_path, test)


def test_the_labels_of_another_pod_of_the_name_stay(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        labels = {**ONE, f"{GROUP_LABEL}/{GROUP}": GROUP, **MARK}
        before = await waiting(rig, labels=labels)
        await rig.client.delete(PODS, name="web", namespace=NAMESPACE, grace_s=0)
        await rig.pod(labels=labels)
        await rig.reservations.release(before, [GROUP])
        assert await labels_of(rig) == labels

    run_with_reconciler(tmp_path, test)
