"""Binder plugin volumebinding: assumed volumes, waits, and volumes that the node cannot use."""

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


async def create_pod_with_volume(
    harness: ReconcilerHarness,
    node: str = "n1",
    *,
    mode: str = "WaitForFirstConsumer",
    provisioner: str = "kubernetes.io/no-provisioner",
) -> None:
    """Create a pod whose claim waits for its first consumer, a matching volume on n1, and the request."""
    late = {"metadata": {"name": "late"}, "provisioner": provisioner, "volumeBindingMode": mode}
    await harness.make(CLASSES, late)
    there = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "local": {"path": "/none"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [there]}},
    }
    await harness.make(VOLUMES, {"metadata": {"name": "v"}, "spec": spec})
    await harness.patch(VOLUMES, "v", {"status": {"phase": "Available"}}, sub="status")
    await harness.make(VOLUME_CLAIMS, claim("data", "late"))
    for struct, name in ((StorageClass, "late"), (PersistentVolume, "v"), (PersistentVolumeClaim, "data")):
        await harness.deliver_event(struct, name)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await harness.request(await harness.pod(spec={"volumes": volumes}), node, backoffLimit=1)


async def label_nodes(harness: ReconcilerHarness) -> None:
    """Set the node label that volumes select."""
    for name in ("n1", "n2"):
        await harness.patch(NODES, name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        await harness.deliver_event(Node, name)


async def bind_claim(harness: ReconcilerHarness, volume: str = "v") -> None:
    """Bind claim and volume as the volume controller does, and deliver the events."""
    done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    await harness.patch(VOLUME_CLAIMS, "data", {"metadata": done, "spec": {"volumeName": volume}})
    await harness.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Bound"}}, sub="status")
    for struct, name in ((PersistentVolume, "v"), (PersistentVolumeClaim, "data")):
        await harness.deliver_event(struct, name)


async def wait_for_claim_ref(harness: ReconcilerHarness, syncing: asyncio.Future[float | None]) -> None:
    while not syncing.done() and "claimRef" not in (await harness.get(VOLUMES, "v"))["spec"]:
        await asyncio.sleep(0.01)


async def start_attempt(harness: ReconcilerHarness) -> asyncio.Future[float | None]:
    """Start an attempt that has written the claimRef and waits for the binding."""
    await label_nodes(harness)
    await create_pod_with_volume(harness)
    await harness.deliver_event(Pod, "web")
    await harness.deliver_event(BindRequest, "web")
    syncing = asyncio.ensure_future(harness.reconciler.reconcile(("default", "web")))
    await wait_for_claim_ref(harness, syncing)
    return syncing


def test_the_claim_ref_is_written_and_the_pod_waits_until_the_volume_is_bound(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        syncing = await start_attempt(harness)
        assert (await harness.get(VOLUMES, "v"))["spec"]["claimRef"]["name"] == "data"
        assert await harness.node_of() == ""
        await bind_claim(harness)
        assert await syncing is None
        assert (await harness.status())["phase"] == "Succeeded"
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_an_assumed_volume_is_reverted_when_the_write_fails(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await label_nodes(harness)
        await create_pod_with_volume(harness)
        await harness.patch(VOLUMES, "v", {"metadata": {"labels": {"changed": "meanwhile"}}})  # so that the write fails
        assert await harness.sync() is None
        assert "the object has been modified" in (await harness.status())["reason"]
        known = harness.view.volumes.volumes.get("v")
        assert known is not None
        assert known.spec.claim_ref is None

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_the_selected_node_of_a_claim_is_reverted_when_the_volume_is_not_provisioned(tmp_path: Path) -> None:
    """The watch has not shown the write yet: only the assumed claim has the node."""

    async def test(harness: ReconcilerHarness) -> None:
        # the volume does not fit a node without labels
        await create_pod_with_volume(harness, provisioner="example.com/made")
        await harness.deliver_event(Pod, "web")
        assert await harness.sync() is None
        assert "binding volumes: context deadline exceeded" in (await harness.status())["reason"]
        written = await harness.get(VOLUME_CLAIMS, "data")
        assert written["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n1"
        known = harness.view.volumes.claims.get("default/data")
        assert known is not None
        assert known.metadata.annotations == {}

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin(0.05))


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        pytest.param("Immediate", "pod has unbound immediate PersistentVolumeClaims", id="immediate"),
        pytest.param("WaitForFirstConsumer", "didn't find available persistent volumes to bind", id="elsewhere"),
    ],
)
def test_volumes_that_do_not_fit_fail_the_attempt(tmp_path: Path, mode: str, words: str) -> None:
    """The node has no label, so the volume's affinity does not match."""

    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_with_volume(harness, mode=mode)
        assert await harness.sync() is None
        assert words in (await harness.status())["reason"]
        assert "claimRef" not in (await harness.get(VOLUMES, "v"))["spec"]

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


@pytest.mark.parametrize(
    ("node", "volume", "words"),
    [
        pytest.param("n1", "v", "", id="here"),
        pytest.param("n2", "v", AFFINITY_CONFLICT, id="on another node"),
        pytest.param("n1", "lost", VOLUME_MISSING, id="nowhere"),
    ],
)
def test_a_bound_volume_must_be_accessible_from_the_node(tmp_path: Path, node: str, volume: str, words: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await label_nodes(harness)
        await create_pod_with_volume(harness, node)
        await bind_claim(harness, volume)
        assert await harness.sync() is None
        assert words in (await harness.status()).get("reason", "")
        assert await harness.node_of() == ("" if words else node)

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        pytest.param("missing", 'persistentvolumeclaim "data" not found', id="missing"),
        pytest.param("terminating", 'persistentvolumeclaim "data" is being deleted', id="terminating"),
        pytest.param("lost", 'persistentvolumeclaim "data" bound to non-existent persistentvolume "v"', id="lost"),
    ],
)
def test_an_unusable_claim_fails_the_attempt(tmp_path: Path, broken: str, words: str) -> None:
    """A matching volume exists and must not be assumed for an unusable claim."""

    async def test(harness: ReconcilerHarness) -> None:
        await label_nodes(harness)
        await create_pod_with_volume(harness)
        if broken == "lost":
            await bind_claim(harness)
            await harness.patch(VOLUME_CLAIMS, "data", {"status": {"phase": "Lost"}}, sub="status")
            await harness.deliver_event(PersistentVolumeClaim, "data")
        else:
            held = ["example.com/held"] if broken == "terminating" else []
            await harness.patch(VOLUME_CLAIMS, "data", {"metadata": {"finalizers": held}})
            known = await harness.client.get(PersistentVolumeClaim, "default", "data")
            await harness.client.delete(VOLUME_CLAIMS, name="data", namespace="default")
            if held:
                await harness.deliver_event(PersistentVolumeClaim, "data")
            else:
                harness.view.handle_event(known, None)
        assert await harness.sync() is None
        assert words in (await harness.status())["reason"]
        assert await harness.node_of() == ""
        assert "claimRef" not in (await harness.get(VOLUMES, "v"))["spec"]

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())


def test_a_node_that_is_deleted_during_the_wait_for_its_volume_fails_the_attempt(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        syncing = await start_attempt(harness)
        harness.view.handle_event(harness.view.node("n1"), None)
        await bind_claim(harness)  # although the volume is bound by now
        assert await syncing is None
        assert 'failed to get node "n1"' in (await harness.status())["reason"]
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, VolumeBindingBinderPlugin())
