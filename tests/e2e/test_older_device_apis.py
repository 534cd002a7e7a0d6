"""API servers that offer less than today's: older versions of device claims, as 1.32 and 1.33 have, or none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.binder_harness import BY_BINDER, BinderHarness
from support.e2e.scheduler_harness import SchedulerHarness, run_basic_scenario, short_backoff_config
from support.e2e.scheduler_process import node_name
from support.e2e.volumes_and_devices import device_claim, devices

GROUP = "resource.k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
OLDER = "kube-apiserver-1.32"
CLAIMS_BY_BINDER = f"""{BY_BINDER}    preBind:
      disabled: [{{name: DynamicResources}}]
"""


@pytest.fixture(scope="module", params=(*VERSIONS, pytest.param(OLDER, marks=pytest.mark.soak)))
def dated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A server that offers one version of device objects, and not the one of today: told to, or because it is so old.

    The old one has them on demand only."""
    folder, offered = tmp_path_factory.mktemp("dated"), request.param
    if offered == OLDER:
        flags = ["--feature-gates=DynamicResourceAllocation=true", f"--runtime-config={GROUP}/v1beta1=true"]
        with Cluster(folder, flags=flags, server=OLDER) as cluster:
            yield cluster, "v1beta1"
        return
    served = [f"{GROUP}/{version}={str(version == offered).lower()}" for version in ("v1", *VERSIONS)]
    with Cluster(folder, flags=[f"--runtime-config={','.join(served)}"]) as cluster:
        yield cluster, offered


def in_version(item: Tree, version: str) -> Tree:
    """An object of v1 as an older version spells it."""
    spec = item["spec"]
    if version == "v1beta1" and item["kind"] == "ResourceClaim":
        spec = {"devices": {"requests": [{"name": each["name"], **each["exactly"]} for each in _requests(item)]}}
    elif version == "v1beta1" and item["kind"] == "ResourceSlice":
        basic = [{"name": each["name"], "basic": {"attributes": each["attributes"]}} for each in spec["devices"]]
        spec = {**spec, "devices": basic}
    return {**item, "apiVersion": f"{GROUP}/{version}", "spec": spec}


def _requests(claim: Tree) -> list[Tree]:
    found: list[Tree] = claim["spec"]["devices"]["requests"]
    return found


def furnish(corner: SchedulerHarness, version: str, *claims: str) -> str:
    """Two nodes, one of them with a device, and claims for it; the node's name."""
    _, second = corner.add_nodes(2)
    slice_, device_class = devices(corner, second, "gpu")
    selector = {"cel": {"expression": 'device.attributes["gpu.example.com"].model == "a"'}}
    device_class["spec"]["selectors"].append(selector)
    for item in (slice_, device_class, *(device_claim(name, "gpu") for name in claims)):
        if item["kind"] == "ResourceClaim":
            item["metadata"]["namespace"] = corner.namespace
        corner.cluster.apply(in_version(item, version))
    return second


def user(corner: SchedulerHarness, name: str) -> Tree:
    """A pod that uses the claim of its name."""
    found = corner.pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return found


def claim(corner: SchedulerHarness, name: str, version: str) -> Tree:
    """As this version shows it. By its path: kubectl may remember what another server at the same port had."""
    path = f"/apis/{GROUP}/{version}/namespaces/{corner.namespace}/resourceclaims/{name}"
    found: Tree = json.loads(corner.cluster.kubectl("get", "--raw", path))
    return found


def demand_given(corner: SchedulerHarness, name: str, node: str, version: str) -> None:
    """The pod is on the node of the device, which is its own."""
    assert node_name(corner.api.pod(name)) == node
    found = claim(corner, name, version)
    assert found["apiVersion"] == f"{GROUP}/{version}"
    (result,) = found["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", node, "gpu-0")
    assert [each["name"] for each in found["status"]["reservedFor"]] == [name]


def test_devices_are_allocated_where_only_an_older_version_is_offered(
    dated: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, version = dated
    cluster.kubectl("create", "namespace", "work")
    corner = SchedulerHarness(cluster, "work", tmp_path)
    second = furnish(corner, version, "mine", "yours")
    with corner.run_scheduler() as process:
        corner.api.create(user(corner, "mine"))
        corner.wait_bound(["mine"])
        demand_given(corner, "mine", second, version)
        corner.api.create(user(corner, "yours"))
        corner.check_settled(process, waiting=["yours"])
        assert "allocation" not in claim(corner, "yours", version).get("status", {})
    corner.close()


def test_the_binder_writes_claims_in_the_version_that_is_offered(dated: tuple[Cluster, str], tmp_path: Path) -> None:
    cluster, version = dated
    cluster.kubectl("create", "namespace", "bound")
    corner = BinderHarness(cluster, "bound", tmp_path)
    second = furnish(corner, version, "mine")
    with corner.run_scheduler(config=short_backoff_config(CLAIMS_BY_BINDER)), corner.binder():
        corner.api.create(user(corner, "mine"))
        corner.wait_bound(["mine"])
        assert corner.wait_for_end("mine", "Succeeded")["spec"]["resourceClaimAllocations"][0]["name"] == "gpu"
        demand_given(corner, "mine", second, version)
    corner.close()


def test_what_a_server_of_1_33_lacks_is_done_without(tmp_path: Path) -> None:
    """It has no device claims unless asked for them, and does not stream lists: the one is told once and switched off,
    the other is done in pages, and pods are placed, refused and preempted as ever."""
    beta = ",".join(f"{GROUP}/{version}=false" for version in VERSIONS)
    flags = ["--emulated-version=1.33", f"--runtime-config={beta}"]
    with Cluster(tmp_path / "cluster", flags=flags) as cluster:
        assert json.loads(cluster.kubectl("get", "--raw", "/version"))["emulationMinor"] == "33"
        cluster.kubectl("create", "namespace", "work")
        corner = SchedulerHarness(cluster, "work", tmp_path)
        run_basic_scenario(corner)
        said = corner.log()
        assert said.count("does not serve resourceclaims; features that need it are disabled") == 1
        assert "pods: the server does not support streaming lists; listing in pages" in said
        corner.close()
