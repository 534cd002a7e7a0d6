"""Every workload can be set up and decided by the engine and by the naive twins, with equal decisions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from benchmarks import clusters
from benchmarks.decision_timing import (
    Latencies,
    UnexpectedOutcome,
    compare,
    decide,
    engine_on,
    fill_cluster,
    pods_of,
    run,
)
from benchmarks.naive import decide_with_twins, preempt_with_twins
from benchmarks.one_node import Simple, measure_cost
from benchmarks.workloads import WORKLOADS, Workload

from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert

NODES, PODS = 30, 6
NAMES = (
    "basic_identical all_different templates_10 templates_100 filling_up node_affinity taints affinity_required "
    "affinity_preferred anti_affinity spread_hard spread_default preemption mixed volumes dra one_node_plugin"
)


def test_the_workloads_are_the_documented_ones() -> None:
    assert list(WORKLOADS) == NAMES.split()


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_pod_is_decided_and_the_twins_agree(name: str) -> None:
    workload = WORKLOADS[name]
    latencies, engine = run(workload, NODES, PODS)
    more = pods_of(workload, 1, first=PODS)
    plainly = (
        preempt_with_twins(engine, more, datetime.now(UTC)) if workload.preempts else decide_with_twins(engine, more)
    )
    assert len(latencies.took_us) == PODS
    assert len(plainly.took_us) == 1


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.against_full])
def test_sharing_and_full_evaluation_decide_the_same_pods(name: str) -> None:
    both = compare(WORKLOADS[name], NODES, PODS)
    assert len(both.shared.took_us) == len(both.full.took_us) == PODS
    assert both.ratio > 0


def test_a_per_node_plugin_evaluates_every_remaining_node() -> None:
    latencies, engine, cost = measure_cost(WORKLOADS["one_node_plugin"], 120, PODS)
    unlucky = 12
    assert len(latencies.took_us) == PODS
    assert cost.asked == 120 + 120 - unlucky
    assert cost.own_us > 0
    assert engine.sample_size("default-scheduler").percentage == 100
    decided = decide_with_twins(engine, pods_of(WORKLOADS["one_node_plugin"], 1, first=PODS), Simple)
    assert len(decided.took_us) == 1


def test_a_preempting_pod_leaves_the_cluster_as_it_was() -> None:
    _, engine = run(WORKLOADS["preemption"], NODES, PODS)
    assert engine.cache.pod_count == NODES * 6
    assert not engine.nominator.nodes()


def test_every_pod_of_filling_up_fills_its_node() -> None:
    workload = WORKLOADS["filling_up"]
    _, engine = run(workload, NODES, NODES)
    one_more = [engine.prepare(pod) for pod in pods_of(workload, 1, first=NODES)]
    with pytest.raises(UnexpectedOutcome, match="Insufficient cpu"):
        list(decide(engine, one_more, workload))


def test_nodes_have_what_real_ones_have() -> None:
    node = convert(clusters.node(10), Node)
    assert {clusters.HOST, clusters.ZONE, "kubernetes.io/arch"} <= node.labels.keys()
    assert {"cpu", "memory", "pods", "ephemeral-storage", "nvidia.com/gpu"} <= node.status.allocatable.keys()
    assert len(node.status.images) == 10
    assert (
        clusters.node(1)["metadata"]["labels"][clusters.ZONE] != clusters.node(2)["metadata"]["labels"][clusters.ZONE]
    )


def test_no_two_pods_of_all_different_are_alike() -> None:
    pods = pods_of(WORKLOADS["all_different"], 50)
    assert len({str(pod.spec.containers) for pod in pods}) == 50


@pytest.mark.parametrize("name", WORKLOADS)
def test_names_are_not_used_twice(name: str) -> None:
    cache = fill_cluster(WORKLOADS[name], NODES, PODS)
    waiting = {pod.uid for pod in pods_of(WORKLOADS[name], PODS + 3)}
    assert not waiting & {pod.uid for pod in cache.pods()}


def test_the_same_seed_decides_the_same() -> None:
    workload = WORKLOADS["basic_identical"]
    chosen = []
    for _ in range(2):
        engine = engine_on(fill_cluster(workload, NODES, PODS), seed=3)
        chosen.append([engine.place(pod).node for pod in pods_of(workload, PODS)])
    assert chosen[0] == chosen[1]


def test_an_unschedulable_pod_ends_the_measurement() -> None:
    huge = Workload(about="", pod=lambda number: clusters.pod(f"p{number}", nodeName="", nodeSelector={"no": "where"}))
    with pytest.raises(UnexpectedOutcome, match="p0"):
        run(huge, 3, 1)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 6.0), (0.99, 10.0), (1.0, 10.0)])
def test_percentiles_are_values_that_were_measured(share: float, expected: float) -> None:
    assert Latencies([float(value) for value in range(10, 0, -1)]).percentile(share) == expected


def test_decisions_a_second_are_those_of_the_mean() -> None:
    assert Latencies([100.0, 300.0]).per_s == 5000.0


def test_pods_of_a_deployment_have_their_owner() -> None:
    pod = convert(WORKLOADS["spread_default"].pod(1), Pod)
    assert pod.metadata.controller is not None
    assert pod.metadata.controller.kind == "ReplicaSet"
