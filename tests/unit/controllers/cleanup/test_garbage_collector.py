"""Garbage collection of dependents, deletion of namespaces, and their default objects.

The API server's own cleanup is off: the controllers do it, as on any API server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import CONFIG_MAPS, NAMESPACES, PODS, REPLICA_SETS, SERVICE_ACCOUNTS, Tree
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, run_controllers

GARBAGE = ("garbage-collector-controller", "replicaset-controller")


def config_map(name: str, *owners: Tree, **meta: Any) -> Tree:
    return {"metadata": {"name": name, "ownerReferences": list(owners), **meta}}


def owned_by(owner: Tree, *, block: bool = False) -> Tree:
    names = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], **names, "blockOwnerDeletion": block}


async def create_replica_set(harness: ControllersHarness, name: str) -> Tree:
    labels = {"app": name}
    pod = {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "none"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await harness.make(REPLICA_SETS, {"metadata": {"name": name}, "spec": spec})
    return await harness.when(REPLICA_SETS, name, lambda it: it["status"].get("readyReplicas") == 2)


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
@async_test
async def test_pods_of_a_deleted_replica_set(tmp_path: Path, policy: str) -> None:
    async with run_controllers(tmp_path, only=GARBAGE, cleanup=False) as harness:
        await create_replica_set(harness, "web")
        await harness.delete(REPLICA_SETS, "web", propagation=policy)
        await harness.gone(REPLICA_SETS, "web")
        if policy == "Orphan":
            pods = await harness.pods()
            assert [each["metadata"].get("ownerReferences") for each in pods] == [None, None]
            assert not any("deletionTimestamp" in each["metadata"] for each in pods)
            return
        if policy == "Foreground":
            assert await harness.pods() == []

        async def no_pods() -> bool:
            return not await harness.pods()

        await harness.until(no_pods)


@async_test
async def test_dependents_are_deleted_recursively_unless_another_owner_remains(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=0, only=GARBAGE, cleanup=False, scheduling=False) as harness:
        root = await harness.make(CONFIG_MAPS, config_map("root"))
        other = await harness.make(CONFIG_MAPS, config_map("other"))
        child = await harness.make(CONFIG_MAPS, config_map("child", owned_by(root)))
        await harness.make(CONFIG_MAPS, config_map("grandchild", owned_by(child)))
        await harness.make(CONFIG_MAPS, config_map("shared", owned_by(root), owned_by(other)))
        missing_owner = {**owned_by(root), "uid": "00000000-0000-0000-0000-000000000000"}
        await harness.make(CONFIG_MAPS, config_map("of-nobody", missing_owner))
        await harness.gone(CONFIG_MAPS, "of-nobody")
        await harness.delete(CONFIG_MAPS, "root")
        await harness.gone(CONFIG_MAPS, "grandchild")
        found = await harness.when(CONFIG_MAPS, "shared", lambda it: len(it["metadata"]["ownerReferences"]) == 1)
        assert found["metadata"]["ownerReferences"][0]["name"] == "other"


@async_test
async def test_foreground_deletion_waits_for_blocking_dependents(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=0, only=GARBAGE, cleanup=False, scheduling=False) as harness:
        root = await harness.make(CONFIG_MAPS, config_map("root"))
        with_finalizer = {"finalizers": ["example.com/held"]}
        await harness.make(CONFIG_MAPS, config_map("child", owned_by(root, block=True), **with_finalizer))
        await harness.delete(CONFIG_MAPS, "root", propagation="Foreground")
        await harness.when(CONFIG_MAPS, "child", lambda it: it["metadata"]["deletionTimestamp"])
        assert (await harness.get(CONFIG_MAPS, "root"))["metadata"]["finalizers"] == ["foregroundDeletion"]
        await harness.patch(CONFIG_MAPS, "child", {"metadata": {"finalizers": None}})
        await harness.gone(CONFIG_MAPS, "root")


@async_test
async def test_objects_of_new_custom_kinds_are_collected(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=0, only=GARBAGE, cleanup=False, scheduling=False) as harness:
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
        names = {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"}
        spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
        definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        await harness.served.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            {**definition, "metadata": {"name": "boats.example.com"}, "spec": spec},
        )
        path = "/apis/example.com/v1/namespaces/default/boats"

        async def is_served() -> bool:
            return (await harness.served.request("GET", path)).code == 200

        await harness.until(is_served)
        boat = await harness.served.create(
            path, {"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "b"}}
        )
        await harness.make(CONFIG_MAPS, config_map("cargo", owned_by(boat)))
        assert (await harness.served.request("DELETE", f"{path}/b")).code == 200
        await harness.gone(CONFIG_MAPS, "cargo")


@async_test
async def test_a_deleted_namespace_is_emptied_pods_first(tmp_path: Path) -> None:
    only = ("namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller")
    async with run_controllers(tmp_path, nodes=1, only=only, cleanup=False) as harness:
        await harness.make(NAMESPACES, {"metadata": {"name": "team"}})

        async def has_defaults() -> bool:
            maps = await harness.list(CONFIG_MAPS, namespace="team")
            accounts = await harness.list(SERVICE_ACCOUNTS, namespace="team")
            names = [each["metadata"]["name"] for each in (*maps, *accounts)]
            return names == ["kube-root-ca.crt", "default"] and "BEGIN CERTIFICATE" in maps[0]["data"]["ca.crt"]

        await harness.until(has_defaults)
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        await harness.make(PODS, pod, namespace="team")
        with_finalizer = {"metadata": {"name": "held", "finalizers": ["example.com/held"]}}
        await harness.make(CONFIG_MAPS, with_finalizer, namespace="team")
        await harness.delete(NAMESPACES, "team")

        def remaining(found: Tree) -> bool:
            conditions = {each["type"]: each for each in found["status"]["conditions"]}
            return conditions["NamespaceFinalizersRemaining"]["message"].endswith(
                "example.com/held in 1 resource instances"
            ) and not conditions["NamespaceContentRemaining"]["message"].count("pods")

        await harness.when(NAMESPACES, "team", remaining)
        assert await harness.list(PODS, namespace="team") == []
        await harness.client.patch(
            CONFIG_MAPS,
            {"metadata": {"finalizers": None}},
            namespace="team",
            name="held",
            kind="application/merge-patch+json",
        )
        await harness.gone(NAMESPACES, "team")


@async_test
async def test_default_objects_of_namespaces_are_restored(tmp_path: Path) -> None:
    only = ("serviceaccount-controller", "root-ca-certificate-publisher-controller")
    async with run_controllers(tmp_path, nodes=0, only=only, cleanup=False, scheduling=False) as harness:
        before = await harness.until(lambda: harness.get(SERVICE_ACCOUNTS, "default"))
        await harness.delete(SERVICE_ACCOUNTS, "default")
        uid = before["metadata"]["uid"]
        await harness.when(SERVICE_ACCOUNTS, "default", lambda it: it["metadata"]["uid"] != uid)
        await harness.patch(CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "forged"}})
        restored = await harness.when(CONFIG_MAPS, "kube-root-ca.crt", lambda it: it["data"]["ca.crt"] != "forged")
        assert restored["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
