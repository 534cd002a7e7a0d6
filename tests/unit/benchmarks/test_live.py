"""Benchmarks on a real API server: the initial state, the computed figures, and results kept between runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from benchmarks import e2e
from benchmarks.live import loop_turns
from benchmarks.live.bind_watch import Process
from benchmarks.live.cluster_setup import path_of
from benchmarks.live.comparison import Comparison, ContenderResult
from benchmarks.live.initial_state import Churn, Deletion, InitialState, UnsupportedWorkload, build_initial_state
from benchmarks.live.pod_churn import unique_pod
from benchmarks.perf.configs import TestCase, Workload, load_all

POD = """
metadata: {generateName: pod-}
spec: {containers: [{name: c, resources: {requests: {cpu: 900m}}}]}
"""
NODES = {"opcode": "createNodes", "count": 2}
BEFORE = {"opcode": "createPods", "count": 3, "podTemplatePath": "pod.yaml"}
MEASURED = {**BEFORE, "count": 2, "collectMetrics": True}


def case_of(folder: Path, *operations: dict[str, Any]) -> tuple[TestCase, Workload]:
    (folder / "pod.yaml").write_text(POD)
    content = [{"name": "Case", "workloadTemplate": list(operations), "workloads": [{"name": "w"}]}]
    (folder / "performance-config.yaml").write_text(json.dumps(content))
    (case,) = load_all(folder)
    return case, case.workloads[0]


def stage_of(folder: Path, *operations: dict[str, Any]) -> InitialState:
    return build_initial_state(*case_of(folder, *operations))


def test_pods_of_earlier_operations_are_bound_and_measured_ones_pending(tmp_path: Path) -> None:
    initial = stage_of(tmp_path, NODES, BEFORE, MEASURED)
    placed = [tree for tree in initial.pods if tree["spec"].get("nodeName")]
    assert (len(initial.pods), len(placed), len(initial.measured), initial.nodes) == (5, 3, 2, 2)
    assert initial.namespace == "namespace-2"
    assert {tree["kind"] for tree in initial.trees} == {"Node"}


def test_background_load_is_recorded_for_later(tmp_path: Path) -> None:
    churn = {"opcode": "churn", "mode": "create", "templatePaths": ["pod.yaml"], "intervalMilliseconds": 200}
    gone = {"opcode": "deletePods", "namespace": "namespace-1", "deletePodsPerSecond": 50, "skipWaitToCompletion": True}
    initial = stage_of(tmp_path, NODES, BEFORE, churn, gone, MEASURED)
    churned, deleted = initial.beside
    assert isinstance(churned, Churn)
    assert (churned.every_s, churned.recreate) == (0.2, False)
    assert isinstance(deleted, Deletion)
    assert (len(deleted.pods), deleted.every_s) == (3, 0.02)
    assert len(initial.pods) == 5


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"opcode": "startCollectingMetrics", "namespaces": ["x"]}, id="between-operations"),
        pytest.param({**MEASURED, "steadyState": True, "duration": "1s"}, id="steady"),
    ],
)
def test_steady_state_measurements_are_unsupported(tmp_path: Path, operation: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedWorkload, match="steady state of a running scheduler"):
        stage_of(tmp_path, NODES, operation)


def reached(name: str, *moments: float, cpu_s: float = 1.0, after_s: float = 0.0) -> ContenderResult:
    return ContenderResult(name, moments, cpu_s, 2.0, 100.0, after_s)


def test_figures_of_a_contender() -> None:
    found = reached("bayplan", *(10 + number / 100 for number in range(101)), cpu_s=0.0505, after_s=1.0).as_json()
    assert found["pods_per_s"] == 100.0
    assert found["pods_per_s_p50"] == pytest.approx(100.0, rel=0.05)
    assert (found["latency_ms_p50"], found["latency_ms_p99"]) == (500.0, 990.0)
    assert found["cpu_us_a_pod"] == 500.0
    assert found["pods_per_s_with_events"] == 50.5


def test_a_pause_belongs_to_the_pods_after_it() -> None:
    found = reached("bayplan", 0.0, 0.1, 0.2, 1.3, 1.4, 1.6).as_json()
    assert found["pods_per_s_p50"] == pytest.approx((3 / 0.25 + 2 / 1.25) / 2, rel=0.01)


def test_ratios_are_over_the_peer_and_over_the_best_loop() -> None:
    race = Comparison(
        reached("kube-scheduler", 0.0, 4.0, cpu_s=4.0),
        reached("bayplan", 0.0, 1.0, cpu_s=1.0),
        [reached("bare-loop-16", 0.0, 0.8), reached("bare-loop-32", 0.0, 0.5)],
    ).as_json()
    assert (race["ratio_throughput"], race["ratio_limit"], race["ratio_cpu"]) == (4.0, 0.5, 0.25)
    assert race["bare_loop"]["pods_per_s"] == 2.0


def test_the_processor_is_counted_from_before_the_first_binding() -> None:
    process = Process(1, seen=[(0.0, 1.0), (1.0, 2.0), (2.0, 5.0), (3.0, 7.0)])
    assert process.cpu_between(1.5, 2.5) == 5.0


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a"}}, "/api/v1/namespaces/a/pods"),
        (
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {}},
            "/apis/resource.k8s.io/v1/deviceclasses",
        ),
    ],
)
def test_path_of_a_collection(tree: dict[str, Any], path: str) -> None:
    assert path_of(tree) == path


def test_only_failed_workloads_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "e2e.json"
    rows = [
        {"workload": "A", "upstream_workload": "w", "params": {"n": 1}, "ratio_throughput": 2.0},
        {"workload": "B", "upstream_workload": "w", "params": {}, "failed": "no answer"},
        {"workload": "C", "upstream_workload": "w", "params": {}, "failed": "steady", "cannot_be_staged": True},
    ]
    e2e.write(rows, file)
    assert [key[0] for key in e2e.read(file)] == ["A", "C"]


BOUND = {"unbound": 0}


@pytest.mark.parametrize(
    ("row", "holds"),
    [
        ({"workload": "Other", "ratio_throughput": 1.2, "ratio_limit": 0.1, "bayplan": BOUND, "ratio_cpu": 2.0}, True),
        ({"workload": "Other", "ratio_throughput": 0.9, "ratio_limit": 1.0, "bayplan": BOUND, "ratio_cpu": 0.1}, False),
        (
            {
                "workload": "SchedulingBasic",
                "ratio_throughput": 2.1,
                "ratio_limit": 0.9,
                "bayplan": BOUND,
                "ratio_cpu": 0.3,
            },
            False,
        ),
        (
            {
                "workload": "SchedulingBasic",
                "ratio_throughput": 2.1,
                "ratio_limit": 0.9,
                "bayplan": BOUND,
                "ratio_cpu": 0.2,
            },
            True,
        ),
        ({"workload": "Other", "bayplan": {"unbound": 1}, "ratio_throughput": 3.0}, False),
        ({"workload": "Other", "failed": "no answer"}, None),
    ],
)
def test_goals(row: dict[str, Any], holds: bool | None) -> None:
    assert e2e.holds(row) is holds


def test_pods_of_the_soak_share_no_label_with_another_job() -> None:
    first, second = (json.loads(json.dumps(unique_pod(number)))["metadata"] for number in (1, 51))
    own = {key for key in first["labels"] if first["labels"][key] != second["labels"][key]}
    assert own == {"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}


def test_steal_time_is_subtracted_from_a_turn(tmp_path: Path) -> None:
    """The steal time of the processor on which the turn ended, and only what cannot be from before the turn."""
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    stat, own = tmp_path / "stat", tmp_path / "own"
    own.write_text("7 (a name) with) R " + " ".join(["0"] * 35) + " 1 0 0")

    def counted(first: int, second: int) -> None:
        lines = [f"cpu  1 2 3 4 5 6 7 {first + second} 9 0", f"cpu0 1 2 3 4 5 6 7 {first} 9 0"]
        stat.write_text("\n".join([*lines, f"cpu1 1 2 3 4 5 6 7 {second} 9 0", "intr 8 9 10"]))

    counted(10, 100)
    stolen = loop_turns.Stolen(stat, own)
    stolen.look(50.0)
    counted(90, 120)
    stolen.look(50.001)  # too early for another sample
    assert stolen.since(50.0) == pytest.approx(20 * tick_s)
    assert stolen.since(50.0 + 5 * tick_s) == pytest.approx(15 * tick_s)
    assert stolen.since(60.0) == 0.0
    stolen.look(51.0)
    assert stolen.since(51.0) == 0.0
    assert loop_turns.Stolen(tmp_path / "none", own).since(0.0) == 0.0
