"""API servers with older versions of device claims, as 1.32 and 1.33 have, or without device claims."""

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
def older_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, str]]:
    """A server that serves one older version of device objects only: by a flag, or because of its age.

    The old server has them only if enabled.
    """
    folder, offered = tmp_path_factory.mktemp("older_server"), request.param
    if offered == OLDER:
        flags = ["--feature-gates=DynamicResourceAllocation=true", f"--runtime-config={GROUP}/v1beta1=true"]
        with Cluster(folder, flags=flags, server=OLDER) as cluster:
            yield cluster, "v1beta1"
        return
    served = [f"{GROUP}/{version}={str(version == offered).lower()}" for version in ("v1", *VERSIONS)]
    with Cluster(folder, flags=[f"--runtime-config={','.join(served)}"]) as cluster:
        yield cluster, offered


def in_version(item: Tree, version: str) -> Tree:
    """An object of v1 in an older version."""
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


def furnish(harness: SchedulerHarness, version: str, *claims: str) -> str:
    """Two nodes, one of them with a device, and claims for it; returns the node's name."""
    _, second = harness.add_nodes(2)
    slice_, device_class = devices(harness, second, "gpu")
    selector = {"cel": {"expression": 'device.attributes["gpu.example.com"].model == "a"'}}
    device_class["spec"]["selectors"].append(selector)
    for item in (slice_, device_class, *(device_claim(name, "gpu") for name in claims)):
        if item["kind"] == "ResourceClaim":
            item["metadata"]["namespace"] = harness.namespace
        harness.cluster.apply(in_version(item, version))
    return second


def user(harness: SchedulerHarness, name: str) -> Tree:
    """A pod that uses the claim of its name."""
    found = harness.pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return found


def claim(harness: SchedulerHarness, name: str, version: str) -> Tree:
    """The object in this version.

    By its path: kubectl may have cached the discovery of another server at the same port.
    """
    path = f"/apis/{GROUP}/{version}/namespaces/{harness.namespace}/resourceclaims/{name}"
    found: Tree = json.loads(harness.cluster.kubectl("get", "--raw", path))
    return found


def demand_given(harness: SchedulerHarness, name: str, node: str, version: str) -> None:
    """Check that the pod is on the node of the device, which is reserved for it."""
    assert node_name(harness.api.pod(name)) == node
    found = claim(harness, name, version)
    assert found["apiVersion"] == f"{GROUP}/{version}"
    (result,) = found["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", node, "gpu-0")
    assert [each["name"] for each in found["status"]["reservedFor"]] == [name]


def test_devices_are_allocated_where_only_an_older_version_is_offered(
    older_server: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, version = older_server
    cluster.kubectl("create", "namespace", "work")
    harness = SchedulerHarness(cluster, "work", tmp_path)
    second = furnish(harness, version, "mine", "yours")
    with harness.run_scheduler() as process:
        harness.api.create(user(harness, "mine"))
        harness.wait_bound(["mine"])
        demand_given(harness, "mine", second, version)
        harness.api.create(user(harness, "yours"))
        harness.check_settled(process, waiting=["yours"])
        assert "allocation" not in claim(harness, "yours", version).get("status", {})
    harness.close()


def test_the_binder_writes_claims_in_the_version_that_is_offered(
    older_server: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, version = older_server
    cluster.kubectl("create", "namespace", "bound")
    harness = BinderHarness(cluster, "bound", tmp_path)
    second = furnish(harness, version, "mine")
    with harness.run_scheduler(config=short_backoff_config(CLAIMS_BY_BINDER)), harness.binder():
        harness.api.create(user(harness, "mine"))
        harness.wait_bound(["mine"])
        assert harness.wait_for_end("mine", "Succeeded")["spec"]["resourceClaimAllocations"][0]["name"] == "gpu"
        demand_given(harness, "mine", second, version)
    harness.close()


def test_missing_features_of_a_1_33_server_are_not_used(tmp_path: Path) -> None:
    """It has no device claims unless enabled, and no streaming lists: the first is logged once and disabled, the second
    is replaced by pages, and pods are placed, refused and preempted as usual.
    """
    beta = ",".join(f"{GROUP}/{version}=false" for version in VERSIONS)
    flags = ["--emulated-version=1.33", f"--runtime-config={beta}"]
    with Cluster(tmp_path / "cluster", flags=flags) as cluster:
        assert json.loads(cluster.kubectl("get", "--raw", "/version"))["emulationMinor"] == "33"
        cluster.kubectl("create", "namespace", "work")
        harness = SchedulerHarness(cluster, "work", tmp_path)
        run_basic_scenario(harness)
        said = harness.log()
        assert said.count("does not serve resourceclaims; features that need it are disabled") == 1
        assert "pods: the server does not support streaming lists; listing in pages" in said
        harness.close()
