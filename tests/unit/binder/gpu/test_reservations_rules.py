"""Rules of GPU reservations: users that count, reserve, waiting and removing labels."""

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


async def reservation(harness: ReconcilerHarness, node: str = "n1", group: str = GROUP, device: str = "GPU-7") -> str:
    """Create an own reservation that reports its device; returns its name."""
    name, labels = reservation_name(node, group), {GROUP_LABEL: group, APP_LABEL: RESERVATIONS, **MARK}
    tree = pod_tree(name, labels=labels, annotations={DEVICE_INDEX_ANNOTATION: device}, spec={"nodeName": node})
    await harness.make(PODS, tree, RESERVATIONS)
    return name


async def user(
    harness: ReconcilerHarness, name: str = "web", *, labels: dict[str, str] = ONE, phase: str = "Running"
) -> None:
    """Create a pod that this binder has put onto a device of n1."""
    await harness.pod(name, labels={**labels, **MARK}, spec={"nodeName": "n1"})
    await harness.patch(PODS, name, {"status": {"phase": phase}}, sub="status")


async def waiting(harness: ReconcilerHarness, name: str = "web", **meta: Any) -> Pod:
    await harness.pod(name, **meta)
    return await harness.client.get(Pod, NAMESPACE, name)


async def reserve(harness: ReconcilerHarness, pod: Pod) -> str:
    """Reserve the group's device on n1 for this pod."""
    node = harness.view.node("n1")
    assert isinstance(node, Node)
    return await harness.reservations.reserve(pod, node, GROUP, several=False)


async def reserve_with_report(harness: ReconcilerHarness, pod: Pod, device: str = "GPU-1") -> str:
    """The same, while the new reservation on n1 reports this device."""
    found = asyncio.ensure_future(reserve(harness, pod))
    await wait_for_reservation(harness, found)
    if not found.done():
        await report_device(harness, device)
    return await found


async def wait_for_reservation(harness: ReconcilerHarness, found: asyncio.Future[str]) -> None:
    """Wait for the reservation on n1, unless the task ends without it."""
    while not found.done() and await harness.find(PODS, NAME, RESERVATIONS) is None:
        await asyncio.sleep(0.01)


async def report_device(harness: ReconcilerHarness, device: str) -> None:
    await harness.patch(
        PODS, NAME, {"metadata": {"annotations": {DEVICE_INDEX_ANNOTATION: device}}}, namespace=RESERVATIONS
    )


async def is_deleted(harness: ReconcilerHarness, name: str, namespace: str = RESERVATIONS) -> bool:
    """Whether the object is terminating or deleted."""
    found = await harness.find(PODS, name, namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


async def labels_of(harness: ReconcilerHarness, name: str = "web") -> dict[str, str]:
    found: Tree = await harness.get(PODS, name)
    return dict(found["metadata"].get("labels", {}))


# users


def test_a_user_of_several_devices_keeps_each_of_them_reserved(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        held = [await reservation(harness, group=group) for group in (GROUP, ANOTHER)]
        await user(harness, labels={f"{GROUP_LABEL}/{group}": group for group in (GROUP, ANOTHER)})
        await harness.reservations.sync_all()
        assert [await is_deleted(harness, name) for name in held] == [False, False]

    run_with_reconciler(tmp_path, test)


def test_a_user_of_several_devices_is_deleted_when_one_of_them_has_no_reservation(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, group=ANOTHER)
        await user(harness, labels={f"{GROUP_LABEL}/{group}": group for group in (GROUP, ANOTHER)})
        await harness.reservations.sync_group(ANOTHER)
        assert not await is_deleted(harness, "web", NAMESPACE)
        await harness.reservations.sync_group(GROUP)
        assert await is_deleted(harness, "web", NAMESPACE)

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("where", ["", "n1"], ids=["everywhere", "node"])
def test_a_user_of_several_devices_is_found_by_its_label_alone(tmp_path: Path, where: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await user(harness, labels={f"{GROUP_LABEL}/{group}": group for group in (GROUP, ANOTHER)})
        await (harness.reservations.sync_node(where) if where else harness.reservations.sync_all())
        assert await is_deleted(harness, "web", NAMESPACE)

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_only_running_users_without_a_reservation_are_deleted(tmp_path: Path, phase: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await user(harness, phase=phase)
        await harness.reservations.sync_group(GROUP)
        assert await is_deleted(harness, "web", NAMESPACE) is (phase == "Running")

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize(("node", "is_expected"), [("n1", True), ("n2", False)])
def test_a_request_keeps_only_the_reservation_of_its_node(tmp_path: Path, node: str, is_expected: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness)
        await harness.request(await harness.pod(), node, selectedGPUGroups=[GROUP])
        await harness.deliver_event(BindRequest, "web")
        await harness.reservations.sync_group(GROUP)
        assert await is_deleted(harness, NAME) is not is_expected

    run_with_reconciler(tmp_path, test)


# reserve


def test_a_device_of_the_same_group_on_another_node_is_not_used(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reservation(harness, "n2", device="GPU-2")
        assert await reserve_with_report(harness, await waiting(harness)) == "GPU-1"

    run_with_reconciler(tmp_path, test)


@pytest.mark.parametrize("fate", ["gone", "made-anew", "terminating"])
def test_nothing_is_reserved_for_a_deleted_pod(tmp_path: Path, fate: str) -> None:
    """The binder was suspended during an attempt; meanwhile the scheduler has assigned the device again."""

    async def test(harness: ReconcilerHarness) -> None:
        pod = await waiting(harness, finalizers=["example.com/held"] if fate == "terminating" else [])
        await harness.client.delete(PODS, name="web", namespace=NAMESPACE)
        if fate == "made-anew":
            await harness.pod("web")
        with pytest.raises(DeviceNotReserved, match="pod default/web is gone"):
            await reserve(harness, pod)
        assert await harness.find(PODS, NAME, RESERVATIONS) is None

    run_with_reconciler(tmp_path, test)


def test_a_reservation_asks_not_to_be_disrupted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await reserve_with_report(harness, await waiting(harness))
        annotations = (await harness.get(PODS, NAME, RESERVATIONS))["metadata"]["annotations"]
        assert annotations == {"karpenter.sh/do-not-disrupt": "true", DEVICE_INDEX_ANNOTATION: "GPU-1"}

    run_with_reconciler(tmp_path, test)


def test_a_pod_for_which_the_cluster_is_scaled_counts_until_it_is_deleted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.client.create(NAMESPACES, {"metadata": {"name": SCALING}})
        await harness.make(PODS, pod_tree("scaling", finalizers=["example.com/kept"]), SCALING)
        pod = await waiting(harness)
        with pytest.raises(DeviceNotReserved, match="the cluster is being scaled"):
            await reserve_with_report(harness, pod)
        await harness.client.delete(PODS, name="scaling", namespace=SCALING, grace_s=0)
        assert await harness.find(PODS, "scaling", SCALING) is not None, "it is terminating, and not deleted"
        assert await reserve_with_report(harness, pod) == "GPU-1"

    run_with_reconciler(tmp_path, test)


def test_a_reservation_that_is_deleted_before_it_reports_its_device_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        made: asyncio.Future[Informer] = asyncio.get_running_loop().create_future()
        informer = harness.client.informer

        def record_informer(*args: Any, **more: Any) -> Informer:
            made.set_result(found := informer(*args, **more))
            return found

        monkeypatch.setattr(harness.client, "informer", record_informer)
        found = asyncio.ensure_future(reserve(harness, await waiting(harness)))
        await (await made).wait_synced()
        await harness.client.delete(PODS, name=NAME, namespace=RESERVATIONS, grace_s=0)
        with pytest.raises(DeviceNotReserved, match=f"{NAME} was deleted before it reported a device"):
            await found
        assert await labels_of(harness) == {}

    run_with_reconciler(tmp_path, test, patience_s=5)


def test_a_device_that_is_being_reserved_is_not_released_and_other_groups_do_not_wait(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        orphan = await reservation(harness, group=ANOTHER)
        found = asyncio.ensure_future(reserve(harness, await waiting(harness)))
        await wait_for_reservation(harness, found)  # it has no user yet, and no request names it
        syncing = asyncio.ensure_future(harness.reservations.sync_group(GROUP))
        await harness.reservations.sync_group(ANOTHER)
        assert (await is_deleted(harness, orphan), found.done()) == (True, False)
        await report_device(harness, "GPU-1")
        assert await found == "GPU-1"
        await syncing
        assert not await is_deleted(harness, NAME)
        assert await labels_of(harness) == {**ONE, **MARK}

    run_with_reconciler(tmp_path, test)


# removal of labels


@pytest.mark.parametrize("key", [GROUP_LABEL, f"{GROUP_LABEL}/{GROUP}"], ids=["one device", "several"])
@pytest.mark.parametrize("value", [GROUP, "another"])
def test_a_label_is_removed_only_with_the_value_that_was_written(tmp_path: Path, key: str, value: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await waiting(harness, labels={key: value, HANDLED_BY_LABEL: "another"})
        await harness.reservations.release(pod, [GROUP])
        left = {} if value == GROUP else {key: value}
        assert await labels_of(harness) == {**left, HANDLED_BY_LABEL: "another"}

    run_with_reconciler(tmp_path, test)


def test_the_labels_of_another_pod_of_the_name_stay(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        labels = {**ONE, f"{GROUP_LABEL}/{GROUP}": GROUP, **MARK}
        before = await waiting(harness, labels=labels)
        await harness.client.delete(PODS, name="web", namespace=NAMESPACE, grace_s=0)
        await harness.pod(labels=labels)
        await harness.reservations.release(before, [GROUP])
        assert await labels_of(harness) == labels

    run_with_reconciler(tmp_path, test)
