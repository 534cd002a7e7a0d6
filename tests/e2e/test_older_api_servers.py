"""The scheduler on older API servers, the oldest too: what everybody needs every day, with what the server offers."""

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
def corner(older: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SchedulerHarness]:
    name = request.node.originalname.replace("_", "-")[:60].strip("-")
    older.kubectl("create", "namespace", name)
    mine = SchedulerHarness(older, name, tmp_path)
    yield mine
    mine.close()


def test_pods_are_placed_refused_and_preempted(corner: SchedulerHarness) -> None:
    placed = run_basic_scenario(corner)
    assert (len(placed), set(placed.values())) == (4, set(corner.nodes)), "one of the weak ones had to go"
    assert ("strong" in placed, "large" in placed) == (True, False)


def test_gates_and_spreading(corner: SchedulerHarness) -> None:
    corner.add_nodes(3)
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    with corner.run_scheduler() as process:
        corner.api.create(corner.pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
        pods = [
            corner.pod(f"spread-{number}", labels={"app": "spread"}, topologySpreadConstraints=[spread])
            for number in range(6)
        ]
        corner.api.create(*pods)
        names = [pod["metadata"]["name"] for pod in pods]
        corner.wait_bound(names)
        found = corner.api.pods()
        assert sorted(node_name(found[name]) for name in names) == sorted([*corner.nodes] * 2)
        corner.api.patch("Pod", "gated", {"spec": {"schedulingGates": []}})
        corner.check_settled(process)


def test_volumes_wait_for_their_first_pod(corner: SchedulerHarness) -> None:
    _, second = corner.add_nodes(2)
    kind = wait_for_first_consumer_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", second, kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    with corner.run_scheduler() as process:
        corner.api.create(pod_with_claim(corner, "user", "data"))
        wait_until(lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"], "the volume is promised")
        bind_claim(corner, "data", name)
        corner.check_settled(process)
        assert node_name(corner.api.pod("user")) == second
    corner.api.delete("PersistentVolume", name)


@pytest.mark.parametrize("older", [OLDEST], indirect=True)
def test_what_the_server_lacks_is_said_and_missed_by_nobody(corner: SchedulerHarness) -> None:
    """Device claims of 1.30 are of a version that nobody reads any more."""
    corner.add_nodes(1)
    with corner.run_scheduler() as process:
        corner.api.create(corner.pod("plain"))
        corner.check_settled(process)
    assert "the API server does not serve resourceclaims; features that need it are disabled" in corner.log()


@pytest.mark.parametrize("older", [OLDER[-1]], indirect=True)
def test_devices_are_allocated(corner: SchedulerHarness) -> None:
    _, second = corner.add_nodes(2)
    kind = f"{corner.label[:40]}-gpu"
    corner.api.create(*devices(corner, second, kind), device_claim("mine", kind))
    user = corner.pod("mine", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    with corner.run_scheduler() as process:
        corner.api.create(user)
        corner.check_settled(process)
        assert node_name(corner.api.pod("mine")) == second
        status = corner.api.get("ResourceClaim", "mine")["status"]
        assert [each["name"] for each in status["reservedFor"]] == ["mine"]
