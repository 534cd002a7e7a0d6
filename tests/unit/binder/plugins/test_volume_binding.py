"""Volumes in the binder: promised, waited for, and refused where they cannot come to the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bayplan.binder.plugins.volume_binding import VolumeBindingBinderPlugin
from bayplan.client import resource_of
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.volumes.binding import AFFINITY_CONFLICT, VOLUME_MISSING
from support.e2e.volumes_and_devices import claim
from support.harness.reconciler import NODES, ReconcilerHarness, run_with_reconciler

VOLUMES, VOLUME_CLAIMS, CLASSES = (
    resource_of(kind_of(struct)) for struct in (PersistentVolume, PersistentVolumeClaim, StorageClass)
)


async def with_volume(
    rig: ReconcilerHarness,
    node: str = "n1",
    *,
    mode: str = "WaitForFirstConsumer",
    provisioner: str = "kubernetes.io/no-provisioner",
) -> None:
    """A pod whose claim waits for its first consumer, a volume on n1 that fits, and the request."""
    late = {"metadata": {"name": "late"}, "provisioner": provisioner, "volumeBindingMode": mode}
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
        await rig.deliver_event(struct, name)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await rig.request(await rig.pod(spec={"volumes": volumes}), node, backoffLimit=1)


async def say_where(rig: ReconcilerHarness) -> None:
    """Nodes have the label by which volumes are on them."""
    for name in ("n1", "n2"):
        await rig.patch(NODES, name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        await rig.deliver_event(Node, name)


async def bind_claim(rig: ReconcilerHarness, volume: str = "v") -> None:
    """What the volume controller does once it has a pair; and the watch tells of it."""
    done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    await rig.patch(VOLUME_CLAIMS, "data", {"metadata": done, "spec": {"volumeName": volume}})
    await rig.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Bound"}}, sub="status")
    for struct, name in ((PersistentVolume, "v"), (PersistentVolumeClaim, "data")):
        await rig.deliver_event(struct, name)


async def until_promised(rig: ReconcilerHarness, syncing: asyncio.Future[float | None]) -> None:
    while not syncing.done() and "claimRef" not in (await rig.get(VOLUMES, "v"))["spec"]:
        await asyncio.sleep(0.01)


async def promised(rig: ReconcilerHarness) -> asyncio.Future[float | None]:
    """An attempt that has promised its volume, and waits for it."""
    await say_where(rig)
    await with_volume(rig)
    await rig.deliver_event(Pod, "web")
    await rig.deliver_event(BindRequest, "web")
    syncing = asyncio.ensure_future(rig.reconciler.reconcile(("default", "web")))
    await until_promised(rig, syncing)
    return syncing


def test_a_volume_is_promised_and_the_pod_waits_until_it_is_bound(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        syncing = await promised(rig)
        assert (await rig.get(VOLUMES, "v"))["spec"]["claimRef"]["name"] == "data"
        assert await rig.node_of() == ""
        await bind_claim(rig)
        assert await syncing is None
        assert (await rig.status())["phase"] == "Succeeded"
        assert await rig.node_of() == "n1"

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_a_volume_that_could_not_be_promised_is_nobodys_in_memory(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await say_where(rig)
        await with_volume(rig)
        await rig.patch(VOLUMES, "v", {"metadata": {"labels": {"changed": "meanwhile"}}})  # so that the write fails
        assert await rig.sync() is None
        assert "the object has been modified" in (await rig.status())["reason"]
        known = rig.view.cache.volumes.volumes.get("v")
        assert known is not None
        assert known.spec.claim_ref is None

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_a_node_that_was_chosen_for_a_claim_is_forgotten_when_the_volume_does_not_come(tmp_path: Path) -> None:
    """The watch has not told yet of what was written: only the memory says that the node is chosen."""

    async def test(rig: ReconcilerHarness) -> None:
        await with_volume(rig, provisioner="example.com/made")  # the volume does not fit a node without labels
        await rig.deliver_event(Pod, "web")
        assert await rig.sync() is None
        assert "binding volumes: context deadline exceeded" in (await rig.status())["reason"]
        written = await rig.get(VOLUME_CLAIMS, "data")
        assert written["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n1"
        known = rig.view.cache.volumes.claims.get("default/data")
        assert known is not None
        assert known.metadata.annotations == {}

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin(0.05))


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        pytest.param("Immediate", "pod has unbound immediate PersistentVolumeClaims", id="of others"),
        pytest.param("WaitForFirstConsumer", "didn't find available persistent volumes to bind", id="elsewhere"),
    ],
)
def test_volumes_that_cannot_come_fail_the_attempt(tmp_path: Path, mode: str, words: str) -> None:
    """The node has no label, and so none of the volume's."""

    async def test(rig: ReconcilerHarness) -> None:
        await with_volume(rig, mode=mode)
        assert await rig.sync() is None
        assert words in (await rig.status())["reason"]
        assert "claimRef" not in (await rig.get(VOLUMES, "v"))["spec"]

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


@pytest.mark.parametrize(
    ("node", "volume", "words"),
    [
        pytest.param("n1", "v", "", id="here"),
        pytest.param("n2", "v", AFFINITY_CONFLICT, id="on another node"),
        pytest.param("n1", "lost", VOLUME_MISSING, id="nowhere"),
    ],
)
def test_a_volume_that_is_bound_already_must_reach_the_node(tmp_path: Path, node: str, volume: str, words: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await say_where(rig)
        await with_volume(rig, node)
        await bind_claim(rig, volume)
        assert await rig.sync() is None
        assert words in (await rig.status()).get("reason", "")
        assert await rig.node_of() == ("" if words else node)

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        pytest.param("missing", 'persistentvolumeclaim "data" not found', id="missing"),
        pytest.param("going", 'persistentvolumeclaim "data" is being deleted', id="going"),
        pytest.param("lost", 'persistentvolumeclaim "data" bound to non-existent persistentvolume "v"', id="lost"),
    ],
)
def test_a_claim_that_cannot_be_used_fails_the_attempt(tmp_path: Path, broken: str, words: str) -> None:
    """A volume would fit, and might be promised to what is not there."""

    async def test(rig: ReconcilerHarness) -> None:
        await say_where(rig)
        await with_volume(rig)
        if broken == "lost":
            await bind_claim(rig)
            await rig.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Lost"}}, sub="status")
            await rig.deliver_event(PersistentVolumeClaim, "data")
        else:
            held = ["example.com/held"] if broken == "going" else []
            await rig.patch(VOLUME_CLAIMS, "data", {"metadata": {"finalizers": held}})
            known = await rig.client.get(PersistentVolumeClaim, "default", "data")
            await rig.client.delete(VOLUME_CLAIMS, name="data", namespace="default")
            if held:
                await rig.deliver_event(PersistentVolumeClaim, "data")
            else:
                rig.view.handle_event(known, None)
        assert await rig.sync() is None
        assert words in (await rig.status())["reason"]
        assert await rig.node_of() == ""
        assert "claimRef" not in (await rig.get(VOLUMES, "v"))["spec"]

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_a_node_that_goes_while_its_volume_is_awaited_fails_the_attempt(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        syncing = await promised(rig)
        rig.view.handle_event(rig.view.node("n1"), None)
        await bind_claim(rig)  # though the volume is there by now
        assert await syncing is None
        assert 'failed to get node "n1"' in (await rig.status())["reason"]
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())
