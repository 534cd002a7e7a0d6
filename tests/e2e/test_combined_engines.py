"""Both engines in one process: one cache, one ledger, two leases."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.batch_harness import GANGS, BatchSchedulerHarness
from support.e2e.scheduler_process import condition, node_name, wait_until
from support.fakes.fault_proxy import ProxiedRequest, ProxyFault, refusal, run_fault_proxy


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_they_race_for_the_same_nodes_and_never_book_one_twice(corner: BatchSchedulerHarness) -> None:
    corner.add_nodes(6, cpu="4")
    with corner.run_combined() as process:
        for round_ in range(6):
            single = [corner.pod(f"single-{round_}-{number}", cpu="1") for number in range(4)]
            corner.gang(f"gang-{round_}", 3)
            corner.api.create(*single)
        wait_until(
            lambda: len([each for each in corner.api.pods().values() if node_name(each)]) == 24,
            "the nodes are full",
            why=lambda: standstill(corner, process),
        )
        corner.check_no_overcommit()
        waiting = [name for name, each in corner.api.pods().items() if not node_name(each)]
        assert len(waiting) == 6 * 7 - 24
        corner.api.delete_all("Pod", [name for name, each in corner.api.pods().items() if node_name(each)][:12])
        wait_until(
            lambda: len([each for each in corner.api.pods().values() if node_name(each)]) >= 22,
            "room that was given back is used again",
            why=lambda: standstill(corner, process),
        )
        corner.check_no_overcommit()
        wait_until(lambda: corner._agrees(process), "the process believes what the server says")
    corner.check_bound_once()


def standstill(corner: BatchSchedulerHarness, process: subprocess.Popen[bytes]) -> str:
    """Who waits, what is said of it, and what the process believes."""
    waiting = {
        name: condition(each).get("message", "") for name, each in corner.api.pods().items() if not node_name(each)
    }
    return f"{waiting}; the process believes {corner.dumped_state(process)}"


def test_a_preemptor_of_each_at_one_full_node_evicts_nobody_else(corner: BatchSchedulerHarness) -> None:
    """Three weak pods, two strong ones of the size of one: two go, whoever is quicker."""
    (node,) = corner.add_nodes(1, cpu="3")
    high = corner.priority("high", 1000)
    weak = corner.gang("weak", 3, minimum=1)
    with corner.run_combined():
        corner.wait_bound(weak)
        corner.start(*weak)
        corner.wait_for_phase("weak", "Running")
        alone = corner.pod("alone", cpu="1", priorityClassName=high)
        corner.group("strong", 1, priorityClassName=high)
        corner.api.create(alone, corner.member("strong", 0, priorityClassName=high))
        corner.wait_bound(["alone", "strong-w-0"])
        assert corner.nodes_of(["alone", "strong-w-0"]) == [node, node]
        left = [name for name in weak if name in corner.api.pods()]
        assert len(left) == 1, left
        wait_until(lambda: corner.phase("weak") == "Running", "what is left of the gang runs")
    corner.check_no_overcommit()


@pytest.mark.parametrize("lost_in", ["volcano-system", "kube-system"])
def test_both_leases_or_nothing(cluster: Cluster, corner: BatchSchedulerHarness, tmp_path: Path, lost_in: str) -> None:
    corner.add_nodes(1, cpu="4")
    quick = (
        "--leader-elect-lease-duration=15s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=500ms",
    )
    corner.api.create(corner.pod("alone", cpu="1"))
    gang = corner.gang("gang", 2)
    ensure_namespace(corner, "volcano-system")
    with run_fault_proxy(cluster, tmp_path) as proxy:
        no = refusal(500, "InternalError", "not now")

        def of_the_lease(ask: ProxiedRequest) -> bool:
            return ask.method != "GET" and "/leases" in ask.path and lost_in in ask.path

        mine = proxy.add(ProxyFault(of_the_lease, refuse=no))
        with corner.run_combined(
            "--leader-elect=true", *quick, f"--kubeconfig={proxy.kubeconfig()}", may_end_with=1
        ) as process:
            wait_until(lambda: len(mine.seen) >= 2, "the lease is asked for")
            assert not any(corner.nodes_of(["alone", *gang]))  # one lease is not enough
            proxy.remove(mine)
            corner.wait_bound(["alone", *gang])
            lost = proxy.add(ProxyFault(of_the_lease, refuse=no))
            wait_until(lambda: process.poll() is not None, "the process ends when it loses one")
            assert process.returncode == 1
            proxy.remove(lost)
            corner.api.create(corner.pod("late", cpu="1"))
            end_s = time.monotonic() + 1.0
            wait_until(lambda: time.monotonic() > end_s, "a moment has passed")
            assert corner.nodes_of(["late"]) == [""]


def test_a_lease_of_volcano_that_is_elsewhere_keeps_it_waiting(corner: BatchSchedulerHarness) -> None:
    """Volcano's chart has it in the namespace of its release: an old scheduler there stays out, or we do."""
    corner.add_nodes(1, cpu="4")
    gang = corner.gang("gang", 2)
    held = {"holderIdentity": "old", "leaseDurationSeconds": 3600, "renewTime": "2200-01-01T00:00:00.000000Z"}
    meta = {"name": "volcano", "namespace": corner.namespace}
    corner.api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": held})
    ours = f"--leader-elect-resource-namespace={corner.namespace}"
    with corner.run_combined(
        "--leader-elect=true", ours, f"--lock-object-namespace={corner.namespace}", "--leader-elect-retry-period=500ms"
    ):
        wait_until(lambda: "attempting to acquire leader leases" in corner.log(), "the leases are waited for")
        end_s = time.monotonic() + 2.0
        wait_until(lambda: time.monotonic() > end_s, "a moment has passed")
        assert leases(corner) == {"volcano": "old"}  # the free one is left to a process that can use it
        assert corner.nodes_of(gang) == ["", ""]
        corner.api.delete("Lease", "volcano")
        corner.wait_bound(gang)
        assert leases(corner)["volcano"] != "old"


def leases(corner: BatchSchedulerHarness) -> dict[str, str]:
    """Who holds each of the namespace."""
    return {each["metadata"]["name"]: each["spec"]["holderIdentity"] for each in corner.api.list("Lease")}


def ensure_namespace(corner: BatchSchedulerHarness, name: str) -> None:
    if name not in {each["metadata"]["name"] for each in corner.api.list("Namespace")}:
        corner.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def test_refused_bindings_of_one_leave_room_for_the_other(
    cluster: Cluster, corner: BatchSchedulerHarness, tmp_path: Path
) -> None:
    corner.add_nodes(1, cpu="2")
    with run_fault_proxy(cluster, tmp_path) as proxy:
        refused = proxy.add(
            ProxyFault(lambda ask: ask.is_binding and "gang-w" in ask.path, refuse=refusal(500, "InternalError", "no"))
        )
        with corner.run_combined(f"--kubeconfig={proxy.kubeconfig()}", conf=GANGS):
            gang = corner.gang("gang", 2)
            wait_until(lambda: bool(refused.seen), "a binding of the gang was refused")
            wait_until(lambda: any("failed to bind" in each for each in corner.reasons(gang)), "the pod says so")
            corner.api.delete("PodGroup", "gang")
            corner.api.delete_all("Pod", gang)
            corner.api.create(corner.pod("alone", cpu="2"))
            corner.wait_bound(["alone"])
            assert condition(corner.api.pod("alone")).get("status") == "True" or node_name(corner.api.pod("alone"))
    corner.check_no_overcommit()
