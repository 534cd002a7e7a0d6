"""Devices in the binder: what is written for a pod, found again after a crash, and taken back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugins.dynamic_resources import DynamicResources
from bayplan.client import MERGE_PATCH, Resource
from bayplan.errors import NotFound
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.core import Pod
from bayplan.objects.resource import ResourceClaim
from binder_rig import CLAIMS, DEFINITIONS, NODES, PODS, REQUESTS, BinderRig, Failing, Tree, on_rig
from needs import device_claim

DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
ON_N1 = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
ANY_LINUX = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux"]}]}]}
ALLOCATION = {"devices": {"results": [DEVICE]}, "nodeSelector": ON_N1}


async def asking(rig: BinderRig, entry: str = "gpu", allocation: Tree = ALLOCATION, **more: Any) -> Tree:
    """A pod with a claim, and the request to bind it with a device."""
    await rig.make(CLAIMS, device_claim("mine", "gpu"))
    pod = await rig.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
    given = [{"name": entry, "allocation": allocation}]
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


@pytest.mark.parametrize("fate", ["gone", "made-anew", "terminating"])
def test_no_device_is_given_to_a_pod_that_is_gone(tmp_path: Path, fate: str) -> None:
    """The watch does not show it yet, and the scheduler may have given the device to another pod."""

    async def test(rig: BinderRig) -> None:
        await asking(rig)
        if fate == "terminating":
            await rig.patch(PODS, "web", {"metadata": {"finalizers": ["example.com/held"]}})
        pod = await rig.client.get(Pod, "default", "web")
        before = await rig.get(CLAIMS, "mine")
        await rig.hear(BindRequest, "web")
        await rig.client.delete(PODS, name="web", namespace="default")
        if fate == "made-anew":
            await rig.pod("web")
        rig.view.pod = AsyncMock(return_value=pod)  # type: ignore[method-assign]
        await rig.reconciler.sync(("default", "web"))
        after = await rig.get(CLAIMS, "mine")
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], "it was never allocated"

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


class Interrupted(DynamicResources):
    """Somebody writes to the claim between the look at it and the write."""

    async def _stays(self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, *more: Any) -> bool:
        found = await super()._stays(ctx, pod, claim, *more)
        if "seen" not in claim.metadata.labels:
            body = {"metadata": {"labels": {"seen": ""}}}
            await ctx.client.patch(CLAIMS, body, name=claim.name, namespace=claim.namespace, kind=MERGE_PATCH)
        return found


def test_a_claim_that_somebody_writes_to_meanwhile_is_given_back(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig)
        assert await rig.sync() is not None
        assert "seen" in (await rig.get(CLAIMS, "mine"))["metadata"]["labels"]
        assert await is_free(rig)

    on_rig(tmp_path, test, Interrupted(), Failing())


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


def test_claims_are_read_and_written_as_the_server_offers_them(tmp_path: Path) -> None:
    """Older servers have them in another version; here another group stands for that."""
    dated = replace(CLAIMS, group="claims.example.com", version="v1beta2")

    async def test(rig: BinderRig) -> None:
        await rig.make(DEFINITIONS, definition_of(dated))
        await until_served(rig, dated)
        body = {**device_claim("mine", "gpu"), "apiVersion": dated.api_version}
        await rig.make(dated, body)
        pod = await rig.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
        await rig.request(pod, resourceClaimAllocations=[{"name": "gpu", "allocation": ALLOCATION}])
        assert await rig.sync() is None
        assert await rig.node_of() == "n1"
        status = (await rig.get(dated, "mine"))["status"]
        assert [each["uid"] for each in status["reservedFor"]] == [pod["metadata"]["uid"]]
        assert status["allocation"]["devices"]["results"] == [DEVICE]

    on_rig(tmp_path, test, DynamicResources(), claims=dated)


def definition_of(resource: Resource) -> Tree:
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


async def until_served(rig: BinderRig, resource: Resource) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await rig.client.list(resource)
                return
            except NotFound:
                await asyncio.sleep(0.01)


def test_a_server_without_claims_fails_the_attempt_with_a_sentence(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig, backoffLimit=1)
        assert await rig.sync() is None
        assert "the API server offers no resource claims" in (await rig.status())["reason"]
        assert await rig.node_of() == ""

    on_rig(tmp_path, test, DynamicResources(), claims=None)


def dies() -> None:
    """As if the process had died here."""
    raise asyncio.CancelledError


async def left_behind(rig: BinderRig) -> Tree:
    """A claim that a binder has allocated and reserved before it died."""
    pod = await asking(rig)
    rig.steps.at["prepared"] = dies
    with pytest.raises(asyncio.CancelledError):
        await rig.sync()
    rig.steps.at.clear()
    assert (await told(rig))["reservedFor"]
    return pod


async def is_free(rig: BinderRig) -> bool:
    status = await told(rig)
    return not status.get("reservedFor") and not status.get("allocation")


def test_a_claim_is_free_when_the_node_goes_after_a_crash(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await left_behind(rig)
        rig.view.hear(rig.view.node("n1"), None)
        assert await rig.sync() is not None
        assert (await rig.status())["reason"] == 'node "n1" is not there'
        assert await is_free(rig)

    on_rig(tmp_path, test, DynamicResources())


def test_a_claim_is_free_when_the_pod_is_bound_elsewhere_after_a_crash(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        pod = await left_behind(rig)
        await rig.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        assert await rig.sync() is None
        assert await is_free(rig)

    on_rig(tmp_path, test, DynamicResources())


@pytest.mark.parametrize("made_anew", [False, True], ids=["gone", "another of its name"])
def test_a_claim_is_free_when_the_pod_goes_after_a_crash(tmp_path: Path, made_anew: bool) -> None:
    """Nobody knows any more which claims were the pod's."""

    async def test(rig: BinderRig) -> None:
        pod = await left_behind(rig)
        await rig.make(CLAIMS, device_claim("other", "gpu"))
        others = {"devices": {"results": [{**DEVICE, "device": "gpu-1"}]}}
        user = {"resource": "pods", "name": "other", "uid": "other-uid"}
        await rig.patch(CLAIMS, "other", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await rig.patch(CLAIMS, "other", {"status": {"allocation": others, "reservedFor": [user]}}, sub="status")
        before = await rig.get(CLAIMS, "other")
        unowned = {"metadata": {"ownerReferences": None}, "spec": {"podUID": pod["metadata"]["uid"]}}
        await rig.patch(REQUESTS, "web", unowned)  # so that nobody collects it
        await rig.client.delete(PODS, name="web", namespace="default")
        if made_anew:
            await rig.pod()
        assert await rig.sync() is None
        assert (await rig.status())["reason"].startswith("the pod is gone")
        assert await is_free(rig)
        assert await rig.get(CLAIMS, "other") == before

    on_rig(tmp_path, test, DynamicResources())


def test_devices_that_somebody_else_gave_to_a_pod_on_another_node_stay_its_own(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        pod = await asking(rig)
        user = {"resource": "pods", "name": "web", "uid": pod["metadata"]["uid"]}
        others = {"devices": {"results": [{**DEVICE, "pool": "n2"}]}}
        await rig.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await rig.patch(CLAIMS, "mine", {"status": {"allocation": others, "reservedFor": [user]}}, sub="status")
        await rig.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        before = await told(rig)
        assert await rig.sync() is None
        assert await told(rig) == before

    on_rig(tmp_path, test, DynamicResources())


@pytest.mark.parametrize("reach", [{}, {"nodeSelector": ANY_LINUX}], ids=["everywhere", "some nodes"])
def test_the_devices_of_a_request_that_a_pod_can_use_where_it_was_bound_stay_its_own(
    reach: Tree, tmp_path: Path
) -> None:
    """Another scheduler may have chosen the very same ones, which both nodes can reach."""

    async def test(rig: BinderRig) -> None:
        allocation = {"devices": {"results": [DEVICE]}, **reach}
        pod = await asking(rig, allocation=allocation)
        await rig.patch(NODES, "n2", {"metadata": {"labels": {"os": "linux"}}})
        user = {"resource": "pods", "name": "web", "uid": pod["metadata"]["uid"]}
        await rig.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        await rig.patch(CLAIMS, "mine", {"status": {"allocation": allocation, "reservedFor": [user]}}, sub="status")
        await rig.client.bind("default", "web", "n2", uid=pod["metadata"]["uid"])
        before = await told(rig)
        assert await rig.sync() is None
        assert await told(rig) == before

    on_rig(tmp_path, test, DynamicResources())


def test_an_entry_that_the_pod_does_not_have_fails_the_attempt_with_a_sentence(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig, entry="nic", backoffLimit=1)
        assert await rig.sync() is None
        assert 'has no entry "nic" in its resourceClaims' in (await rig.status())["reason"]
        assert not (await told(rig)).get("allocation")

    on_rig(tmp_path, test, DynamicResources())


def test_a_claim_that_was_made_of_a_template_is_found_by_what_the_pod_says(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.make(CLAIMS, device_claim("mine", "gpu"))
        pod = await rig.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "each"}]})
        await rig.request(pod, resourceClaimAllocations=[{"name": "gpu", "allocation": ALLOCATION}])
        assert await rig.sync() is not None
        assert 'the claim of entry "gpu" of pod default/web is not made yet' in (await rig.status())["reason"]
        made = [{"name": "gpu", "resourceClaimName": "mine"}]
        await rig.patch(PODS, "web", {"status": {"resourceClaimStatuses": made}}, sub="status")
        assert await rig.sync() is None
        assert (await told(rig))["allocation"]["devices"]["results"] == [DEVICE]
        assert await rig.node_of() == "n1"

    on_rig(tmp_path, test, DynamicResources())


AWAITED = {"devices": {"results": [{**DEVICE, "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}]}}


@pytest.mark.parametrize("ready", ["True", "False"])
def test_a_device_that_must_be_made_ready_is_waited_for(tmp_path: Path, ready: str) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.make(CLAIMS, device_claim("mine", "gpu"))
        await rig.patch(CLAIMS, "mine", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": "Made",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        where = {key: DEVICE[key] for key in ("driver", "pool", "device")}
        known = {"allocation": AWAITED, "devices": [{**where, "conditions": [condition]}]}
        await rig.patch(CLAIMS, "mine", {"status": known}, sub="status")
        await rig.hear(ResourceClaim, "mine")
        pod = await rig.pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]})
        await rig.request(pod, resourceClaimAllocations=[{"name": "gpu"}], backoffLimit=1)
        assert await rig.sync() is None
        assert await rig.node_of() == ("n1" if ready == "True" else "")
        if ready == "False":
            assert "timeout" in (await rig.status())["reason"]

    on_rig(tmp_path, test, DynamicResources(0.05))


async def asking_by_resource(rig: BinderRig) -> None:
    """A pod that asks for devices by the name of a resource, and the request to bind it with one."""
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}
    given = {"allocation": ALLOCATION, "deviceRequests": [wanted], "containerMappings": [mapping]}
    await rig.request(await rig.pod(), extendedResourceClaimAllocation=given)


async def made_claims(rig: BinderRig) -> list[str]:
    return [each.name for each in (await rig.client.list(CLAIMS)).items if isinstance(each, ResourceClaim)]


def test_the_claim_behind_resources_is_made_once_and_found_again_after_a_crash(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking_by_resource(rig)
        rig.steps.at["prepared"] = lambda: (_ for _ in ()).throw(asyncio.CancelledError)  # as if it had died here
        with pytest.raises(asyncio.CancelledError):
            await rig.sync()
        before = await made_claims(rig)
        rig.steps.at.clear()
        assert await rig.sync() is None
        assert await made_claims(rig) == before
        (name,) = before
        assert name.startswith("web-extended-resources-")
        status = (await rig.get(CLAIMS, name))["status"]
        assert status["allocation"]["devices"]["results"] == [DEVICE]
        assert (await rig.get(PODS, "web"))["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == name

    on_rig(tmp_path, test, DynamicResources())


def test_the_claim_behind_resources_goes_with_a_failure(tmp_path: Path) -> None:
    class Looking(Failing):
        found = 0

        async def pre_bind(self, ctx: BinderHandle, *_: Any) -> None:
            self.found = len((await ctx.client.list(CLAIMS)).items)
            await super().pre_bind()

    plugin = Looking()

    async def test(rig: BinderRig) -> None:
        await asking_by_resource(rig)
        assert await rig.sync() is not None
        assert plugin.found == 1
        assert await made_claims(rig) == []

    on_rig(tmp_path, test, DynamicResources(), plugin)
