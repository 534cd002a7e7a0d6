"""The rules for device claims in the binder that only show when somebody else acts in between, or afterwards."""

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
from support.harness.reconciler import (
    CLAIMS,
    ReconcilerHarness,
    Tree,
    run_with_reconciler,
)

FINALIZERS = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}


def allocation(*nodes: str, device: str = "gpu-0") -> Tree:
    """A device, which can be used from these nodes alone where that is said."""
    given = {"request": "gpu", "driver": "gpu.example.com", "pool": "everywhere", "device": device}
    found: Tree = {"devices": {"results": [given]}}
    if nodes:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
        found["nodeSelector"] = {"nodeSelectorTerms": terms}
    return found


async def asking(rig: ReconcilerHarness, name: str = "web", *, brought: Tree) -> Tree:
    """A pod with a claim of its name, and the request to bind it to n1 with these devices."""
    await rig.make(CLAIMS, device_claim(name, "gpu"))
    pod = await rig.pod(name, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]})
    await rig.request(pod, name=name, resourceClaimAllocations=[{"name": "gpu", "allocation": brought}], backoffLimit=1)
    return pod


async def allocated(rig: ReconcilerHarness, name: str, found: Tree | None) -> None:
    """Somebody else has given these devices to a claim, and reserved them for nobody."""
    await rig.patch(CLAIMS, name, FINALIZERS)
    await rig.patch(CLAIMS, name, {"status": {"allocation": found, "reservedFor": None}}, sub="status")


async def devices_of(rig: ReconcilerHarness, name: str) -> list[str]:
    status = (await rig.get(CLAIMS, name)).get("status", {})
    return [each["device"] for each in (status.get("allocation") or {"devices": {"results": []}})["devices"]["results"]]


class Meanwhile(DynamicResourcesBinderPlugin):
    """Somebody does something between the look at the claim of `web` and what is written to it then."""

    does: Callable[[], Awaitable[None]]

    async def _reserve_claim(self, ctx: BinderHandle, pod: Pod, *more: Any) -> ResourceClaim:
        if pod.name == "web":
            await self.does()
        return await super()._reserve_claim(ctx, pod, *more)


# devices that were written, or could not be ---------------------------------------------------------------------


def test_a_device_that_we_wrote_is_free_once_the_server_says_that_it_was_given_back(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await asking(rig, brought=allocation())
        assert await rig.sync() is None
        assert await rig.node_of() == "n1"
        await allocated(rig, "web", None)
        await rig.deliver_event(ResourceClaim, "web")
        await asking(rig, "second", brought=allocation())
        assert await rig.sync("second") is None
        assert await rig.node_of("second") == "n1"
        assert await devices_of(rig, "second") == ["gpu-0"]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_device_that_could_not_be_written_is_free_for_others(tmp_path: Path) -> None:
    plugin = Meanwhile()

    async def test(rig: ReconcilerHarness) -> None:
        plugin.does = lambda: allocated(rig, "web", allocation(device="gpu-7"))
        await asking(rig, brought=allocation())
        assert await rig.sync() is None
        assert "claim default/web got allocated elsewhere in the meantime" in (await rig.status())["reason"]
        await asking(rig, "second", brought=allocation())
        assert await rig.sync("second") is None
        assert await rig.node_of("second") == "n1"
        assert [await devices_of(rig, name) for name in ("web", "second")] == [["gpu-7"], ["gpu-0"]]

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize(("node", "is_bound"), [("n1", True), ("n2", False)])
def test_devices_that_a_claim_got_while_it_was_reserved_must_be_within_reach(
    tmp_path: Path, node: str, is_bound: bool
) -> None:
    plugin = Meanwhile()

    async def test(rig: ReconcilerHarness) -> None:
        pod = await asking(rig, brought=allocation("n1"))
        await allocated(rig, "web", allocation("n1"))
        plugin.does = lambda: allocated(rig, "web", allocation(node, device="gpu-7"))
        assert await rig.sync() is None
        assert await rig.node_of() == ("n1" if is_bound else "")
        assert await devices_of(rig, "web") == ["gpu-7"]
        users = (await rig.get(CLAIMS, "web"))["status"].get("reservedFor", [])
        assert [each["uid"] for each in users] == ([pod["metadata"]["uid"]] if is_bound else [])
        if not is_bound:
            reason = (await rig.status())["reason"]
            assert "the devices of claim default/web cannot be used from node n1" in reason

    run_with_reconciler(tmp_path, test, plugin)


# the claim behind extended resources ----------------------------------------------------------------------------


class Stealing:
    """Somebody else binds the pod to n2, once its devices are written."""

    name = "stealing"

    async def pre_bind(self, ctx: BinderHandle, pod: Pod, *_: Any) -> None:
        await ctx.client.bind(pod.namespace, pod.name, "n2", uid=pod.uid)


@pytest.mark.parametrize(
    ("reach", "stays"), [((), True), (("n1", "n2"), True), (("n1",), False)], ids=["everywhere", "both", "not there"]
)
def test_the_claim_behind_resources_stays_with_a_pod_that_can_use_it_where_it_was_bound(
    tmp_path: Path, reach: tuple[str, ...], stays: bool
) -> None:
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}
    given = {"allocation": allocation(*reach), "deviceRequests": [wanted], "containerMappings": [mapping]}

    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod()
        await rig.request(pod, extendedResourceClaimAllocation=given)
        assert await rig.sync() is None
        assert (await rig.status())["reason"] == 'the pod is bound elsewhere: to node "n2"'
        left = [each for each in (await rig.client.list(CLAIMS)).items if isinstance(each, ResourceClaim)]
        users = [user.uid for each in left for user in each.status.reserved_for]
        assert users == ([pod["metadata"]["uid"]] if stays else [])
        assert bool(left) is stays

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin(), Stealing())
