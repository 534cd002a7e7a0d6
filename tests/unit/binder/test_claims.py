"""Devices and volumes in the binder: what is written for a pod, found again after a crash, and taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugins.dynamic_resources import DynamicResources
from bayplan.binder.plugins.volume_binding import VolumeBinding
from bayplan.client import resource_of
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from binder_rig import NODES, BinderRig, Failing, Tree, on_rig
from needs import claim, device_claim

CLAIMS, VOLUMES, VOLUME_CLAIMS, CLASSES = (
    resource_of(kind_of(struct)) for struct in (ResourceClaim, PersistentVolume, PersistentVolumeClaim, StorageClass)
)
DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
ALLOCATION = {"devices": {"results": [DEVICE]}}


# devices


async def asking(rig: BinderRig, entry: str = "gpu", **more: Any) -> Tree:
    """A pod with a claim, and the request to bind it with a device."""
    await rig.make(CLAIMS, device_claim("mine", "gpu"))
    pod = await rig.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
    given = [{"name": entry, "allocation": ALLOCATION}]
    await rig.request(pod, resourceClaimAllocations=given, **more)
    return pod


async def told(rig: BinderRig) -> Tree:
    found: Tree = (await rig.get(CLAIMS, "mine")).get("status", {})
    return found


def test_a_claim_gets_the_devices_of_the_request_and_is_reserved_for_the_pod(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        pod = await asking(rig)
        assert await rig.sync() is None
        status = await told(rig)
        assert status["allocation"]["devices"]["results"] == [DEVICE]
        assert [each["uid"] for each in status["reservedFor"]] == [pod["metadata"]["uid"]]
        assert await rig.node_of() == "n1"

    on_rig(tmp_path, test, DynamicResources())


def test_what_an_attempt_before_has_reserved_is_left_as_it_is(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig)
        rig.steps.at["prepared"] = lambda: (_ for _ in ()).throw(asyncio.CancelledError)  # as if it had died here
        with pytest.raises(asyncio.CancelledError):
            await rig.sync()
        before = await rig.get(CLAIMS, "mine")
        rig.steps.at.clear()
        assert await rig.sync() is None
        assert (await rig.get(CLAIMS, "mine"))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        assert await rig.node_of() == "n1"

    on_rig(tmp_path, test, DynamicResources())


def test_a_failure_leaves_no_claim_reserved(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig)
        assert await rig.sync() is not None
        status = await told(rig)
        assert not status.get("reservedFor")
        assert not status.get("allocation")

    on_rig(tmp_path, test, DynamicResources(), Failing())


def test_a_claim_that_others_use_keeps_its_devices(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig)
        other = {"resource": "pods", "name": "other", "uid": "other-uid"}
        shared = {"status": {"allocation": ALLOCATION, "reservedFor": [other]}}
        await rig.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await rig.patch(CLAIMS, "mine", shared, sub="status")
        assert await rig.sync() is not None
        status = await told(rig)
        assert [each["uid"] for each in status["reservedFor"]] == ["other-uid"]
        assert status["allocation"]["devices"]["results"] == [DEVICE]

    on_rig(tmp_path, test, DynamicResources(), Failing())


def test_an_entry_that_the_pod_does_not_have_fails_the_attempt_with_a_sentence(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig, entry="nic", backoffLimit=1)
        assert await rig.sync() is None
        assert 'has no entry "nic" in its resourceClaims' in (await rig.status())["reason"]
        assert not (await told(rig)).get("allocation")

    on_rig(tmp_path, test, DynamicResources())


# volumes


async def with_volume(rig: BinderRig, *, mode: str = "WaitForFirstConsumer") -> None:
    """A pod whose claim waits for its first consumer, a volume on n1 that fits, and the request."""
    late = {"metadata": {"name": "late"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
    await rig.make(CLASSES, late)
    there = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "local": {"path": "/none"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [there]}},
    }
    await rig.make(VOLUMES, {"metadata": {"name": "v"}, "spec": spec})
    await rig.patch(VOLUMES, "v", {"status": {"phase": "Available"}}, sub="status")
    await rig.make(VOLUME_CLAIMS, claim("data", "late"))
    for struct, name in ((StorageClass, "late"), (PersistentVolume, "v"), (PersistentVolumeClaim, "data")):
        await rig.hear(struct, name)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await rig.request(await rig.pod(spec={"volumes": volumes}), backoffLimit=1)


def test_a_volume_is_promised_and_the_pod_waits_until_it_is_bound(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.patch(NODES, "n1", {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})
        await rig.hear(Node, "n1")
        await with_volume(rig)
        await rig.hear(Pod, "web")
        await rig.hear(BindRequest, "web")
        syncing = asyncio.ensure_future(rig.reconciler.sync(("default", "web")))
        while not syncing.done() and "claimRef" not in (await rig.get(VOLUMES, "v"))["spec"]:
            await asyncio.sleep(0.01)
        assert (await rig.get(VOLUMES, "v"))["spec"]["claimRef"]["name"] == "data"
        assert await rig.node_of() == ""
        done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        await rig.patch(VOLUME_CLAIMS, "data", {"metadata": done, "spec": {"volumeName": "v"}})
        await rig.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Bound"}}, sub="status")
        for struct, name in ((PersistentVolume, "v"), (PersistentVolumeClaim, "data")):
            await rig.hear(struct, name)
        assert await syncing is None
        assert (await rig.status())["phase"] == "Succeeded"
        assert await rig.node_of() == "n1"

    on_rig(tmp_path, test, VolumeBinding())


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        pytest.param("Immediate", "pod has unbound immediate PersistentVolumeClaims", id="of others"),
        pytest.param("WaitForFirstConsumer", "didn't find available persistent volumes to bind", id="elsewhere"),
    ],
)
def test_volumes_that_cannot_come_fail_the_attempt(tmp_path: Path, mode: str, words: str) -> None:
    """The node has no label, and so none of the volume's."""

    async def test(rig: BinderRig) -> None:
        await with_volume(rig, mode=mode)
        assert await rig.sync() is None
        assert words in (await rig.status())["reason"]
        assert "claimRef" not in (await rig.get(VOLUMES, "v"))["spec"]

    on_rig(tmp_path, test, VolumeBinding())
