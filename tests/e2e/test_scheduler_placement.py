"""`bayplan scheduler` on a real API server: pods are bound or get a reason, and processes take over from each other."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.scheduler_process import condition, events, node, node_name, pod, pods, run_scheduler, wait_until
from support.fakes.fault_proxy import ProxyFault, run_fault_proxy
from support.harness.deadlines import DEADLINE_S

TWO_PROFILES = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG, qps: 5000, burst: 10000}
leaderElection: {leaderElect: false}
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
"""

ELECTED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG}
leaderElection: {resourceNamespace: NAMESPACE}
"""
"""With upstream's timings: the other process sees a lease expire 15 s after its last renewal."""
STOPPED_S = 20.0


@pytest.fixture
def nodes(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Three nodes that only this test's pods may use."""
    names = [f"{request.node.name.replace('_', '-')[:40]}-{number}".lower() for number in range(3)]
    cluster.apply(*(node(name, labels={"for": request.node.name[:60]}) for name in names))
    yield names
    cluster.kubectl("delete", "node", *names)


def mine(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"nodeSelector": {"for": request.node.name[:60]}}


def test_pods_get_nodes_of_two_profiles(
    cluster: Cluster, namespace: str, nodes: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with run_scheduler(cluster, tmp_path, config=TWO_PROFILES):
        cluster.apply(*(pod(f"spread-{number}", namespace, **mine(request)) for number in range(6)))
        wait_until(
            lambda: all(map(node_name, pods(cluster, namespace).values())), "the pods of one profile have a node"
        )
        packed = {"schedulerName": "packing", **mine(request)}
        cluster.apply(*(pod(f"packed-{number}", namespace, **packed) for number in range(4)))
        wait_until(lambda: all(map(node_name, pods(cluster, namespace).values())), "all pods have a node")
    found = pods(cluster, namespace)
    assert {node_name(found[f"spread-{number}"]) for number in range(6)} == set(nodes)
    assert len({node_name(found[f"packed-{number}"]) for number in range(4)}) == 1


def test_an_unschedulable_pod_gets_a_reason_and_is_requeued(
    cluster: Cluster, namespace: str, nodes: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with run_scheduler(cluster, tmp_path, "--no-leader-elect"):
        cluster.apply(pod("large", namespace, cpu="6", **mine(request)))
        wait_until(lambda: bool(condition(pods(cluster, namespace)["large"])), "the pod has a condition")
        told = condition(pods(cluster, namespace)["large"])
        assert (told["status"], told["reason"]) == ("False", "Unschedulable")
        assert "Insufficient cpu" in told["message"]
        wait_until(lambda: told["message"] in events(cluster, namespace, "FailedScheduling"), "the event says the same")
        larger = node(nodes[0], cpu="8")["status"]
        cluster.kubectl(
            "patch", "node", nodes[0], "--subresource=status", "--type=merge", "-p", json.dumps({"status": larger})
        )
        wait_until(lambda: node_name(pods(cluster, namespace)["large"]) == nodes[0], "the pod has its node")
        note = f"Successfully assigned {namespace}/large to {nodes[0]}"
        wait_until(lambda: note in events(cluster, namespace, "Scheduled"), "the event says where")


@pytest.mark.usefixtures("nodes")
def test_pods_of_lower_priority_are_preempted(
    cluster: Cluster, namespace: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cluster.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": namespace}, "value": 1000}
    )
    with run_scheduler(cluster, tmp_path, "--no-leader-elect"):
        cluster.apply(*(pod(f"weak-{number}", namespace, cpu="3", **mine(request)) for number in range(3)))
        wait_until(lambda: all(map(node_name, pods(cluster, namespace).values())), "the nodes are full")
        cluster.apply(pod("strong", namespace, cpu="2", priorityClassName=namespace, **mine(request)))
        wait_until(lambda: bool(node_name(pods(cluster, namespace)["strong"])), "the strong pod has a node")
        wait_until(lambda: len(pods(cluster, namespace)) == 3, "one weak pod is gone")
        left = pods(cluster, namespace)
        assert "strong" in left
        assert all(map(node_name, left.values()))


@pytest.mark.usefixtures("nodes")
def test_another_process_takes_over_when_the_leader_is_killed(
    cluster: Cluster, namespace: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    config = ELECTED.replace("NAMESPACE", namespace)
    with run_scheduler(cluster, tmp_path, config=config) as first:
        cluster.apply(pod("one", namespace, **mine(request)))
        wait_until(lambda: bool(node_name(pods(cluster, namespace)["one"])), "the first process places a pod")
        with run_scheduler(cluster, tmp_path, config=config) as second:
            first.kill()
            cluster.apply(pod("two", namespace, **mine(request)))
            wait_until(lambda: bool(node_name(pods(cluster, namespace)["two"])), "the second process places a pod")
            second.send_signal(signal.SIGTERM)
            assert second.wait(DEADLINE_S) == 0


@pytest.mark.usefixtures("nodes")
def test_a_stopped_leader_that_resumes_exits_without_writing(
    cluster: Cluster, namespace: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    config = ELECTED.replace("NAMESPACE", namespace)
    with (
        run_fault_proxy(cluster, tmp_path) as proxy,
        run_scheduler(cluster, tmp_path, config=config, kubeconfig=proxy.kubeconfig()) as first,
    ):
        cluster.apply(pod("one", namespace, **mine(request)))
        wait_until(lambda: bool(node_name(pods(cluster, namespace)["one"])), "the first process places a pod")
        first.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        with run_scheduler(cluster, tmp_path, config=config) as second:
            cluster.apply(pod("two", namespace, **mine(request)))
            wait_until(lambda: bool(node_name(pods(cluster, namespace)["two"])), "the second process places a pod")
            wait_until(lambda: time.monotonic() - stopped_s > STOPPED_S, "the first was stopped for long enough")
            second.send_signal(signal.SIGSTOP)
            # This pod is left to the first process alone, which sees it and must not write it.
            cluster.apply(pod("three", namespace, **mine(request)))
            written = proxy.add(ProxyFault(lambda ask: ask.method != "GET"))
            first.send_signal(signal.SIGCONT)
            assert first.wait(DEADLINE_S) == 1
            assert written.seen == []
            assert not node_name(pods(cluster, namespace)["three"])
            second.send_signal(signal.SIGCONT)
