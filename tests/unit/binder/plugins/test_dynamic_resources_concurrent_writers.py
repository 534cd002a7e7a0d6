"""Binder plugin dynamicresources with concurrent writers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugins.dynamic_resources import DynamicResourcesBinderPlugin
from bayplan.objects.core import Pod
from bayplan.objects.resource import ResourceClaim
from support.e2e.volumes_and_devices import device_claim
from support.harness.reconciler import CLAIMS, ReconcilerHarness, Tree, run_with_reconciler

FINALIZERS = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}


def allocation(*nodes: str, device: str = "gpu-0") -> Tree:
    """An allocation of a device; `nodes`: the nodes that can use it, all if empty."""
    given = {"request": "gpu", "driver": "gpu.example.com", "pool": "everywhere", "device": device}
    found: Tree = {"devices": {"results": [given]}}
    if nodes:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
        found["nodeSelector"] = {"nodeSelectorTerms": terms}
    return found


async def create_pod_and_request(harness: ReconcilerHarness, name: str = "web", *, requested: Tree) -> Tree:
    """Create a pod with a claim of its name, and the request to bind it to n1 with these devices."""
    await harness.make(CLAIMS, device_claim(name, "gpu"))
    pod = await harness.pod(name, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]})
    await harness.request(
        pod, name=name, resourceClaimAllocations=[{"name": "gpu", "allocation": requested}], backoffLimit=1
    )
    return pod


async def allocate(harness: ReconcilerHarness, name: str, found: Tree | None) -> None:
    """Another client allocates these devices to a claim without a reservation."""
    await harness.patch(CLAIMS, name, FINALIZERS)
    await harness.patch(CLAIMS, name, {"status": {"allocation": found, "reservedFor": None}}, sub="status")


async def devices_of(harness: ReconcilerHarness, name: str) -> list[str]:
    status = (await harness.get(CLAIMS, name)).get("status", {})
    return [each["device"] for each in (status.get("allocation") or {"devices": {"results": []}})["devices"]["results"]]


class Meanwhile(DynamicResourcesBinderPlugin):
    """Runs a function between the read of the claim of `web` and the write."""

    does: Callable[[], Awaitable[None]]

    async def _reserve_claim(self, ctx: BinderHandle, pod: Pod, *more: Any) -> ResourceClaim:
        if pod.name == "web":
            await self.does()
        return await super()._reserve_claim(ctx, pod, *more)


# written devices, and failed writes


def test_a_written_device_is_free_once_the_server_shows_its_release(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness, requested=allocation())
        assert await harness.sync() is None
        assert await harness.node_of() == "n1"
        await allocate(harness, "web", None)
        await harness.deliver_event(ResourceClaim, "web")
        await create_pod_and_request(harness, "second", requested=allocation())
        assert await harness.sync("second") is None
        assert await harness.node_of("second") == "n1"
        assert await devices_of(harness, "second") == ["gpu-0"]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_device_whose_write_failed_is_free(tmp_path: Path) -> None:
    plugin = Meanwhile()

    async def test(harness: ReconcilerHarness) -> None:
        plugin.does = lambda: allocate(harness, "web", allocation(device="gpu-7"))
        await create_pod_and_request(harness, requested=allocation())
        assert await harness.sync() is None
        assert "claim default/web got allocated elsewhere in the meantime" in (await harness.status())["reason"]
        await create_pod_and_request(harness, "second", requested=allocation())
        assert await harness.sync("second") is None
        assert await harness.node_of("second") == "n1"
        assert [await devices_of(harness, name) for name in ("web", "second")] == [["gpu-7"], ["gpu-0"]]

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize(("node", "is_bound"), [("n1", True), ("n2", False)])
def test_devices_that_a_claim_got_during_its_reservation_must_be_accessible(
    tmp_path: Path, node: str, is_bound: bool
) -> None:
    plugin = Meanwhile()

    async def test(harness: ReconcilerHarness) -> None:
        pod = await create_pod_and_request(harness, requested=allocation("n1"))
        await allocate(harness, "web", allocation("n1"))
        plugin.does = lambda: allocate(harness, "web", allocation(node, device="gpu-7"))
        assert await harness.sync() is None
        assert await harness.node_of() == ("n1" if is_bound else "")
        assert await devices_of(harness, "web") == ["gpu-7"]
        users = (await harness.get(CLAIMS, "web"))["status"].get("reservedFor", [])
        assert [each["uid"] for each in users] == ([pod["metadata"]["uid"]] if is_bound else [])
        if not is_bound:
            reason = (await harness.status())["reason"]
            assert "the devices of claim default/web cannot be used from node n1" in reason

    run_with_reconciler(tmp_path, test, plugin)


# claims of extended resources


class Stealing:
    """Another client binds the pod to n2 after its devices are written."""

    name = "stealing"

    async def pre_bind(self, ctx: BinderHandle, pod: Pod, *_: Any) -> None:
        await ctx.client.bind(pod.namespace, pod.name, "n2", uid=pod.uid)


@pytest.mark.parametrize(
    ("reach", "stays"), [((), True), (("n1", "n2"), True), (("n1",), False)], ids=["everywhere", "both", "not there"]
)
def test_the_claim_of_extended_resources_stays_if_the_pods_node_can_use_it(
    tmp_path: Path, reach: tuple[str, ...], stays: bool
) -> None:
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}
    given = {"allocation": allocation(*reach), "deviceRequests": [wanted], "containerMappings": [mapping]}

    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.request(pod, extendedResourceClaimAllocation=given)
        assert await harness.sync() is None
        assert (await harness.status())["reason"] == 'the pod is bound elsewhere: to node "n2"'
        left = [each for each in (await harness.client.list(CLAIMS)).items if isinstance(each, ResourceClaim)]
        users = [user.uid for each in left for user in each.status.reserved_for]
        assert users == ([pod["metadata"]["uid"]] if stays else [])
        assert bool(left) is stays

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), Stealing())
