"""Binder plugin dynamicresources: devices of other nodes and other claims fail the attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugins.dynamic_resources import DynamicResourcesBinderPlugin
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.resource import ResourceClaim
from support.e2e.volumes_and_devices import device_claim
from support.harness.reconciler import CLAIMS, NAMESPACE, ReconcilerHarness, Tree, run_with_reconciler

DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
SHARE = {"shareID": "11111111-1111-4111-8111-111111111111"}
ANOTHER_SHARE = {"shareID": "22222222-2222-4222-8222-222222222222"}
FINALIZERS = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}


def allocation(node: str = "", **device: str) -> Tree:
    """An allocation of a device; `node`: the node that can use it, all if empty."""
    found: Tree = {"devices": {"results": [{**DEVICE, **device}]}}
    if node:
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return found


async def create_pod_and_request(harness: ReconcilerHarness, given: list[Tree], name: str = "web", **more: Any) -> Tree:
    """Create a pod with a claim of its name, and the request to bind it to n1."""
    await harness.make(CLAIMS, device_claim(name, "gpu"))
    pod = await harness.pod(name, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]})
    await harness.request(pod, name=name, resourceClaimAllocations=given, **more)
    return pod


def allocations(brought: Tree) -> list[Tree]:
    return [{"name": "gpu", "allocation": brought}]


async def allocate(harness: ReconcilerHarness, name: str, found: Tree, *users: str) -> None:
    """Another client allocates devices to a claim."""
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    await harness.patch(CLAIMS, name, FINALIZERS)
    await harness.patch(CLAIMS, name, {"status": {"allocation": found, "reservedFor": reserved}}, sub="status")


async def status_of(harness: ReconcilerHarness, name: str = "web") -> Tree:
    found: Tree = (await harness.get(CLAIMS, name)).get("status", {})
    return found


FAR = "the devices of claim default/web cannot be used from node n1"


@pytest.mark.parametrize(
    "given",
    [allocations(allocation("n1")), allocations(allocation("n2")), [{"name": "gpu"}], []],
    ids=["with a device of its own", "with that very device", "with none", "without a word"],
)
@pytest.mark.parametrize("is_reserved", [False, True], ids=["free", "reserved for the pod"])
def test_a_claim_with_devices_of_another_node_fails_the_attempt(
    tmp_path: Path, given: list[Tree], is_reserved: bool
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await create_pod_and_request(harness, given, backoffLimit=1)
        users = [pod["metadata"]["uid"]] if is_reserved else []
        await allocate(harness, "web", allocation("n2", device="gpu-7"), *users)
        assert await harness.sync() is None
        found = await harness.status()
        assert (found["phase"], FAR in found["reason"]) == ("Failed", True)
        assert await harness.node_of() == ""
        status = await status_of(harness)
        assert status["allocation"]["devices"]["results"][0]["device"] == "gpu-7"
        assert not status.get("reservedFor")

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_accessible_devices_that_a_claim_got_meanwhile_are_used(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await create_pod_and_request(harness, allocations(allocation("n1")))
        await allocate(harness, "web", allocation("n1", device="gpu-7"), "another")
        assert await harness.sync() is None
        assert await harness.node_of() == "n1"
        status = await status_of(harness)
        assert [each["device"] for each in status["allocation"]["devices"]["results"]] == ["gpu-7"]
        assert [each["uid"] for each in status["reservedFor"]] == ["another", pod["metadata"]["uid"]]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_an_unallocated_claim_that_the_request_does_not_name_fails_the_attempt(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness, [], backoffLimit=1)
        assert await harness.sync() is None
        assert "claim default/web has no devices, and the request brings none" in (await harness.status())["reason"]
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_request_with_a_device_of_another_node_fails(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await create_pod_and_request(harness, allocations(allocation("n2")), backoffLimit=1)
        assert await harness.sync() is None
        words = "the devices brought for claim default/web cannot be used from node n1"
        assert words in (await harness.status())["reason"]
        assert await harness.node_of() == ""
        assert not (await status_of(harness)).get("allocation")

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


@pytest.mark.parametrize(
    ("theirs", "brought", "is_free"),
    [
        pytest.param({}, {}, False, id="whole and whole"),
        pytest.param(SHARE, {}, False, id="a share and whole"),
        pytest.param({}, SHARE, False, id="whole and a share"),
        pytest.param(SHARE, ANOTHER_SHARE, True, id="two shares"),
        pytest.param({"device": "gpu-1"}, {}, True, id="two devices"),
    ],
)
def test_a_device_of_another_claim_is_not_allocated_again(
    tmp_path: Path, theirs: Tree, brought: Tree, is_free: bool
) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.make(CLAIMS, device_claim("theirs", "gpu"))
        await allocate(harness, "theirs", allocation("n1", **theirs), "another")
        await harness.deliver_event(ResourceClaim, "theirs")
        await create_pod_and_request(harness, allocations(allocation("n1", **brought)), backoffLimit=1)
        assert await harness.sync() is None
        assert await harness.node_of() == ("n1" if is_free else "")
        assert bool((await status_of(harness)).get("allocation")) is is_free
        if not is_free:
            words = (
                "device gpu.example.com/n1/gpu-0, which claim default/web is to get, is that of claim default/theirs"
            )
            assert words in (await harness.status())["reason"]

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


@pytest.mark.parametrize("is_gone", [False, True], ids=["given back", "gone"])
def test_a_released_device_is_free_before_the_watch_shows_it(tmp_path: Path, is_gone: bool) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.make(CLAIMS, device_claim("theirs", "gpu"))
        await allocate(harness, "theirs", allocation("n1"))
        await harness.deliver_event(ResourceClaim, "theirs")
        await harness.patch(CLAIMS, "theirs", {"status": {"allocation": None}}, sub="status")
        await harness.patch(CLAIMS, "theirs", {"metadata": {"finalizers": None}})
        if is_gone:
            await harness.client.delete(CLAIMS, name="theirs", namespace=NAMESPACE)
        await create_pod_and_request(harness, allocations(allocation("n1")))
        assert await harness.sync() is None
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_one_of_two_concurrent_requests_for_a_device_gets_it(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        for name in ("one", "two"):
            await create_pod_and_request(harness, allocations(allocation("n1")), name, backoffLimit=1)
            await harness.deliver_event(BindRequest, name)
        await asyncio.gather(*(harness.reconciler.reconcile((NAMESPACE, name)) for name in ("one", "two")))
        nodes = [await harness.node_of(name) for name in ("one", "two")]
        assert sorted(nodes) == ["", "n1"]
        late = ("one", "two")[nodes.index("")]
        assert "is that of claim default/" in (await harness.status(late))["reason"]
        assert not (await status_of(harness, late)).get("allocation")

    run_with_reconciler(tmp_path, test, DynamicResourcesBinderPlugin())


def test_a_claim_that_gets_the_device_while_it_is_read_keeps_it(tmp_path: Path) -> None:
    """The watch is late: it still shows the second claim with the device, which the server shows as free. While the
    first request reads that claim, the second request is carried out."""

    class SlowRead(DynamicResourcesBinderPlugin):
        is_first = True

        async def pre_bind(self, ctx: BinderHandle, *args: Any) -> None:
            await super().pre_bind(DuringRead(ctx) if self.is_first else ctx, *args)

    class DuringRead:
        """The handle, but a second request is carried out between the answer to a read of claim `two` and its use."""

        def __init__(self, ctx: BinderHandle) -> None:
            self._ctx = ctx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._ctx, name)

        async def read_claim(self, namespace: str, name: str) -> ResourceClaim:
            found = await self._ctx.read_claim(namespace, name)
            if name == "two" and plugin.is_first:
                plugin.is_first = False
                assert await harnesses[0].sync("two") is None
            return found

    plugin = SlowRead()
    harnesses: list[ReconcilerHarness] = []

    async def test(harness: ReconcilerHarness) -> None:
        harnesses.append(harness)
        for name in ("one", "two"):
            await create_pod_and_request(harness, allocations(allocation("n1")), name, backoffLimit=1)
            await harness.deliver_event(BindRequest, name)
        await allocate(harness, "two", allocation("n1"))
        await harness.deliver_event(ResourceClaim, "two")
        await harness.patch(CLAIMS, "two", {"status": {"allocation": None}}, sub="status")
        assert await harness.sync("one") is None
        assert not plugin.is_first
        assert [await harness.node_of(name) for name in ("one", "two")] == ["", "n1"]
        assert "is that of claim default/two" in (await harness.status("one"))["reason"]
        assert not (await status_of(harness, "one")).get("allocation")

    run_with_reconciler(tmp_path, test, plugin)
