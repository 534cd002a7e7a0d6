"""Claims and volumes: bound to each other, made on the chosen node, given back, and kept while somebody uses them."""

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
from bayplan.controllers.storage.volume_binder import (
    DEFAULT_CLASS,
    Claim,
    PersistentVolumeBinder,
    make_default_class,
)
from bayplan.objects.kinds import convert
from support.harness.async_tests import async_test
from support.harness.controllers import deliver_event, run_controllers

VOLUME_CONTROLLERS = (
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
)
volumes_controlled = partial(run_controllers, only=VOLUME_CONTROLLERS, cleanup=False, within_s=60.0)
"""These controllers alone, which answer at once: a minute is long for them on a busy machine too."""


def claim(name: str, size: str = "1Gi", **spec: Any) -> Tree:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": {**wanted, **spec}}


def volume(name: str, size: str, storage_class: str = "") -> Tree:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": storage_class}}


def bound(found: Tree) -> bool:
    return bool(found["status"]["phase"] == "Bound")


def pod_with(name: str, claim_name: str) -> Tree:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    containers = [{"name": "c", "image": "none"}]
    return {"metadata": {"name": name}, "spec": {"volumes": volumes, "containers": containers}}


# What wakes a claim, without an API server.


def seen_claim(name: str, phase: str = "Pending", **spec: Any) -> Claim:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return convert({"metadata": meta, "spec": claim(name, **spec)["spec"], "status": {"phase": phase}}, Claim)


def seen_volume(phase: str, *, claim_name: str = "") -> PersistentVolumeFields:
    tree = volume("disk", "1Gi")
    reference = {"namespace": "default", "name": claim_name} if claim_name else None
    return convert(
        {**tree, "spec": {**tree["spec"], "claimRef": reference}, "status": {"phase": phase}}, PersistentVolumeFields
    )


def queued(binder: PersistentVolumeBinder) -> set[Key]:
    """The keys that want work, taken out of the queue."""
    waiting = binder.queue._waiting
    found = set(waiting)
    waiting.clear()
    return found


UNBOUND, BOUND, DISK = ("default", "unbound"), ("default", "bound"), ("", "disk")


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        pytest.param(None, seen_volume("Available"), {UNBOUND, DISK}, id="comes-available"),
        pytest.param(None, seen_volume("Pending"), {DISK}, id="comes-before-its-phase"),
        pytest.param(seen_volume("Pending"), seen_volume("Available"), {UNBOUND, DISK}, id="becomes-available"),
        pytest.param(seen_volume("Released"), seen_volume("Available"), {UNBOUND, DISK}, id="becomes-available-again"),
        pytest.param(seen_volume("Available"), seen_volume("Available"), {DISK}, id="stays-available"),
        pytest.param(seen_volume("Available"), seen_volume("Bound"), {DISK}, id="is-taken"),
        pytest.param(seen_volume("Available"), None, set(), id="goes"),
        pytest.param(seen_volume("Bound", claim_name="bound"), None, {BOUND}, id="goes-from-its-claim"),
        pytest.param(
            seen_volume("Released", claim_name="bound"), seen_volume("Released"), {BOUND, DISK}, id="is-given-back"
        ),
        pytest.param(
            seen_volume("Available"), seen_volume("Available", claim_name="bound"), {BOUND, DISK}, id="is-promised"
        ),
    ],
)
@async_test
async def test_whom_a_volume_wakes(
    old: PersistentVolumeFields | None, new: PersistentVolumeFields | None, woken: set[Key]
) -> None:
    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        binder = PersistentVolumeBinder(SharedInformerFactory(client))
        deliver_event(binder.claims, None, seen_claim("unbound"))
        deliver_event(binder.claims, None, seen_claim("bound", "Pending"))
        deliver_event(binder.claims, None, seen_claim("gone"))
        deliver_event(binder.claims, seen_claim("bound"), seen_claim("bound", "Bound"))
        deliver_event(binder.claims, seen_claim("gone"), None)
        if old is not None:
            deliver_event(binder.volumes, None, old)
        queued(binder)
        deliver_event(binder.volumes, old, new)
        assert queued(binder) == woken


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        pytest.param(None, seen_claim("own"), {("default", "own")}, id="comes"),
        pytest.param(None, seen_claim("own", volumeName="disk"), {("default", "own"), DISK}, id="comes-with-a-volume"),
        pytest.param(seen_claim("own", volumeName="disk"), None, {("default", "own"), DISK}, id="goes-from-its-volume"),
        pytest.param(seen_claim("own"), None, {("default", "own")}, id="goes"),
    ],
)
@async_test
async def test_whom_a_claim_wakes(old: Claim | None, new: Claim | None, woken: set[Key]) -> None:
    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        binder = PersistentVolumeBinder(SharedInformerFactory(client))
        if old is not None:
            deliver_event(binder.claims, None, old)
        queued(binder)
        deliver_event(binder.claims, old, new)
        assert queued(binder) == woken
        deliver_event(binder.classes, None, convert(DEFAULT_CLASS, StorageClassFields))
        assert queued(binder) == ({("default", "own")} if new is not None else set())


# On an API server.


@async_test
async def test_a_claim_gets_the_smallest_volume_that_fits(tmp_path: Path) -> None:
    async with volumes_controlled(tmp_path, nodes=0, scheduling=False) as world:
        for name, size in (("small", "500Mi"), ("large", "5Gi"), ("right", "2Gi")):
            await world.make(PERSISTENT_VOLUMES, volume(name, size))
            await world.when(PERSISTENT_VOLUMES, name, lambda it: it["status"]["phase"] == "Available")
        await world.make(PERSISTENT_VOLUME_CLAIMS, claim("data", storageClassName=""))
        found = await world.when(PERSISTENT_VOLUME_CLAIMS, "data", bound)
        assert found["spec"]["volumeName"] == "right"
        assert found["status"]["capacity"] == {"storage": "2Gi"}
        assert found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        taken = await world.when(PERSISTENT_VOLUMES, "right", bound)
        assert taken["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
        # A volume that is given back is kept for somebody to look at: nobody said that it may be deleted.
        await world.delete(PERSISTENT_VOLUME_CLAIMS, "data")
        await world.gone(PERSISTENT_VOLUME_CLAIMS, "data")
        await world.when(PERSISTENT_VOLUMES, "right", lambda it: it["status"]["phase"] == "Released")


@async_test
async def test_a_volume_is_made_on_the_node_that_the_scheduler_chose_and_goes_with_its_claim(tmp_path: Path) -> None:
    async with volumes_controlled(tmp_path, nodes=2) as world:
        await make_default_class(world.client)
        await make_default_class(world.client)
        await world.make(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        waiting = await world.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        assert waiting["spec"]["storageClassName"] == DEFAULT_CLASS["metadata"]["name"]
        await world.make(PODS, pod_with("user", "data"))
        found = await world.when(PERSISTENT_VOLUME_CLAIMS, "data", bound)
        pod = await world.when(PODS, "user", lambda it: it["status"]["phase"] == "Running")
        made = await world.get(PERSISTENT_VOLUMES, found["spec"]["volumeName"])
        (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == [pod["spec"]["nodeName"]]
        await world.delete(PERSISTENT_VOLUME_CLAIMS, "data")
        await world.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["metadata"]["deletionTimestamp"])
        await world.delete(PODS, "user")
        await world.gone(PERSISTENT_VOLUME_CLAIMS, "data")
        await world.gone(PERSISTENT_VOLUMES, made["metadata"]["name"])


@async_test
async def test_a_class_that_comes_late_serves_those_who_wait_and_a_lost_volume_is_told(tmp_path: Path) -> None:
    async with volumes_controlled(tmp_path, nodes=0, scheduling=False) as world:
        await world.make(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        await world.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        at_once = {"volumeBindingMode": "Immediate", "metadata": DEFAULT_CLASS["metadata"]}
        await world.make(STORAGE_CLASSES, {**DEFAULT_CLASS, **at_once})
        found = await world.when(PERSISTENT_VOLUME_CLAIMS, "data", bound)
        name = found["spec"]["volumeName"]
        await world.patch(PERSISTENT_VOLUMES, name, {"metadata": {"finalizers": None}})
        await world.delete(PERSISTENT_VOLUMES, name)
        lost = await world.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Lost")
        assert lost["spec"]["volumeName"] == name


@async_test
async def test_a_stateful_set_has_a_volume_for_each_pod(tmp_path: Path) -> None:
    only = (*VOLUME_CONTROLLERS, "statefulset-controller")
    async with volumes_controlled(tmp_path, only=only) as world:
        await make_default_class(world.client)
        labels = {"app": "db"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        claims = [{"metadata": {"name": "data"}, "spec": claim("data")["spec"]}]
        spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels}, "template": template}
        policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
        more = {"volumeClaimTemplates": claims, "persistentVolumeClaimRetentionPolicy": policy}
        await world.make(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": {**spec, **more}})
        await world.when(STATEFUL_SETS, "db", lambda it: it["status"].get("readyReplicas") == 2)
        names = sorted(each["metadata"]["name"] for each in await world.list(PERSISTENT_VOLUME_CLAIMS))
        assert names == ["data-db-0", "data-db-1"]
        await world.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await world.when(
            PERSISTENT_VOLUME_CLAIMS, "data-db-1", lambda it: it["metadata"]["ownerReferences"][0]["kind"] == "Pod"
        )


@async_test
async def test_a_volume_that_comes_later_serves_a_claim_that_waits(tmp_path: Path) -> None:
    async with volumes_controlled(tmp_path, nodes=0, scheduling=False) as world:
        await world.make(PERSISTENT_VOLUME_CLAIMS, claim("data", storageClassName=""))
        await world.when(PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        await world.make(PERSISTENT_VOLUMES, volume("late", "1Gi"))
        found = await world.when(PERSISTENT_VOLUME_CLAIMS, "data", bound)
        assert found["spec"]["volumeName"] == "late"


@async_test
async def test_a_released_volume_that_an_administrator_frees_serves_a_claim_that_waits(tmp_path: Path) -> None:
    async with volumes_controlled(tmp_path, nodes=0, scheduling=False) as world:
        await world.make(PERSISTENT_VOLUMES, volume("disk", "1Gi"))
        await world.make(PERSISTENT_VOLUME_CLAIMS, claim("first", storageClassName=""))
        await world.when(PERSISTENT_VOLUME_CLAIMS, "first", bound)
        await world.delete(PERSISTENT_VOLUME_CLAIMS, "first")
        await world.when(PERSISTENT_VOLUMES, "disk", lambda it: it["status"]["phase"] == "Released")
        await world.make(PERSISTENT_VOLUME_CLAIMS, claim("second", storageClassName=""))
        await world.when(PERSISTENT_VOLUME_CLAIMS, "second", lambda it: it["status"]["phase"] == "Pending")
        await world.patch(PERSISTENT_VOLUMES, "disk", {"spec": {"claimRef": None}})
        found = await world.when(PERSISTENT_VOLUME_CLAIMS, "second", bound)
        assert found["spec"]["volumeName"] == "disk"
