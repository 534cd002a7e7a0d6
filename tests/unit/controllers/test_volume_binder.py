"""Claims and volumes: bound to each other, made on the chosen node, given back, and kept while somebody uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayplan.controllers.seen import CLAIMS, CLASSES, PODS, STATEFUL_SETS, VOLUMES, Tree
from bayplan.controllers.volume_binder import DEFAULT_CLASS, make_default_class
from controlled import controlled
from wire_server import on_loop

VOLUME_CONTROLLERS = (
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
)


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


@on_loop
async def test_a_claim_gets_the_smallest_volume_that_fits(tmp_path: Path) -> None:
    async with controlled(tmp_path, nodes=0, only=VOLUME_CONTROLLERS, housekeeping=False, scheduling=False) as world:
        for name, size in (("small", "500Mi"), ("large", "5Gi"), ("right", "2Gi")):
            await world.make(VOLUMES, volume(name, size))
            await world.when(VOLUMES, name, lambda it: it["status"]["phase"] == "Available")
        await world.make(CLAIMS, claim("data", storageClassName=""))
        found = await world.when(CLAIMS, "data", bound)
        assert found["spec"]["volumeName"] == "right"
        assert found["status"]["capacity"] == {"storage": "2Gi"}
        assert found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        taken = await world.when(VOLUMES, "right", bound)
        assert taken["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
        # A volume that is given back is kept for somebody to look at: nobody said that it may be deleted.
        await world.delete(CLAIMS, "data")
        await world.gone(CLAIMS, "data")
        await world.when(VOLUMES, "right", lambda it: it["status"]["phase"] == "Released")


@on_loop
async def test_a_volume_is_made_on_the_node_that_the_scheduler_chose_and_goes_with_its_claim(tmp_path: Path) -> None:
    async with controlled(tmp_path, nodes=2, only=VOLUME_CONTROLLERS, housekeeping=False) as world:
        await make_default_class(world.client)
        await make_default_class(world.client)
        await world.make(CLAIMS, claim("data"))
        waiting = await world.when(CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        assert waiting["spec"]["storageClassName"] == DEFAULT_CLASS["metadata"]["name"]
        await world.make(PODS, pod_with("user", "data"))
        found = await world.when(CLAIMS, "data", bound)
        pod = await world.when(PODS, "user", lambda it: it["status"]["phase"] == "Running")
        made = await world.get(VOLUMES, found["spec"]["volumeName"])
        (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == [pod["spec"]["nodeName"]]
        await world.delete(CLAIMS, "data")
        await world.when(CLAIMS, "data", lambda it: it["metadata"]["deletionTimestamp"])
        await world.delete(PODS, "user")
        await world.gone(CLAIMS, "data")
        await world.gone(VOLUMES, made["metadata"]["name"])


@on_loop
async def test_a_class_that_comes_late_serves_those_who_wait_and_a_lost_volume_is_told(tmp_path: Path) -> None:
    async with controlled(tmp_path, nodes=0, only=VOLUME_CONTROLLERS, housekeeping=False, scheduling=False) as world:
        await world.make(CLAIMS, claim("data"))
        await world.when(CLAIMS, "data", lambda it: it["status"]["phase"] == "Pending")
        at_once = {"volumeBindingMode": "Immediate", "metadata": DEFAULT_CLASS["metadata"]}
        await world.make(CLASSES, {**DEFAULT_CLASS, **at_once})
        found = await world.when(CLAIMS, "data", bound)
        name = found["spec"]["volumeName"]
        await world.patch(VOLUMES, name, {"metadata": {"finalizers": None}})
        await world.delete(VOLUMES, name)
        lost = await world.when(CLAIMS, "data", lambda it: it["status"]["phase"] == "Lost")
        assert lost["spec"]["volumeName"] == name


@on_loop
async def test_a_stateful_set_has_a_volume_for_each_pod(tmp_path: Path) -> None:
    only = (*VOLUME_CONTROLLERS, "statefulset-controller")
    async with controlled(tmp_path, only=only, housekeeping=False) as world:
        await make_default_class(world.client)
        labels = {"app": "db"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        claims = [{"metadata": {"name": "data"}, "spec": claim("data")["spec"]}]
        spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels}, "template": template}
        policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
        more = {"volumeClaimTemplates": claims, "persistentVolumeClaimRetentionPolicy": policy}
        await world.make(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": {**spec, **more}})
        await world.when(STATEFUL_SETS, "db", lambda it: it["status"].get("readyReplicas") == 2)
        names = sorted(each["metadata"]["name"] for each in await world.list(CLAIMS))
        assert names == ["data-db-0", "data-db-1"]
        await world.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await world.when(CLAIMS, "data-db-1", lambda it: it["metadata"]["ownerReferences"][0]["kind"] == "Pod")
