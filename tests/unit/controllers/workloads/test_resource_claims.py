"""Resource claims: created from templates for pods, reserved while their pods run, and deallocated afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bayplan.client import CORE_EVENTS, resource_of
from bayplan.controllers.core.api_types import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Tree, UntypedObject
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
async def run_claim_controllers(folder: Path) -> AsyncIterator[ControllersHarness]:
    """Cluster without scheduler and nodes: the test sets the state of pods."""
    only = ("resourceclaim-controller", "garbage-collector-controller")
    async with run_controllers(folder, nodes=0, only=only, cleanup=False, scheduling=False) as harness:
        yield harness


async def allocate(harness: ControllersHarness, name: str, *users: Tree) -> None:
    """Allocate a claim as the scheduler does."""
    reserved = [{"resource": "pods", **{key: each["metadata"][key] for key in ("name", "uid")}} for each in users]
    await harness.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [FINALIZER]}})
    status = {"allocation": ALLOCATION, "reservedFor": reserved}
    await harness.patch(RESOURCE_CLAIMS, name, {"status": status}, sub="status")


def users_of(claim: Tree) -> list[str]:
    return [each["name"] for each in claim.get("status", {}).get("reservedFor", [])]


def is_free(claim: Tree) -> bool:
    return not claim.get("status", {}) and FINALIZER not in claim["metadata"].get("finalizers", [])


@async_test
async def test_a_generated_claim_is_deleted_with_its_pod(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        created = await harness.make(PODS, pod("web", resourceClaimTemplateName="each"))
        pod_with_status = await harness.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        (status,) = pod_with_status["status"]["resourceClaimStatuses"]
        assert status["name"] == "gpu"
        claim = await harness.get(RESOURCE_CLAIMS, status["resourceClaimName"])
        meta = claim["metadata"]
        assert meta["name"].startswith("web-gpu-")
        assert (meta["labels"], meta["annotations"]) == ({"a": "b"}, {POD_CLAIM_NAME_ANNOTATION: "gpu"})
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (created["metadata"]["uid"], True)
        assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
        await allocate(harness, meta["name"], created)
        await harness.delete(PODS, "web")
        await harness.gone(RESOURCE_CLAIMS, meta["name"])


@async_test
async def test_a_missing_template_is_reported_and_its_claim_created_later(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(PODS, pod("web", resourceClaimTemplateName="each"))

        async def pod_with_status() -> bool:
            notes = [each["message"] for each in await harness.list(CORE_EVENTS)]
            prefix = 'PodResourceClaim gpu: resource claim template "each": '
            return f'{prefix}resourceclaimtemplate.resource.k8s.io "each" not found' in notes

        await harness.until(pod_with_status, "the event is recorded")
        await harness.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        created = await harness.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        assert [each["name"] for each in created["status"]["resourceClaimStatuses"]] == ["gpu"]


@async_test
async def test_a_deleted_generated_claim_is_recreated(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        await harness.make(PODS, pod("web", resourceClaimTemplateName="each"))
        pod_with_status = await harness.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        first = pod_with_status["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        await harness.delete(RESOURCE_CLAIMS, first)
        pod_with_status = await harness.when(
            PODS, "web", lambda it: it["status"]["resourceClaimStatuses"][0]["resourceClaimName"] != first
        )
        assert [each["metadata"]["name"] for each in await harness.list(RESOURCE_CLAIMS)] == [
            pod_with_status["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        ]


@async_test
async def test_pods_of_a_template_use_one_device_in_turn(tmp_path: Path) -> None:
    """With the scheduler, and with nodes on which pods run."""
    only = ("resourceclaim-controller",)
    async with run_controllers(tmp_path, nodes=1, only=only) as harness:
        slice_spec = {"driver": "gpu.example.com", "allNodes": True, "devices": [{"name": "gpu-0"}]}
        pool = {"name": "all", "generation": 1, "resourceSliceCount": 1}
        await harness.make(SLICES, {"metadata": {"name": "all"}, "spec": {**slice_spec, "pool": pool}})
        await harness.make(CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
        await harness.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        for name in ("one", "two"):
            wanted = pod(name, resourceClaimTemplateName="each")
            del wanted["spec"]["schedulerName"]
            await harness.make(PODS, wanted)
            if name == "one":
                await harness.when(PODS, "one", lambda it: it["status"]["phase"] == "Running")
        await harness.when(PODS, "two", lambda it: "cannot allocate all claims" in str(it["status"].get("conditions")))
        await harness.delete(PODS, "one")
        await harness.when(PODS, "two", lambda it: it["status"]["phase"] == "Running")

        async def remaining_claim() -> Tree | None:
            """The claim of the second pod, as soon as the garbage collector has deleted the other one."""
            claims = await harness.list(RESOURCE_CLAIMS)
            return claims[0] if len(claims) == 1 else None

        assert users_of(await harness.until(remaining_claim)) == ["two"]


@async_test
async def test_devices_are_released_with_the_last_pod(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIMS, device_claim("shared", "gpu"))
        users = [await harness.make(PODS, pod(name, resourceClaimName="shared")) for name in ("one", "two")]
        await allocate(harness, "shared", *users)
        await harness.delete(PODS, "one")
        remaining = await harness.when(RESOURCE_CLAIMS, "shared", lambda it: users_of(it) == ["two"])
        assert remaining["status"]["allocation"]["devices"]["results"] == [DEVICE]
        await harness.patch(PODS, "two", {"status": {"phase": "Succeeded"}}, sub="status")
        await harness.when(RESOURCE_CLAIMS, "shared", is_free)


@async_test
async def test_a_reservation_for_an_unknown_deleted_pod_is_released(tmp_path: Path) -> None:
    """The watch never delivered the pod: the binder stopped before the pod was deleted."""
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIMS, device_claim("mine", "gpu"))
        await allocate(harness, "mine", {"metadata": {"name": "web", "uid": "gone"}})
        released = await harness.when(RESOURCE_CLAIMS, "mine", is_free)
        assert users_of(released) == []


@async_test
async def test_a_deleted_claim_is_removed_after_its_pod(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIMS, device_claim("mine", "gpu"))
        user = await harness.make(PODS, pod("web", resourceClaimName="mine"))
        await allocate(harness, "mine", user)
        await harness.delete(RESOURCE_CLAIMS, "mine")
        terminating = await harness.when(RESOURCE_CLAIMS, "mine", lambda it: it["metadata"].get("deletionTimestamp"))
        assert users_of(terminating) == ["web"]
        await harness.delete(PODS, "web")
        await harness.gone(RESOURCE_CLAIMS, "mine")


@async_test
async def test_a_claim_is_reserved_for_a_pod_bound_without_the_scheduler(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIMS, device_claim("mine", "gpu"))
        other = {"resource": "devices", "apiGroup": "example.com", "name": "other", "uid": "other"}
        await allocate(harness, "mine")
        await harness.patch(RESOURCE_CLAIMS, "mine", {"status": {"reservedFor": [other]}}, sub="status")
        bound_pod = pod("web", resourceClaimName="mine")
        bound_pod["spec"]["nodeName"] = "n1"
        await harness.make(PODS, bound_pod)
        await harness.when(RESOURCE_CLAIMS, "mine", lambda it: users_of(it) == ["other", "web"])
        await harness.patch(PODS, "web", {"status": {"phase": "Failed"}}, sub="status")
        remaining = await harness.when(RESOURCE_CLAIMS, "mine", lambda it: users_of(it) == ["other"])
        assert not is_free(remaining)


@async_test
async def test_the_generated_claim_of_a_finished_pod_is_deleted(tmp_path: Path) -> None:
    async with run_claim_controllers(tmp_path) as harness:
        await harness.make(RESOURCE_CLAIM_TEMPLATES, TEMPLATE)
        created = await harness.make(PODS, pod("web", resourceClaimTemplateName="each"))
        pod_with_status = await harness.when(PODS, "web", lambda it: it["status"].get("resourceClaimStatuses"))
        name = pod_with_status["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        await allocate(harness, name, created)
        await harness.patch(PODS, "web", {"status": {"phase": "Succeeded"}}, sub="status")
        await harness.gone(RESOURCE_CLAIMS, name)
        assert (await harness.get(PODS, "web"))["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize(("version", "is_missing"), [("v1", False), ("v1beta1", True)])
@async_test
async def test_claims_in_an_unsupported_version_count_as_missing(version: str, is_missing: bool) -> None:
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
        harness = SharedInformerFactory(client)
        harness.informer(RESOURCE_CLAIMS, UntypedObject)
        await harness.discover()
        assert harness.is_missing(RESOURCE_CLAIMS) is is_missing


@pytest.mark.parametrize(
    ("name", "entry", "base"),
    [
        pytest.param("web", "gpu", "web-gpu-", id="short"),
        pytest.param("p" * 50, "e" * 5, "p" * 50 + "-" + "e" * 5 + "-", id="as long as can be"),
        pytest.param("p" * 60, "e" * 20, "p" * 41 + "-" + "e" * 13, id="both are cut"),
    ],
)
def test_long_claim_names_are_cut_in_proportion(name: str, entry: str, base: str) -> None:
    assert _name_base(name, entry) == base
