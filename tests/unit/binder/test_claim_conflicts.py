"""Devices that are not where the pod is to go, or are somebody else's: the attempt fails, and nobody gets them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.binder.plugins.dynamic_resources import DynamicResources
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.resource import ResourceClaim
from binder_rig import CLAIMS, SPACE, BinderRig, Tree, on_rig
from needs import device_claim

DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
SHARE = {"shareID": "11111111-1111-4111-8111-111111111111"}
ANOTHER_SHARE = {"shareID": "22222222-2222-4222-8222-222222222222"}
FINALIZERS = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}


def allocation(node: str = "", **device: str) -> Tree:
    """A device, which can be used from one node where that is said."""
    found: Tree = {"devices": {"results": [{**DEVICE, **device}]}}
    if node:
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return found


async def asking(rig: BinderRig, given: list[Tree], name: str = "web", **more: Any) -> Tree:
    """A pod with a claim of its name, and the request to bind it to n1."""
    await rig.make(CLAIMS, device_claim(name, "gpu"))
    pod = await rig.pod(name, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]})
    await rig.request(pod, name=name, resourceClaimAllocations=given, **more)
    return pod


def bringing(brought: Tree) -> list[Tree]:
    return [{"name": "gpu", "allocation": brought}]


async def allocated(rig: BinderRig, name: str, found: Tree, *users: str) -> None:
    """Somebody else has given devices to a claim."""
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    await rig.patch(CLAIMS, name, FINALIZERS)
    await rig.patch(CLAIMS, name, {"status": {"allocation": found, "reservedFor": reserved}}, sub="status")


async def status_of(rig: BinderRig, name: str = "web") -> Tree:
    found: Tree = (await rig.get(CLAIMS, name)).get("status", {})
    return found


FAR = "the devices of claim default/web cannot be used from node n1"


@pytest.mark.parametrize(
    "given",
    [bringing(allocation("n1")), bringing(allocation("n2")), [{"name": "gpu"}], []],
    ids=["with a device of its own", "with that very device", "with none", "without a word"],
)
@pytest.mark.parametrize("is_reserved", [False, True], ids=["free", "reserved for the pod"])
def test_a_claim_whose_devices_are_on_another_node_keeps_the_pod_off_this_one(
    tmp_path: Path, given: list[Tree], is_reserved: bool
) -> None:
    async def test(rig: BinderRig) -> None:
        pod = await asking(rig, given, backoffLimit=1)
        users = [pod["metadata"]["uid"]] if is_reserved else []
        await allocated(rig, "web", allocation("n2", device="gpu-7"), *users)
        assert await rig.sync() is None
        found = await rig.status()
        assert (found["phase"], FAR in found["reason"]) == ("Failed", True)
        assert await rig.node_of() == ""
        status = await status_of(rig)
        assert status["allocation"]["devices"]["results"][0]["device"] == "gpu-7"
        assert not status.get("reservedFor")

    on_rig(tmp_path, test, DynamicResources())


def test_devices_that_a_claim_has_got_meanwhile_are_used_where_they_can_be(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        pod = await asking(rig, bringing(allocation("n1")))
        await allocated(rig, "web", allocation("n1", device="gpu-7"), "another")
        assert await rig.sync() is None
        assert await rig.node_of() == "n1"
        status = await status_of(rig)
        assert [each["device"] for each in status["allocation"]["devices"]["results"]] == ["gpu-7"]
        assert [each["uid"] for each in status["reservedFor"]] == ["another", pod["metadata"]["uid"]]

    on_rig(tmp_path, test, DynamicResources())


def test_a_claim_that_nobody_has_allocated_and_the_request_does_not_name_keeps_the_pod_off(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig, [], backoffLimit=1)
        assert await rig.sync() is None
        assert "claim default/web has no devices, and the request brings none" in (await rig.status())["reason"]
        assert await rig.node_of() == ""

    on_rig(tmp_path, test, DynamicResources())


def test_a_request_that_brings_a_device_of_another_node_fails(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        await asking(rig, bringing(allocation("n2")), backoffLimit=1)
        assert await rig.sync() is None
        words = "the devices brought for claim default/web cannot be used from node n1"
        assert words in (await rig.status())["reason"]
        assert await rig.node_of() == ""
        assert not (await status_of(rig)).get("allocation")

    on_rig(tmp_path, test, DynamicResources())


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
def test_a_device_of_another_claim_is_not_given_out_again(
    tmp_path: Path, theirs: Tree, brought: Tree, is_free: bool
) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.make(CLAIMS, device_claim("theirs", "gpu"))
        await allocated(rig, "theirs", allocation("n1", **theirs), "another")
        await rig.hear(ResourceClaim, "theirs")
        await asking(rig, bringing(allocation("n1", **brought)), backoffLimit=1)
        assert await rig.sync() is None
        assert await rig.node_of() == ("n1" if is_free else "")
        assert bool((await status_of(rig)).get("allocation")) is is_free
        if not is_free:
            words = (
                "device gpu.example.com/n1/gpu-0, which claim default/web is to get, is that of claim default/theirs"
            )
            assert words in (await rig.status())["reason"]

    on_rig(tmp_path, test, DynamicResources())


@pytest.mark.parametrize("is_gone", [False, True], ids=["given back", "gone"])
def test_a_device_that_was_given_back_is_free_though_the_watch_has_not_told(tmp_path: Path, is_gone: bool) -> None:
    async def test(rig: BinderRig) -> None:
        await rig.make(CLAIMS, device_claim("theirs", "gpu"))
        await allocated(rig, "theirs", allocation("n1"))
        await rig.hear(ResourceClaim, "theirs")
        await rig.patch(CLAIMS, "theirs", {"status": {"allocation": None}}, sub="status")
        await rig.patch(CLAIMS, "theirs", {"metadata": {"finalizers": None}})
        if is_gone:
            await rig.client.delete(CLAIMS, name="theirs", namespace=SPACE)
        await asking(rig, bringing(allocation("n1")))
        assert await rig.sync() is None
        assert await rig.node_of() == "n1"

    on_rig(tmp_path, test, DynamicResources())


def test_of_two_requests_that_bring_the_same_device_at_once_one_gets_it(tmp_path: Path) -> None:
    async def test(rig: BinderRig) -> None:
        for name in ("one", "two"):
            await asking(rig, bringing(allocation("n1")), name, backoffLimit=1)
            await rig.hear(BindRequest, name)
        await asyncio.gather(*(rig.reconciler.sync((SPACE, name)) for name in ("one", "two")))
        nodes = [await rig.node_of(name) for name in ("one", "two")]
        assert sorted(nodes) == ["", "n1"]
        late = ("one", "two")[nodes.index("")]
        assert "is that of claim default/" in (await rig.status(late))["reason"]
        assert not (await status_of(rig, late)).get("allocation")

    on_rig(tmp_path, test, DynamicResources())


def test_a_claim_that_gets_the_device_while_it_is_read_keeps_it(tmp_path: Path) -> None:
    """The watch is late: it still shows the second claim with the device, which the server shows as free. While the
    first request reads that claim, the second request is carried out."""

    class SlowRead(DynamicResources):
        is_first = True

        async def pre_bind(self, ctx: BinderHandle, *args: Any) -> None:
            await super().pre_bind(DuringRead(ctx) if self.is_first else ctx, *args)

    class DuringRead:
        """The handle, but a second request is carried out between the answer to a read of claim `two` and its use."""

        def __init__(self, ctx: BinderHandle) -> None:
            self._ctx = ctx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._ctx, name)

        async def fresh_claim(self, namespace: str, name: str) -> ResourceClaim:
            found = await self._ctx.fresh_claim(namespace, name)
            if name == "two" and plugin.is_first:
                plugin.is_first = False
                assert await rigs[0].sync("two") is None
            return found

    plugin = SlowRead()
    rigs: list[BinderRig] = []

    async def test(rig: BinderRig) -> None:
        rigs.append(rig)
        for name in ("one", "two"):
            await asking(rig, bringing(allocation("n1")), name, backoffLimit=1)
            await rig.hear(BindRequest, name)
        await allocated(rig, "two", allocation("n1"))
        await rig.hear(ResourceClaim, "two")
        await rig.patch(CLAIMS, "two", {"status": {"allocation": None}}, sub="status")
        assert await rig.sync("one") is None
        assert not plugin.is_first
        assert [await rig.node_of(name) for name in ("one", "two")] == ["", "n1"]
        assert "is that of claim default/two" in (await rig.status("one"))["reason"]
        assert not (await status_of(rig, "one")).get("allocation")

    on_rig(tmp_path, test, plugin)
