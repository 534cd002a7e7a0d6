"""Both engines in one process: one cache, two leases."""

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
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_they_compete_for_the_same_nodes_and_never_overcommit_one(harness: BatchSchedulerHarness) -> None:
    harness.add_nodes(6, cpu="4")
    with harness.run_combined() as process:
        for round_ in range(6):
            single = [harness.pod(f"single-{round_}-{number}", cpu="1") for number in range(4)]
            harness.gang(f"gang-{round_}", 3)
            harness.api.create(*single)
        wait_until(
            lambda: len([each for each in harness.api.pods().values() if node_name(each)]) == 24,
            "the nodes are full",
            why=lambda: standstill(harness, process),
        )
        harness.check_no_overcommit()
        waiting = [name for name, each in harness.api.pods().items() if not node_name(each)]
        assert len(waiting) == 6 * 7 - 24
        harness.api.delete_all("Pod", [name for name, each in harness.api.pods().items() if node_name(each)][:12])
        wait_until(
            lambda: len([each for each in harness.api.pods().values() if node_name(each)]) >= 22,
            "room that was given back is used again",
            why=lambda: standstill(harness, process),
        )
        harness.check_no_overcommit()
        wait_until(lambda: harness._agrees(process), "the process believes what the server says")
    harness.check_bound_once()


def standstill(harness: BatchSchedulerHarness, process: subprocess.Popen[bytes]) -> str:
    """Pending pods, their messages, and the state of the process's cache."""
    waiting = {
        name: condition(each).get("message", "") for name, each in harness.api.pods().items() if not node_name(each)
    }
    return f"{waiting}; the process believes {harness.dumped_state(process)}"


def test_a_preemptor_of_each_at_one_full_node_evicts_one_pod_each(harness: BatchSchedulerHarness) -> None:
    """Three pods of low priority, two of high priority that need one's room each: two are evicted, in any order."""
    (node,) = harness.add_nodes(1, cpu="3")
    high = harness.priority("high", 1000)
    weak = harness.gang("weak", 3, minimum=1)
    with harness.run_combined():
        harness.wait_bound(weak)
        harness.start(*weak)
        harness.wait_for_phase("weak", "Running")
        alone = harness.pod("alone", cpu="1", priorityClassName=high)
        harness.group("strong", 1, priorityClassName=high)
        harness.api.create(alone, harness.member("strong", 0, priorityClassName=high))
        harness.wait_bound(["alone", "strong-w-0"])
        assert harness.nodes_of(["alone", "strong-w-0"]) == [node, node]
        left = [name for name in weak if name in harness.api.pods()]
        assert len(left) == 1, left
        wait_until(lambda: harness.phase("weak") == "Running", "what is left of the gang runs")
    harness.check_no_overcommit()


@pytest.mark.parametrize("lost_in", ["volcano-system", "kube-system"])
def test_both_leases_or_nothing(cluster: Cluster, harness: BatchSchedulerHarness, tmp_path: Path, lost_in: str) -> None:
    harness.add_nodes(1, cpu="4")
    quick = (
        "--leader-elect-lease-duration=15s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=500ms",
    )
    harness.api.create(harness.pod("alone", cpu="1"))
    gang = harness.gang("gang", 2)
    ensure_namespace(harness, "volcano-system")
    with run_fault_proxy(cluster, tmp_path) as proxy:
        no = refusal(500, "InternalError", "not now")

        def of_the_lease(ask: ProxiedRequest) -> bool:
            return ask.method != "GET" and "/leases" in ask.path and lost_in in ask.path

        mine = proxy.add(ProxyFault(of_the_lease, refuse=no))
        with harness.run_combined(
            "--leader-elect=true", *quick, f"--kubeconfig={proxy.kubeconfig()}", may_end_with=1
        ) as process:
            wait_until(lambda: len(mine.seen) >= 2, "the lease is asked for")
            assert not any(harness.nodes_of(["alone", *gang]))  # one lease is not enough
            proxy.remove(mine)
            harness.wait_bound(["alone", *gang])
            lost = proxy.add(ProxyFault(of_the_lease, refuse=no))
            wait_until(lambda: process.poll() is not None, "the process ends when it loses one")
            assert process.returncode == 1
            proxy.remove(lost)
            harness.api.create(harness.pod("late", cpu="1"))
            end_s = time.monotonic() + 1.0
            wait_until(lambda: time.monotonic() > end_s, "a moment has passed")
            assert harness.nodes_of(["late"]) == [""]


def test_a_held_volcano_lease_in_another_namespace_keeps_it_waiting(harness: BatchSchedulerHarness) -> None:
    """Volcano's chart has it in the namespace of its release; either an old scheduler there leads, or Bayplan."""
    harness.add_nodes(1, cpu="4")
    gang = harness.gang("gang", 2)
    held = {"holderIdentity": "old", "leaseDurationSeconds": 3600, "renewTime": "2200-01-01T00:00:00.000000Z"}
    meta = {"name": "volcano", "namespace": harness.namespace}
    harness.api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": held})
    ours = f"--leader-elect-resource-namespace={harness.namespace}"
    with harness.run_combined(
        "--leader-elect=true", ours, f"--lock-object-namespace={harness.namespace}", "--leader-elect-retry-period=500ms"
    ):
        wait_until(lambda: "attempting to acquire leader leases" in harness.log(), "the leases are waited for")
        end_s = time.monotonic() + 2.0
        wait_until(lambda: time.monotonic() > end_s, "a moment has passed")
        assert leases(harness) == {"volcano": "old"}  # the free lease is left to a process that can use it
        assert harness.nodes_of(gang) == ["", ""]
        harness.api.delete("Lease", "volcano")
        harness.wait_bound(gang)
        assert leases(harness)["volcano"] != "old"


def leases(harness: BatchSchedulerHarness) -> dict[str, str]:
    """The holders of the leases of the namespace."""
    return {each["metadata"]["name"]: each["spec"]["holderIdentity"] for each in harness.api.list("Lease")}


def ensure_namespace(harness: BatchSchedulerHarness, name: str) -> None:
    if name not in {each["metadata"]["name"] for each in harness.api.list("Namespace")}:
        harness.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def test_refused_bindings_of_one_leave_room_for_the_other(
    cluster: Cluster, harness: BatchSchedulerHarness, tmp_path: Path
) -> None:
    harness.add_nodes(1, cpu="2")
    with run_fault_proxy(cluster, tmp_path) as proxy:
        refused = proxy.add(
            ProxyFault(lambda ask: ask.is_binding and "gang-w" in ask.path, refuse=refusal(500, "InternalError", "no"))
        )
        with harness.run_combined(f"--kubeconfig={proxy.kubeconfig()}", conf=GANGS):
            gang = harness.gang("gang", 2)
            wait_until(lambda: bool(refused.seen), "a binding of the gang was refused")
            wait_until(lambda: any("failed to bind" in each for each in harness.reasons(gang)), "the pod says so")
            harness.api.delete("PodGroup", "gang")
            harness.api.delete_all("Pod", gang)
            harness.api.create(harness.pod("alone", cpu="2"))
            harness.wait_bound(["alone"])
            assert condition(harness.api.pod("alone")).get("status") == "True" or node_name(harness.api.pod("alone"))
    harness.check_no_overcommit()
