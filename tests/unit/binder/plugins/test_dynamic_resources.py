"""Binder plugin dynamicresources: writes for a pod, recovery after a crash, and rollback."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugins.dynamic_resources import DynamicResourcesBinderPlugin
from bayplan.client import MERGE_PATCH, GroupVersionResource
from bayplan.errors import NotFound
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.resource import ResourceClaim
from support.e2e.volumes_and_devices import device_claim
from support.harness.reconciler import (
    CLAIMS,
    DEFINITIONS,
    NODES,
    PODS,
    REQUESTS,
    FailingPlugin,
    ReconcilerHarness,
    Tree,
    run_with_reconciler,
)

DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
ON_N1 = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
ANY_LINUX = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux"]}]}]}
ALLOCATION = {"devices": {"results": [DEVICE]}, "nodeSelector": ON_N1}


async def create_pod_and_request(
    harness: ReconcilerHarness, entry: str = "gpu", allocation: Tree = ALLOCATION, **more: Any
) -> Tree:
    """Create a pod with a claim, and the request to bind it with a device."""
    await harness.make(CLAIMS, device_claim("mine", "gpu"))
    pod = await harness.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
    given = [{"name": entry, "allocation": allocation}]
    await harness.request(pod, resourceClaimAllocations=given, **more)
    return pod


async def claim_status(harness: ReconcilerHarness) -> Tree:
    found: Tree = (await harness.get(CLAIMS, "mine")).get("status", {})
    return found


def test_a_claim_gets_the_devices_of_the_request_and_is_reserved_for_the_pod(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await create_pod_and_request(harness)
        assert await harness.sync() is None
        status = await claim_status(harness)
        assert status["allocation"]["devices"]["results"] == [DEVICE]
        assert [each["uid"] for each in status["reservedFor"]] == [pod["metadata"]["uid"]]
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


@pytest.mark.parametrize("fate", ["gone", "made-anew", "terminating"])
def test_no_device_is_given_to_a_pod_that_is_gone(tmp_path: Path, fate: str) -> None:
    """The watch does not show it yet, and the scheduler may have given the device to another pod."""

    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness)
        if fate == "terminating":
            await harness.patch(PODS, "web", {"metadata": {"finalizers": ["example.com/held"]}})
        pod = await harness.client.get(Pod, "default", "web")
        before = await harness.get(CLAIMS, "mine")
        await harness.deliver_event(BindRequest, "web")
        await harness.client.delete(PODS, name="web", namespace="default")
        if fate == "made-anew":
            await harness.pod("web")
        harness.view.pod = AsyncMock(return_value=pod)  # type: ignore[method-assign]
        await harness.reconciler.reconcile(("default", "web"))
        after = await harness.get(CLAIMS, "mine")
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], "it was never allocated"

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_claim_that_an_earlier_attempt_reserved_is_not_written_again(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness)
        # as if the process had died here
        harness.steps.at["prepared"] = lambda: (_ for _ in ()).throw(asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await harness.sync()
        before = await harness.get(CLAIMS, "mine")
        harness.steps.at.clear()
        assert await harness.sync() is None
        assert (await harness.get(CLAIMS, "mine"))["metadata"]["resourceVersion"] == before["metadata"][
            "resourceVersion"
        ]
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_failure_unreserves_the_claim(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness)
        assert await harness.sync() is not None
        status = await claim_status(harness)
        assert not status.get("reservedFor")
        assert not status.get("allocation")

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), FailingPlugin())


class Interrupted(DynamicResourcesBinderPlugin):
    """Another client writes to the claim between the read and the write."""

    async def _keeps_allocation(self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, *more: Any) -> bool:
        found = await super()._keeps_allocation(ctx, pod, claim, *more)
        if "seen" not in claim.metadata.labels:
            body = {"metadata": {"labels": {"seen": ""}}}
            await ctx.client.patch(CLAIMS, body, name=claim.name, namespace=claim.namespace, kind=MERGE_PATCH)
        return found


def test_a_claim_with_a_concurrent_writer_is_released(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness)
        assert await harness.sync() is not None
        assert "seen" in (await harness.get(CLAIMS, "mine"))["metadata"]["labels"]
        assert await is_free(harness)

    run_with_reconciler(tmp_path, test, Interrupted(), FailingPlugin())


def test_a_claim_with_other_users_keeps_its_devices(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness)
        other = {"resource": "pods", "name": "other", "uid": "other-uid"}
        shared = {"status": {"allocation": ALLOCATION, "reservedFor": [other]}}
        await harness.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await harness.patch(CLAIMS, "mine", shared, sub="status")
        assert await harness.sync() is not None
        status = await claim_status(harness)
        assert [each["uid"] for each in status["reservedFor"]] == ["other-uid"]
        assert status["allocation"]["devices"]["results"] == [DEVICE]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), FailingPlugin())


def test_claims_are_read_and_written_in_the_served_version(tmp_path: Path) -> None:
    """Older servers have another version; this test uses another group instead."""
    dated = replace(CLAIMS, group="claims.example.com", version="v1beta2")

    async def test(harness: ReconcilerHarness) -> None:
        await harness.make(DEFINITIONS, definition_of(dated))
        await until_served(harness, dated)
        body = {**device_claim("mine", "gpu"), "apiVersion": dated.api_version}
        await harness.make(dated, body)
        pod = await harness.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
        await harness.request(pod, resourceClaimAllocations=[{"name": "gpu", "allocation": ALLOCATION}])
        assert await harness.sync() is None
        assert await harness.node_of() == "n1"
        status = (await harness.get(dated, "mine"))["status"]
        assert [each["uid"] for each in status["reservedFor"]] == [pod["metadata"]["uid"]]
        assert status["allocation"]["devices"]["results"] == [DEVICE]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), claims=dated)


def definition_of(resource: GroupVersionResource) -> Tree:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    }
    names = {"plural": resource.plural, "kind": "ResourceClaim"}
    spec = {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [served]}
    return {"metadata": {"name": f"{resource.plural}.{resource.group}"}, "spec": spec}


async def until_served(harness: ReconcilerHarness, resource: GroupVersionResource) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await harness.client.list(resource)
                return
            except NotFound:
                await asyncio.sleep(0.01)


def test_a_server_without_claims_fails_the_attempt_with_a_reason(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness, backoffLimit=1)
        assert await harness.sync() is None
        assert "the API server offers no resource claims" in (await harness.status())["reason"]
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), claims=None)


def dies() -> None:
    """As if the process had died here."""
    raise asyncio.CancelledError


async def crash_after_reservation(harness: ReconcilerHarness) -> Tree:
    """Create a claim that a binder allocated and reserved before it died."""
    pod = await create_pod_and_request(harness)
    harness.steps.at["prepared"] = dies
    with pytest.raises(asyncio.CancelledError):
        await harness.sync()
    harness.steps.at.clear()
    assert (await claim_status(harness))["reservedFor"]
    return pod


async def is_free(harness: ReconcilerHarness) -> bool:
    status = await claim_status(harness)
    return not status.get("reservedFor") and not status.get("allocation")


def test_a_claim_is_free_when_the_node_is_deleted_after_a_crash(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await crash_after_reservation(harness)
        harness.view.handle_event(harness.view.node("n1"), None)
        assert await harness.sync() is not None
        assert (await harness.status())["reason"] == 'node "n1" is not there'
        assert await is_free(harness)

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_claim_is_free_when_the_pod_is_bound_elsewhere_after_a_crash(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await crash_after_reservation(harness)
        await harness.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        assert await harness.sync() is None
        assert await is_free(harness)

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


@pytest.mark.parametrize("is_recreated", [False, True], ids=["gone", "another of its name"])
def test_a_claim_is_free_when_the_pod_is_deleted_after_a_crash(tmp_path: Path, is_recreated: bool) -> None:
    """The deleted pod no longer names its claims."""

    async def test(harness: ReconcilerHarness) -> None:
        pod = await crash_after_reservation(harness)
        await harness.make(CLAIMS, device_claim("other", "gpu"))
        other_devices = {"devices": {"results": [{**DEVICE, "device": "gpu-1"}]}}
        user = {"resource": "pods", "name": "other", "uid": "other-uid"}
        await harness.patch(CLAIMS, "other", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await harness.patch(
            CLAIMS, "other", {"status": {"allocation": other_devices, "reservedFor": [user]}}, sub="status"
        )
        before = await harness.get(CLAIMS, "other")
        unowned = {"metadata": {"ownerReferences": None}, "spec": {"podUID": pod["metadata"]["uid"]}}
        await harness.patch(REQUESTS, "web", unowned)  # so that it is not garbage-collected
        await harness.client.delete(PODS, name="web", namespace="default")
        if is_recreated:
            await harness.pod()
        assert await harness.sync() is None
        assert (await harness.status())["reason"].startswith("the pod is gone")
        assert await is_free(harness)
        assert await harness.get(CLAIMS, "other") == before

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_devices_that_another_client_allocated_to_a_pod_on_another_node_are_kept(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await create_pod_and_request(harness)
        user = {"resource": "pods", "name": "web", "uid": pod["metadata"]["uid"]}
        other_devices = {"devices": {"results": [{**DEVICE, "pool": "n2"}]}}
        await harness.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await harness.patch(
            CLAIMS, "mine", {"status": {"allocation": other_devices, "reservedFor": [user]}}, sub="status"
        )
        await harness.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        before = await claim_status(harness)
        assert await harness.sync() is None
        assert await claim_status(harness) == before

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


@pytest.mark.parametrize("reach", [{}, {"nodeSelector": ANY_LINUX}], ids=["everywhere", "some nodes"])
def test_devices_of_a_request_that_are_accessible_from_the_pods_node_are_kept(reach: Tree, tmp_path: Path) -> None:
    """Another scheduler may have chosen the same devices, which are accessible from both nodes."""

    async def test(harness: ReconcilerHarness) -> None:
        allocation = {"devices": {"results": [DEVICE]}, **reach}
        pod = await create_pod_and_request(harness, allocation=allocation)
        await harness.patch(NODES, "n2", {"metadata": {"labels": {"os": "linux"}}})
        user = {"resource": "pods", "name": "web", "uid": pod["metadata"]["uid"]}
        await harness.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await harness.patch(CLAIMS, "mine", {"status": {"allocation": allocation, "reservedFor": [user]}}, sub="status")
        await harness.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        before = await claim_status(harness)
        assert await harness.sync() is None
        assert await claim_status(harness) == before

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_an_unknown_claim_entry_fails_the_attempt_with_a_reason(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness, entry="nic", backoffLimit=1)
        assert await harness.sync() is None
        assert 'has no entry "nic" in its resourceClaims' in (await harness.status())["reason"]
        assert not (await claim_status(harness)).get("allocation")

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_claim_of_a_template_is_found_by_the_pods_status(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.make(CLAIMS, device_claim("mine", "gpu"))
        pod = await harness.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "each"}]})
        await harness.request(pod, resourceClaimAllocations=[{"name": "gpu", "allocation": ALLOCATION}])
        assert await harness.sync() is not None
        assert 'the claim of entry "gpu" of pod default/web is not made yet' in (await harness.status())["reason"]
        made = [{"name": "gpu", "resourceClaimName": "mine"}]
        await harness.patch(PODS, "web", {"status": {"resourceClaimStatuses": made}}, sub="status")
        assert await harness.sync() is None
        assert (await claim_status(harness))["allocation"]["devices"]["results"] == [DEVICE]
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


AWAITED = {"devices": {"results": [{**DEVICE, "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}]}}


@pytest.mark.parametrize("ready", ["True", "False"])
def test_the_attempt_waits_for_binding_conditions_of_a_device(tmp_path: Path, ready: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.make(CLAIMS, device_claim("mine", "gpu"))
        await harness.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": "Made",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        where = {key: DEVICE[key] for key in ("driver", "pool", "device")}
        known = {"allocation": AWAITED, "devices": [{**where, "conditions": [condition]}]}
        await harness.patch(CLAIMS, "mine", {"status": known}, sub="status")
        await harness.deliver_event(ResourceClaim, "mine")
        pod = await harness.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
        await harness.request(pod, resourceClaimAllocations=[{"name": "gpu"}], backoffLimit=1)
        assert await harness.sync() is None
        assert await harness.node_of() == ("n1" if ready == "True" else "")
        if ready == "False":
            assert "timeout" in (await harness.status())["reason"]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(0.05))


async def create_pod_with_extended_resource(harness: ReconcilerHarness) -> None:
    """Create a pod that requests devices by an extended resource, and the request to bind it with one."""
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}
    given = {"allocation": ALLOCATION, "deviceRequests": [wanted], "containerMappings": [mapping]}
    await harness.request(await harness.pod(), extendedResourceClaimAllocation=given)


async def claim_names(harness: ReconcilerHarness) -> list[str]:
    return [each.name for each in (await harness.client.list(CLAIMS)).items if isinstance(each, ResourceClaim)]


def test_the_claim_of_extended_resources_is_created_once_and_found_after_a_crash(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_with_extended_resource(harness)
        # as if the process had died here
        harness.steps.at["prepared"] = lambda: (_ for _ in ()).throw(asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await harness.sync()
        before = await claim_names(harness)
        harness.steps.at.clear()
        assert await harness.sync() is None
        assert await claim_names(harness) == before
        (name,) = before
        assert name.startswith("web-extended-resources-")
        status = (await harness.get(CLAIMS, name))["status"]
        assert status["allocation"]["devices"]["results"] == [DEVICE]
        assert (await harness.get(PODS, "web"))["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == name

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_the_claim_of_extended_resources_is_deleted_after_a_failure(tmp_path: Path) -> None:
    class Looking(FailingPlugin):
        found = 0

        async def pre_bind(self, ctx: BinderHandle, *_: Any) -> None:
            self.found = len((await ctx.client.list(CLAIMS)).items)
            await super().pre_bind()

    plugin = Looking()

    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_with_extended_resource(harness)
        assert await harness.sync() is not None
        assert plugin.found == 1
        assert await claim_names(harness) == []

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), plugin)
