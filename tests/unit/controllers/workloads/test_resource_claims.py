"""Device claims: made of templates for pods, in use as long as their pods run, and free afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bayplan.client import CORE_EVENTS, resource_of
from bayplan.controllers.core.api_types import (
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.shared_informers import SharedInformerFactory
from bayplan.controllers.workloads.resource_claims import POD_CLAIM_NAME_ANNOTATION, _name_base
from bayplan.devices.claims import FINALIZER
from bayplan.objects.kinds import kind_of
from bayplan.objects.resource import DeviceClass, ResourceSlice
from support.e2e.volumes_and_devices import device_claim
from support.fakes.http_server import FakeHttpServer, Reply
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, run_controllers

SLICES, CLASSES = (resource_of(kind_of(struct)) for struct in (ResourceSlice, DeviceClass))
DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
ALLOCATION = {"devices": {"results": [DEVICE]}}
TEMPLATE = {
    "metadata": {"name": "each"},
    "spec": {"metadata": {"labels": {"a": "b"}}, "spec": device_claim("", "gpu")["spec"]},
}


def pod(name: str, **entry: str) -> Tree:
    containers = [{"name": "c", "image": "none"}]
    claims = [{"name": "gpu", **entry}]
    spec = {"containers": containers, "resourceClaims": claims, "schedulerName": "nobody"}
    return {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 0}}


@asynccontextmanager
async def claims_only(folder: Path) -> AsyncIterator[ControllersHarness]:
    """Nobody schedules, and no node is there: pods are what a test says they are."""
    only = ("resourceclaim-controller", "garbage-collector-controller")
    async with run_controllers(folder, nodes=0, only=only, cleanup=False, scheduling=False) as world:
        yield world


async def allocate(world: ControllersHarness, name: str, *users: Tree) -> None:
    """As who schedules does."""
    reserved = [{"resource": "pods", **{key: each["metadata"][key] for key in ("name", "uid")}} for each in users]
    await world.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [FINALIZER]}})
    status = {"allocation": ALLOCATION, "reservedFor": reserved}
    await world.patch(RESOURCE_CLAIMS, name, {"status": status}, sub="status")


def users_of(claim: Tree) -> list[str]:
    return [each["name"] for each in claim.get("status", {}).get("reservedFor", [])]


def is_free(claim: Tree) -> bool:
    return not claim.get("status", {}) and FINALIZER not in claim["metadata"].get("finalizers", [])


@async_test
async def test_a_pod_gets_a_claim_of_its_own_which_goes_with_it(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        made = await world.make(PODS, pod("web", resourceClaimTemplateName="each"))
        told = await world.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        (status,) = told["status"]["resourceClaimStatuses"]
        assert status["name"] == "gpu"
        claim = await world.get(RESOURCE_CLAIMS, status["resourceClaimName"])
        meta = claim["metadata"]
        assert meta["name"].startswith("web-gpu-")
        assert (meta["labels"], meta["annotations"]) == ({"a": "b"}, {POD_CLAIM_NAME_ANNOTATION: "gpu"})
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
        await allocate(world, meta["name"], made)
        await world.delete(PODS, "web")
        await world.gone(RESOURCE_CLAIMS, meta["name"])


@async_test
async def test_a_pod_whose_template_is_not_there_yet_is_told_and_gets_its_claim_later(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(PODS, pod("web", resourceClaimTemplateName="each"))

        async def told() -> bool:
            notes = [each["message"] for each in await world.list(CORE_EVENTS)]
            words = 'PodResourceClaim gpu: resource claim template "each": '
            return f'{words}resourceclaimtemplate.resource.k8s.io "each" not found' in notes

        await world.until(told, "the event is told")
        await world.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        made = await world.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        assert [each["name"] for each in made["status"]["resourceClaimStatuses"]] == ["gpu"]


@async_test
async def test_a_claim_that_somebody_deletes_is_made_anew_for_its_pod(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        await world.make(PODS, pod("web", resourceClaimTemplateName="each"))
        told = await world.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        first = told["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        await world.delete(RESOURCE_CLAIMS, first)
        told = await world.when(
            PODS, "web", lambda it: it["status"]["resourceClaimStatuses"][0]["resourceClaimName"] != first
        )
        assert [each["metadata"]["name"] for each in await world.list(RESOURCE_CLAIMS)] == [
            told["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        ]


@async_test
async def test_pods_of_a_template_have_the_one_device_one_after_the_other(tmp_path: Path) -> None:
    """With the scheduler, and nodes on which pods run."""
    only = ("resourceclaim-controller",)
    async with run_controllers(tmp_path, nodes=1, only=only) as world:
        offer = {"driver": "gpu.example.com", "allNodes": True, "devices": [{"name": "gpu-0"}]}
        pool = {"name": "all", "generation": 1, "resourceSliceCount": 1}
        await world.make(SLICES, {"metadata": {"name": "all"}, "spec": {**offer, "pool": pool}})
        await world.make(CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
        await world.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        for name in ("one", "two"):
            wanted = pod(name, resourceClaimTemplateName="each")
            del wanted["spec"]["schedulerName"]
            await world.make(PODS, wanted)
            if name == "one":
                await world.when(PODS, "one", lambda it: it["status"]["phase"] == "Running")
        await world.when(PODS, "two", lambda it: "cannot allocate all claims" in str(it["status"].get("conditions")))
        await world.delete(PODS, "one")
        await world.when(PODS, "two", lambda it: it["status"]["phase"] == "Running")
        (claim,) = await world.list(RESOURCE_CLAIMS)
        assert users_of(claim) == ["two"]


@async_test
async def test_devices_are_given_back_with_the_last_pod_that_uses_them(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIMS, device_claim("shared", "gpu"))
        users = [await world.make(PODS, pod(name, resourceClaimName="shared")) for name in ("one", "two")]
        await allocate(world, "shared", *users)
        await world.delete(PODS, "one")
        left = await world.when(RESOURCE_CLAIMS, "shared", lambda it: users_of(it) == ["two"])
        assert left["status"]["allocation"]["devices"]["results"] == [DEVICE]
        await world.patch(PODS, "two", {"status": {"phase": "Succeeded"}}, sub="status")
        await world.when(RESOURCE_CLAIMS, "shared", is_free)


@async_test
async def test_a_claim_reserved_for_a_pod_that_went_before_anybody_looked_is_free(tmp_path: Path) -> None:
    """No watch ever told of the pod: a binder has died, and then the pod was deleted."""
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIMS, device_claim("mine", "gpu"))
        await allocate(world, "mine", {"metadata": {"name": "web", "uid": "gone"}})
        freed = await world.when(RESOURCE_CLAIMS, "mine", is_free)
        assert users_of(freed) == []


@async_test
async def test_a_claim_that_is_deleted_goes_when_its_pod_has_gone(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIMS, device_claim("mine", "gpu"))
        user = await world.make(PODS, pod("web", resourceClaimName="mine"))
        await allocate(world, "mine", user)
        await world.delete(RESOURCE_CLAIMS, "mine")
        going = await world.when(RESOURCE_CLAIMS, "mine", lambda it: it["metadata"].get("deletionTimestamp"))
        assert users_of(going) == ["web"]
        await world.delete(PODS, "web")
        await world.gone(RESOURCE_CLAIMS, "mine")


@async_test
async def test_a_claim_is_reserved_for_a_pod_that_came_to_its_node_in_another_way(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIMS, device_claim("mine", "gpu"))
        other = {"resource": "devices", "apiGroup": "example.com", "name": "other", "uid": "other"}
        await allocate(world, "mine")
        await world.patch(RESOURCE_CLAIMS, "mine", {"status": {"reservedFor": [other]}}, sub="status")
        placed = pod("web", resourceClaimName="mine")
        placed["spec"]["nodeName"] = "n1"
        await world.make(PODS, placed)
        await world.when(RESOURCE_CLAIMS, "mine", lambda it: users_of(it) == ["other", "web"])
        await world.patch(PODS, "web", {"status": {"phase": "Failed"}}, sub="status")
        left = await world.when(RESOURCE_CLAIMS, "mine", lambda it: users_of(it) == ["other"])
        assert not is_free(left)


@async_test
async def test_the_claim_of_a_pod_that_has_ended_is_deleted_before_the_pod_is(tmp_path: Path) -> None:
    async with claims_only(tmp_path) as world:
        await world.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        made = await world.make(PODS, pod("web", resourceClaimTemplateName="each"))
        told = await world.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        name = told["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        await allocate(world, name, made)
        await world.patch(PODS, "web", {"status": {"phase": "Succeeded"}}, sub="status")
        await world.gone(RESOURCE_CLAIMS, name)
        assert (await world.get(PODS, "web"))["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize(("version", "is_missing"), [("v1", False), ("v1beta1", True)])
@async_test
async def test_claims_in_a_version_that_is_not_written_here_are_as_good_as_none(version: str, is_missing: bool) -> None:
    group = {
        "name": "resource.k8s.io",
        "versions": [{"groupVersion": f"resource.k8s.io/{version}", "version": version}],
    }
    answers: dict[str, Tree] = {
        "/version": {"gitVersion": "v1.33.0"},
        "/apis": {"groups": [group]},
        f"/apis/resource.k8s.io/{version}": {"resources": [{"name": "resourceclaims", "verbs": ["list"]}]},
    }
    async with FakeHttpServer(lambda request: Reply(200, answers[request.path])) as server, server.client() as client:
        world = SharedInformerFactory(client)
        world.informer(RESOURCE_CLAIMS, UntypedObject)
        await world.discover()
        assert world.is_missing(RESOURCE_CLAIMS) is is_missing


@pytest.mark.parametrize(
    ("name", "entry", "base"),
    [
        pytest.param("web", "gpu", "web-gpu-", id="short"),
        pytest.param("p" * 50, "e" * 5, "p" * 50 + "-" + "e" * 5 + "-", id="as long as can be"),
        pytest.param("p" * 60, "e" * 20, "p" * 41 + "-" + "e" * 13, id="both are cut"),
    ],
)
def test_names_are_cut_in_proportion(name: str, entry: str, base: str) -> None:
    assert _name_base(name, entry) == base
