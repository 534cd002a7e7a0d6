"""What goes with its owner, what stays, what an owner waits for; and namespaces that are emptied and furnished.

The API server does none of it here: the controllers do, as they would on any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import (
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    Tree,
)
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, run_controllers

GARBAGE = ("garbage-collector-controller", "replicaset-controller")


def config_map(name: str, *owners: Tree, **meta: Any) -> Tree:
    return {"metadata": {"name": name, "ownerReferences": list(owners), **meta}}


def owned_by(owner: Tree, *, block: bool = False) -> Tree:
    names = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], **names, "blockOwnerDeletion": block}


async def a_set(world: ControllersHarness, name: str) -> Tree:
    labels = {"app": name}
    pod = {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "none"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await world.make(REPLICA_SETS, {"metadata": {"name": name}, "spec": spec})
    return await world.when(REPLICA_SETS, name, lambda it: it["status"].get("readyReplicas") == 2)


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
@async_test
async def test_pods_of_a_set_that_is_deleted(tmp_path: Path, policy: str) -> None:
    async with run_controllers(tmp_path, only=GARBAGE, cleanup=False) as world:
        await a_set(world, "web")
        await world.delete(REPLICA_SETS, "web", propagation=policy)
        await world.gone(REPLICA_SETS, "web")
        if policy == "Orphan":
            pods = await world.pods()
            assert [each["metadata"].get("ownerReferences") for each in pods] == [None, None]
            assert not any("deletionTimestamp" in each["metadata"] for each in pods)
            return
        if policy == "Foreground":
            assert await world.pods() == []

        async def gone() -> bool:
            return not await world.pods()

        await world.until(gone)


@async_test
async def test_whole_trees_go_and_what_has_another_owner_stays(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=0, only=GARBAGE, cleanup=False, scheduling=False) as world:
        root = await world.make(CONFIG_MAPS, config_map("root"))
        other = await world.make(CONFIG_MAPS, config_map("other"))
        child = await world.make(CONFIG_MAPS, config_map("child", owned_by(root)))
        await world.make(CONFIG_MAPS, config_map("grandchild", owned_by(child)))
        await world.make(CONFIG_MAPS, config_map("shared", owned_by(root), owned_by(other)))
        stranger = {**owned_by(root), "uid": "00000000-0000-0000-0000-000000000000"}
        await world.make(CONFIG_MAPS, config_map("of-nobody", stranger))
        await world.gone(CONFIG_MAPS, "of-nobody")
        await world.delete(CONFIG_MAPS, "root")
        await world.gone(CONFIG_MAPS, "grandchild")
        found = await world.when(CONFIG_MAPS, "shared", lambda it: len(it["metadata"]["ownerReferences"]) == 1)
        assert found["metadata"]["ownerReferences"][0]["name"] == "other"


@async_test
async def test_an_owner_waits_for_those_who_say_so(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=0, only=GARBAGE, cleanup=False, scheduling=False) as world:
        root = await world.make(CONFIG_MAPS, config_map("root"))
        held = {"finalizers": ["example.com/held"]}
        await world.make(CONFIG_MAPS, config_map("child", owned_by(root, block=True), **held))
        await world.delete(CONFIG_MAPS, "root", propagation="Foreground")
        await world.when(CONFIG_MAPS, "child", lambda it: it["metadata"]["deletionTimestamp"])
        assert (await world.get(CONFIG_MAPS, "root"))["metadata"]["finalizers"] == ["foregroundDeletion"]
        await world.patch(CONFIG_MAPS, "child", {"metadata": {"finalizers": None}})
        await world.gone(CONFIG_MAPS, "root")


@async_test
async def test_kinds_that_come_later_are_cleaned_up_too(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=0, only=GARBAGE, cleanup=False, scheduling=False) as world:
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
        names = {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"}
        spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
        definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        await world.served.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            {**definition, "metadata": {"name": "boats.example.com"}, "spec": spec},
        )
        path = "/apis/example.com/v1/namespaces/default/boats"

        async def offered() -> bool:
            return (await world.served.request("GET", path)).code == 200

        await world.until(offered)
        boat = await world.served.create(
            path, {"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "b"}}
        )
        await world.make(CONFIG_MAPS, config_map("cargo", owned_by(boat)))
        assert (await world.served.request("DELETE", f"{path}/b")).code == 200
        await world.gone(CONFIG_MAPS, "cargo")


@async_test
async def test_a_namespace_is_emptied_pods_first_and_goes(tmp_path: Path) -> None:
    only = ("namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller")
    async with run_controllers(tmp_path, nodes=1, only=only, cleanup=False) as world:
        await world.make(NAMESPACES, {"metadata": {"name": "team"}})

        async def furnished() -> bool:
            maps = await world.list(CONFIG_MAPS, namespace="team")
            accounts = await world.list(SERVICE_ACCOUNTS, namespace="team")
            names = [each["metadata"]["name"] for each in (*maps, *accounts)]
            return names == ["kube-root-ca.crt", "default"] and "BEGIN CERTIFICATE" in maps[0]["data"]["ca.crt"]

        await world.until(furnished)
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        await world.make(PODS, pod, namespace="team")
        held = {"metadata": {"name": "held", "finalizers": ["example.com/held"]}}
        await world.make(CONFIG_MAPS, held, namespace="team")
        await world.delete(NAMESPACES, "team")

        def remaining(found: Tree) -> bool:
            told = {each["type"]: each for each in found["status"]["conditions"]}
            return told["NamespaceFinalizersRemaining"]["message"].endswith(
                "example.com/held in 1 resource instances"
            ) and not told["NamespaceContentRemaining"]["message"].count("pods")

        await world.when(NAMESPACES, "team", remaining)
        assert await world.list(PODS, namespace="team") == []
        await world.client.patch(
            CONFIG_MAPS,
            {"metadata": {"finalizers": None}},
            namespace="team",
            name="held",
            kind="application/merge-patch+json",
        )
        await world.gone(NAMESPACES, "team")


@async_test
async def test_what_every_namespace_has_comes_back(tmp_path: Path) -> None:
    only = ("serviceaccount-controller", "root-ca-certificate-publisher-controller")
    async with run_controllers(tmp_path, nodes=0, only=only, cleanup=False, scheduling=False) as world:
        before = await world.until(lambda: world.get(SERVICE_ACCOUNTS, "default"))
        await world.delete(SERVICE_ACCOUNTS, "default")
        uid = before["metadata"]["uid"]
        await world.when(SERVICE_ACCOUNTS, "default", lambda it: it["metadata"]["uid"] != uid)
        await world.patch(CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "forged"}})
        mended = await world.when(CONFIG_MAPS, "kube-root-ca.crt", lambda it: it["data"]["ca.crt"] != "forged")
        assert mended["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
