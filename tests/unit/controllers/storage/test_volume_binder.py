"""Claims and volumes: binding, provisioning on the selected node, reclaiming, and protection while in use."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import Client
from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.clock import ManualClock
from bayplan.controllers.core.api_types import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    PersistentVolumeFields,
    StorageClassFields,
    Tree,
)
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.storage.volume_binder import DEFAULT_CLASS, Claim, PersistentVolumeBinder, make_default_class
from bayplan.objects.kinds import convert
from support.harness.async_tests import async_test
from support.harness.controllers import deliver_event, run_controllers

VOLUME_CONTROLLERS = (
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
)
run_volume_controllers = partial(run_controllers, only=VOLUME_CONTROLLERS, cleanup=False, within_s=60.0)
"""Runs these controllers only. The timeout of a minute is long enough on a busy machine."""


def claim(name: str, size: str = "1Gi", **spec: Any) -> Tree:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": {**wanted, **spec}}


def volume(name: str, size: str, storage_class: str = "") -> Tree:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": storage_class}}


def is_bound(found: Tree) -> bool:
    return bool(found["status"]["phase"] == "Bound")


def pod_with(name: str, claim_name: str) -> Tree:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    containers = [{"name": "c", "image": "none"}]
    return {"metadata": {"name": name}, "spec": {"volumes": volumes, "containers": containers}}


# Enqueued keys, without an API server.


def make_claim(name: str, phase: str = "Pending", **spec: Any) -> Claim:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return convert({"metadata": meta, "spec": claim(name, **spec)["spec"], "status": {"phase": phase}}, Claim)


def make_volume(phase: str, *, claim_name: str = "") -> PersistentVolumeFields:
    tree = volume("disk", "1Gi")
    reference = {"namespace": "default", "name": claim_name} if claim_name else None
    return convert(
        {**tree, "spec": {**tree["spec"], "claimRef": reference}, "status": {"phase": phase}}, PersistentVolumeFields
    )


def queued(binder: PersistentVolumeBinder) -> set[Key]:
    """Return the enqueued keys and clear the queue."""
    waiting = binder.queue._waiting
    found = set(waiting)
    waiting.clear()
    return found


UNBOUND, BOUND, DISK = ("default", "unbound"), ("default", "bound"), ("", "disk")


@pytest.mark.parametrize(
    ("old", "new", "enqueued"),
    [
        pytest.param(None, make_volume("Available"), {UNBOUND, DISK}, id="comes-available"),
        pytest.param(None, make_volume("Pending"), {DISK}, id="comes-before-its-phase"),
        pytest.param(make_volume("Pending"), make_volume("Available"), {UNBOUND, DISK}, id="becomes-available"),
        pytest.param(make_volume("Released"), make_volume("Available"), {UNBOUND, DISK}, id="becomes-available-again"),
        pytest.param(make_volume("Available"), make_volume("Available"), {DISK}, id="stays-available"),
        pytest.param(make_volume("Available"), make_volume("Bound"), {DISK}, id="is-taken"),
        pytest.param(make_volume("Available"), None, set(), id="goes"),
        pytest.param(make_volume("Bound", claim_name="bound"), None, {BOUND}, id="goes-from-its-claim"),
        pytest.param(
            make_volume("Released", claim_name="bound"), make_volume("Released"), {BOUND, DISK}, id="is-given-back"
        ),
        pytest.param(
            make_volume("Available"), make_volume("Available", claim_name="bound"), {BOUND, DISK}, id="is-promised"
        ),
    ],
)
@async_test
async def test_keys_enqueued_by_a_volume_event(
    old: PersistentVolumeFields | None, new: PersistentVolumeFields | None, enqueued: set[Key]
) -> None:
    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        binder = PersistentVolumeBinder(SharedInformerFactory(client))
        deliver_event(binder.claims, None, make_claim("unbound"))
        deliver_event(binder.claims, None, make_claim("bound", "Pending"))
        deliver_event(binder.claims, None, make_claim("gone"))
        deliver_event(binder.claims, make_claim("bound"), make_claim("bound", "Bound"))
        deliver_event(binder.claims, make_claim("gone"), None)
        if old is not None:
            deliver_event(binder.volumes, None, old)
        queued(binder)
        deliver_event(binder.volumes, old, new)
        assert queued(binder) == enqueued


@pytest.mark.parametrize(
    ("old", "new", "enqueued"),
    [
        pytest.param(None, make_claim("own"), {("default", "own")}, id="comes"),
        pytest.param(None, make_claim("own", volumeName="disk"), {("default", "own"), DISK}, id="comes-with-a-volume"),
        pytest.param(make_claim("own", volumeName="disk"), None, {("default", "own"), DISK}, id="goes-from-its-volume"),
        pytest.param(make_claim("own"), None, {("default", "own")}, id="goes"),
    ],
)
@async_test
async def test_keys_enqueued_by_a_claim_event(old: Claim | None, new: Claim | None, enqueued: set[Key]) -> None:
    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        binder = PersistentVolumeBinder(SharedInformerFactory(client))
        if old is not None:
            deliver_event(binder.claims, None, old)
        queued(binder)
        deliver_event(binder.claims, old, new)
        assert queued(binder) == enqueued
        deliver_event(binder.classes, None, convert(DEFAULT_CLASS, StorageClassFields))
        assert queued(binder) == ({("default", "own")} if new is not None else set())


# With an API server.


@async_test
async def test_a_claim_gets_the_smallest_volume_that_fits(tmp_path: Path) -> None:
    async with run_volume_controllers(tmp_path, nodes=0, scheduling=False) as harness:
        for name, size in (("small", "500Mi"), ("large", "5Gi"), ("right", "2Gi")):
            await harness.make(PERSISTENT_VOLUMES, volume(name, size))
            await harness.when(PERSISTENT_VOLUMES, name, lambda it: it["status"]["phase"] == "Available")
        await harness.make(PERSISTENT_VOLUME_CLAIMS, claim("data", storageClassName=""))
        found = await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", is_bound)
        assert found["spec"]["volumeName"] == "right"
        assert found["status"]["capacity"] == {"storage": "2Gi"}
        assert found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        bound_volume = await harness.when(PERSISTENT_VOLUMES, "right", is_bound)
        assert bound_volume["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
        # The volume was created by an administrator without a reclaim policy of Delete: it stays.
        await harness.delete(PERSISTENT_VOLUME_CLAIMS, "data")
        await harness.gone(PERSISTENT_VOLUME_CLAIMS, "data")
        await harness.when(PERSISTENT_VOLUMES, "right", lambda it: it["status"]["phase"] == "Released")


@async_test
async def test_a_volume_is_provisioned_on_the_selected_node_and_deleted_with_its_claim(tmp_path: Path) -> None:
    async with run_volume_controllers(tmp_path, nodes=2) as harness:
        await make_default_class(harness.client)
        await make_default_class(harness.client)
        await harness.make(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        waiting = await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        assert waiting["spec"]["storageClassName"] == DEFAULT_CLASS["metadata"]["name"]
        await harness.make(PODS, pod_with("user", "data"))
        found = await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", is_bound)
        pod = await harness.when(PODS, "user", lambda it: it["status"]["phase"] == "Running")
        created = await harness.get(PERSISTENT_VOLUMES, found["spec"]["volumeName"])
        (term,) = created["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == [pod["spec"]["nodeName"]]
        await harness.delete(PERSISTENT_VOLUME_CLAIMS, "data")
        await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["metadata"]["deletionTimestamp"])
        await harness.delete(PODS, "user")
        await harness.gone(PERSISTENT_VOLUME_CLAIMS, "data")
        await harness.gone(PERSISTENT_VOLUMES, created["metadata"]["name"])


@async_test
async def test_a_new_default_class_serves_pending_claims_and_a_claim_without_volume_is_lost(tmp_path: Path) -> None:
    async with run_volume_controllers(tmp_path, nodes=0, scheduling=False) as harness:
        await harness.make(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        immediate = {"volumeBindingMode": "Immediate", "metadata": DEFAULT_CLASS["metadata"]}
        await harness.make(STORAGE_CLASSES, {**DEFAULT_CLASS, **immediate})
        found = await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", is_bound)
        name = found["spec"]["volumeName"]
        await harness.patch(PERSISTENT_VOLUMES, name, {"metadata": {"finalizers": None}})
        await harness.delete(PERSISTENT_VOLUMES, name)
        lost = await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Lost")
        assert lost["spec"]["volumeName"] == name


@async_test
async def test_a_stateful_set_has_a_volume_for_each_pod(tmp_path: Path) -> None:
    only = (*VOLUME_CONTROLLERS, "statefulset-controller")
    async with run_volume_controllers(tmp_path, only=only) as harness:
        await make_default_class(harness.client)
        labels = {"app": "db"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        claims = [{"metadata": {"name": "data"}, "spec": claim("data")["spec"]}]
        spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels}, "template": template}
        policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
        claim_spec = {"volumeClaimTemplates": claims, "persistentVolumeClaimRetentionPolicy": policy}
        await harness.make(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": {**spec, **claim_spec}})
        await harness.when(STATEFUL_SETS, "db", lambda it: it["status"].get("readyReplicas") == 2)
        names = sorted(each["metadata"]["name"] for each in await harness.list(PERSISTENT_VOLUME_CLAIMS))
        assert names == ["data-db-0", "data-db-1"]
        await harness.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await harness.when(
            PERSISTENT_VOLUME_CLAIMS, "data-db-1", lambda it: it["metadata"]["ownerReferences"][0]["kind"] == "Pod"
        )


@async_test
async def test_a_new_volume_serves_a_pending_claim(tmp_path: Path) -> None:
    async with run_volume_controllers(tmp_path, nodes=0, scheduling=False) as harness:
        await harness.make(PERSISTENT_VOLUME_CLAIMS, claim("data", storageClassName=""))
        await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        await harness.make(PERSISTENT_VOLUMES, volume("late", "1Gi"))
        found = await harness.when(PERSISTENT_VOLUME_CLAIMS, "data", is_bound)
        assert found["spec"]["volumeName"] == "late"


@async_test
async def test_a_released_volume_without_claim_ref_serves_a_pending_claim(tmp_path: Path) -> None:
    async with run_volume_controllers(tmp_path, nodes=0, scheduling=False) as harness:
        await harness.make(PERSISTENT_VOLUMES, volume("disk", "1Gi"))
        await harness.make(PERSISTENT_VOLUME_CLAIMS, claim("first", storageClassName=""))
        await harness.when(PERSISTENT_VOLUME_CLAIMS, "first", is_bound)
        await harness.delete(PERSISTENT_VOLUME_CLAIMS, "first")
        await harness.when(PERSISTENT_VOLUMES, "disk", lambda it: it["status"]["phase"] == "Released")
        await harness.make(PERSISTENT_VOLUME_CLAIMS, claim("second", storageClassName=""))
        await harness.when(PERSISTENT_VOLUME_CLAIMS, "second", lambda it: it["status"]["phase"] == "Pending")
        await harness.patch(PERSISTENT_VOLUMES, "disk", {"spec": {"claimRef": None}})
        found = await harness.when(PERSISTENT_VOLUME_CLAIMS, "second", is_bound)
        assert found["spec"]["volumeName"] == "disk"
