"""The scheduler on older API servers, down to the oldest supported one: the basic features that the server offers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.scheduler_harness import SchedulerHarness, run_basic_scenario
from support.e2e.scheduler_process import node_name, wait_until
from support.e2e.volumes_and_devices import (
    bind_claim,
    claim,
    device_claim,
    devices,
    pod_with_claim,
    volume,
    wait_for_first_consumer_class,
)

pytestmark = pytest.mark.soak


OLDEST, *OLDER = (f"kube-apiserver-{version}" for version in ("1.30", "1.32", "1.34"))


@pytest.fixture(scope="module", params=(OLDEST, *OLDER))
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("older"), server=request.param) as cluster:
        yield cluster


@pytest.fixture
def harness(older: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SchedulerHarness]:
    name = request.node.originalname.replace("_", "-")[:60].strip("-")
    older.kubectl("create", "namespace", name)
    mine = SchedulerHarness(older, name, tmp_path)
    yield mine
    mine.close()


def test_pods_are_placed_refused_and_preempted(harness: SchedulerHarness) -> None:
    placed = run_basic_scenario(harness)
    assert (len(placed), set(placed.values())) == (4, set(harness.nodes)), "one of the weak ones had to go"
    assert ("strong" in placed, "large" in placed) == (True, False)


def test_gates_and_spreading(harness: SchedulerHarness) -> None:
    harness.add_nodes(3)
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    with harness.run_scheduler() as process:
        harness.api.create(harness.pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
        pods = [
            harness.pod(f"spread-{number}", labels={"app": "spread"}, topologySpreadConstraints=[spread])
            for number in range(6)
        ]
        harness.api.create(*pods)
        names = [pod["metadata"]["name"] for pod in pods]
        harness.wait_bound(names)
        found = harness.api.pods()
        assert sorted(node_name(found[name]) for name in names) == sorted([*harness.nodes] * 2)
        harness.api.patch("Pod", "gated", {"spec": {"schedulingGates": []}})
        harness.check_settled(process)


def test_volumes_wait_for_their_first_pod(harness: SchedulerHarness) -> None:
    _, second = harness.add_nodes(2)
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    made = volume(harness, "v", second, kind)
    name = made["metadata"]["name"]
    harness.api.create(made, claim("data", kind))
    harness.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    with harness.run_scheduler() as process:
        harness.api.create(pod_with_claim(harness, "user", "data"))
        wait_until(lambda: "claimRef" in harness.api.get("PersistentVolume", name)["spec"], "the volume is promised")
        bind_claim(harness, "data", name)
        harness.check_settled(process)
        assert node_name(harness.api.pod("user")) == second
    harness.api.delete("PersistentVolume", name)


@pytest.mark.parametrize("older", [OLDEST], indirect=True)
def test_features_that_the_server_lacks_are_logged_and_block_no_pod(harness: SchedulerHarness) -> None:
    """Device claims of 1.30 have a version that no client reads any more."""
    harness.add_nodes(1)
    with harness.run_scheduler() as process:
        harness.api.create(harness.pod("plain"))
        harness.check_settled(process)
    assert "the API server does not serve resourceclaims; features that need it are disabled" in harness.log()


@pytest.mark.parametrize("older", [OLDER[-1]], indirect=True)
def test_devices_are_allocated(harness: SchedulerHarness) -> None:
    _, second = harness.add_nodes(2)
    kind = f"{harness.label[:40]}-gpu"
    harness.api.create(*devices(harness, second, kind), device_claim("mine", kind))
    user = harness.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    with harness.run_scheduler() as process:
        harness.api.create(user)
        harness.check_settled(process)
        assert node_name(harness.api.pod("mine")) == second
        status = harness.api.get("ResourceClaim", "mine")["status"]
        assert [each["name"] for each in status["reservedFor"]] == ["mine"]
