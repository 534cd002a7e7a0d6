"""The report of a run for programs and people, and the judgement of budgets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import calibration, memory
from benchmarks.core import main
from benchmarks.decision_timing import Latencies
from benchmarks.growth import Growth
from benchmarks.memory import Memory
from benchmarks.one_node import Cost
from benchmarks.report import BUDGET_NODES, Report, Row
from benchmarks.workloads import FULL_RATIO, ONE_NODE_US, WORKLOADS, Workload
from click.testing import CliRunner


def row(name: str, p50_us: float, *, nodes: int = BUDGET_NODES, full_us: float | None = None) -> Row:
    full = None if full_us is None else Latencies([full_us])
    found = Latencies([p50_us], paces=[1.0])
    return Row(name=name, workload=WORKLOADS[name], nodes=nodes, latencies=found, full=full)


def one_node(*, more_us: float, own_us: float) -> Row:
    return replace(row("one_node_plugin", 3000.0), cost=Cost(asked=1000, more_us=more_us, own_us=own_us))


@pytest.mark.parametrize(
    ("found", "machine", "holds"),
    [
        pytest.param(row("basic_identical", 50.0), 1.0, True, id="just within"),
        pytest.param(row("basic_identical", 51.0), 1.0, False, id="over"),
        pytest.param(row("basic_identical", 99.0), 2.0, True, id="a machine half as fast has twice the time"),
        pytest.param(row("basic_identical", 26.0), 0.5, False, id="a faster one has less"),
        pytest.param(row("preemption", 19_999.0), 1.0, True, id="preemption has milliseconds"),
        pytest.param(row("templates_10", 110.0, full_us=100.0), 9.0, True, id="a ratio needs no calibration"),
        pytest.param(row("templates_10", 111.0, full_us=100.0), 9.0, False, id="sharing costs too much"),
        pytest.param(one_node(more_us=2500.0, own_us=500.0), 1.0, True, id="two microseconds a node"),
        pytest.param(one_node(more_us=2600.0, own_us=500.0), 1.0, False, id="more than two"),
        pytest.param(one_node(more_us=2600.0, own_us=500.0), 1.1, True, id="a slower machine has more"),
        pytest.param(row("mixed", 1e9), 1.0, None, id="no budget"),
        pytest.param(row("basic_identical", 1e9, nodes=400), 1.0, None, id="another size"),
    ],
)
def test_budgets(found: Row, machine: float, holds: bool | None) -> None:
    disturbed = [machine, 50.0, machine / 50.0]
    assert replace(found, latencies=replace(found.latencies, paces=disturbed)).holds is holds


def test_of_several_rounds_the_one_counts_that_was_disturbed_least() -> None:
    first = replace(row("taints", 70.0), naive=Latencies([9e5]))
    later = row("taints", 60.0).or_quieter(first)
    assert (later.latencies.p50_us, later.naive) == (60.0, first.naive)
    assert row("taints", 65.0).or_quieter(later) == later
    quiet, loud = one_node(more_us=900.0, own_us=500.0), one_node(more_us=1900.0, own_us=500.0)
    assert loud.or_quieter(quiet) == quiet.or_quieter(loud) == quiet


def test_the_machine_is_what_it_was_most_of_the_time() -> None:
    rows = [replace(row("taints", 1.0), latencies=Latencies([1.0], paces=[pace])) for pace in (0.7, 1.4, 0.8)]
    report = Report(rows=rows)
    assert report.calibration == 0.8
    assert [each["calibration"] for each in report.as_json()["workloads"]] == [0.7, 1.4, 0.8]


def test_what_is_over_budget_is_named() -> None:
    report = Report(
        rows=[row("basic_identical", 60.0), row("taints", 60.0)],
        growth=[Growth("all_different", {10: 1.0, 100: 11.0}), Growth("basic_identical", {10: 1.0, 100: 9.0})],
        memory=Memory(1, 1, 1.0, 10.0, 1536.1),
    )
    assert report.broken == ["basic_identical", "growth of all_different", "memory"]


@pytest.mark.parametrize(("power", "factor"), [(0.0, 5.0), (1.0, 0.1), (0.5, 3.0)])
def test_the_exponent_is_the_power_of_the_law(power: float, factor: float) -> None:
    found = Growth("basic_identical", {nodes: factor * nodes**power for nodes in (500, 2000, 15_000)})
    assert found.exponent == pytest.approx(power, abs=1e-9)


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here depends on timing."""
    monkeypatch.setattr(calibration, "run_s", lambda: calibration.REFERENCE_S)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


SMALL = ("--nodes", "20", "--pods", "4", "--naive-pods", "1")


def test_the_json_has_the_promised_shape(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "core.json"
    told = invoke(
        *SMALL, "--workload", "basic_identical", "--workload", "templates_10", "-o", "json", "--file", str(file)
    )
    found = json.loads(file.read_text(encoding="utf-8"))
    assert json.loads(told) == found
    assert [each["workload"] for each in found["workloads"]] == ["basic_identical", "templates_10"]
    for each in found["workloads"]:
        assert (each["nodes"], each["pods"]) == (20, 4)
        assert all(each[key] > 0 for key in ("decisions_per_s", "p50_us", "p99_us", "cpu_p50_us", "naive_p50_us"))
    assert found["workloads"][1]["full_ratio"] > 0
    assert found["machine"]["calibration"] > 0
    assert {"python", "numpy", "cpu", "cores"} <= found["machine"].keys()
    assert (found["growth"], found["memory"]) == ([], None)


def test_people_get_tables(tmp_path: Path) -> None:
    told = invoke(*SMALL, "--workload", "spread_hard", "--file", str(tmp_path / "core.json"))
    assert "spread_hard" in told
    assert "naive p50" in told
    assert "core.json" in told


def test_the_twins_can_be_left_out(tmp_path: Path) -> None:
    told = invoke("--nodes", "20", "--pods", "4", "--naive-pods", "0", "--workload", "basic_identical", "-o", "json",
                  "--file", str(tmp_path / "core.json"))  # fmt: skip
    assert json.loads(told)["workloads"][0]["naive_p50_us"] is None


def test_a_workload_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(main, ["--workload", "nonsense"])
    assert result.exit_code == 2
    assert "basic_identical" in result.output


def test_the_calibration_loop_does_all_of_its_work() -> None:
    assert calibration.work(3) == calibration.work(3)
    assert calibration.work(3) != calibration.work(4)


def test_figures_of_the_whole_run_use_the_median_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [3.0]
    monkeypatch.setattr(calibration, "REFERENCE_S", 1.0)
    monkeypatch.setattr(calibration, "run_s", lambda: current[0])
    found = calibration.Calibration()
    assert found.value == 3.0
    for current[0] in (1.0, 2.0):
        found.measure_again()
    assert found.value == 2.0


def test_memory_is_measured_of_pods_of_real_sizes() -> None:
    texts = list(memory.pod_texts(7, 300))
    assert len({bytes(text) for text in texts}) == 300
    assert min(map(len, texts)) > 1500
    assert 6000 < max(map(len, texts)) < 8000
    found = memory.fill(7, 300)
    assert (found.nodes, found.pods) == (7, 300)
    assert 10 < found.resident_mib <= found.peak_mib


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    found: Any = memory.measure_memory(3, 20)
    assert found.pods == 20
    assert found.holds


def test_the_page_describes_every_workload_with_its_budget() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    table = page.partition("| workload | pods | the cluster before | budget |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]
    told = {name.strip("`"): budget for name, _, _, budget in rows}
    assert told == {name: _budget(workload) for name, workload in WORKLOADS.items()}


def _budget(workload: Workload) -> str:
    if workload.against_full:
        return f"{FULL_RATIO} of a full evaluation"
    if workload.one_by_one:
        return f"{ONE_NODE_US:.0f} µs a node"
    if workload.budget is None:
        return ""
    us = workload.budget.value
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.0f} ms"
