"""The batch engine's benchmarks: workloads, report, and budgets."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from benchmarks import batch_workloads, calibration
from benchmarks.batch import main
from benchmarks.batch_clusters import GANG
from benchmarks.batch_growth import AXES, measure_growth
from benchmarks.batch_naive import disable_caches
from benchmarks.batch_report import BatchReport, BatchRow, SessionGrowth
from benchmarks.batch_workloads import (
    WORKLOADS,
    BatchWorkload,
    Busy,
    full_cluster,
    gangs_in_places,
    place_gangs,
    waiting_gangs,
)
from benchmarks.decision_timing import Latencies, UnexpectedOutcome
from benchmarks.growth import Growth
from click.testing import CliRunner

from bayplan.batch.engine import BatchEngine
from bayplan.batch.session.session import Session

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here depends on timing."""
    monkeypatch.setattr(calibration, "run_s", lambda: calibration.REFERENCE_S)


# workloads


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_done(name: str) -> None:
    found = WORKLOADS[name].measure(20, 2 * GANG, 2)
    assert len(found.rounds.took_us) == len(found.rounds.cpu_us) == 2
    assert (found.cold is not None) == (name == "opening")


def test_gangs_are_spread_over_the_queues_and_all_are_bound() -> None:
    engine = waiting_gangs(20, [3, 3, 3], queues=2)
    with engine.session() as session:
        assert Counter(job.queue for job in session.jobs.values()) == {"queue-0": 2, "queue-1": 1}
        assert {job.min_available for job in session.jobs.values()} == {3}
    assert len(engine.run_session().binds) == 9


def test_sessions_without_caches_decide_the_same() -> None:
    def decided(
        engine: BatchEngine, actions: tuple[str, ...] = ("enqueue", "allocate", "backfill")
    ) -> tuple[dict[str, str], ...]:
        engine.configuration = replace(engine.configuration, actions=actions)
        outcome = engine.run_session()
        return outcome.binds, outcome.evicts, outcome.pipelined

    def everything() -> list[tuple[dict[str, str], ...]]:
        return [
            decided(waiting_gangs(20, [5, 5])),
            decided(gangs_in_places(30, GANG)),
            decided(full_cluster(10, GANG, holder="queue-0", claimant="queue-1"), ("reclaim",)),
            decided(full_cluster(10, GANG, holder="queue-0", claimant="queue-0"), ("preempt",)),
        ]

    # more trials consume more random numbers
    first = patch.object(Session, "tie_break", lambda *given: int(given[-1][0]))
    with first:
        quick = everything()
    with first, disable_caches():
        plain = everything()
    assert quick == plain
    assert [tuple(map(len, each)) for each in plain] == [(10, 0, 0), (GANG, 0, 0), (0, GANG, GANG), (0, GANG, GANG)]


def test_gangs_without_room_are_not_a_measurement() -> None:
    with pytest.raises(UnexpectedOutcome, match="0 of 5000 pods were bound"):
        place_gangs(2, [5000], 1)


def test_an_opening_sees_what_has_changed() -> None:
    busy = Busy(10, 2 * GANG)
    before = {pod.uid: pod for pod in busy.pods}
    busy.change(0.5)
    kept = [pod for pod in busy.pods if before.get(pod.uid) is pod]
    anew = [pod for pod in busy.pods if pod.uid in before and before[pod.uid] is not pod]
    others = [pod for pod in busy.pods if pod.uid not in before]
    assert len(kept) == GANG
    assert anew
    assert others
    with busy.engine.session() as session:
        seen = {task.uid: task.node_name for job in session.jobs.values() for task in job.tasks.values()}
    assert seen == {pod.uid: pod.spec.node_name for pod in busy.pods}


@pytest.mark.parametrize(("action", "claimant"), [("reclaim", "queue-1"), ("preempt", "queue-0")])
def test_each_pod_needs_one_eviction(action: str, claimant: str) -> None:
    engine = full_cluster(20, GANG, holder="queue-0", claimant=claimant)
    assert engine.run_session().binds == {}  # there is no room without
    found = batch_workloads.make_room(action, 20, GANG, 1, holder="queue-0", claimant=claimant)
    assert len(found.rounds.took_us) == 1


def test_impossible_evictions_are_not_a_measurement() -> None:
    with pytest.raises(UnexpectedOutcome, match="0 of 20 pods were evicted"):
        batch_workloads.make_room("reclaim", 20, GANG, 1, holder="queue-0", claimant="queue-0")


# budgets


def row(name: str, seconds: float, *, nodes: int | None = None) -> BatchRow:
    workload = WORKLOADS[name]
    return BatchRow(
        name=name,
        workload=workload,
        nodes=nodes or workload.nodes,
        pods=workload.pods,
        rounds=Latencies([seconds * 1e6], paces=[1.0]),
    )


@pytest.mark.parametrize(
    ("found", "machine", "holds"),
    [
        pytest.param(row("gangs", 3.3), 1.0, True, id="3,030 pods a second"),
        pytest.param(row("gangs", 3.4), 1.0, False, id="2,941 pods a second"),
        pytest.param(row("gangs", 3.4), 1.1, True, id="a slower machine has more time"),
        pytest.param(row("one_gang", 0.51), 1.0, False, id="one gang"),
        pytest.param(row("opening", 0.1), 1.0, True, id="opening"),
        pytest.param(row("opening", 0.101), 1.0, False, id="opening too slowly"),
        pytest.param(row("reclaim", 0.51), 1.0, False, id="reclaim"),
        pytest.param(row("preempt", 0.51), 1.0, False, id="preempt"),
        pytest.param(row("preempt", 9.0, nodes=20), 1.0, None, id="another size"),
        pytest.param(row("hyper_nodes", 9.0), 1.0, None, id="no budget"),
    ],
)
def test_budgets(found: BatchRow, machine: float, holds: bool | None) -> None:
    assert replace(found, rounds=replace(found.rounds, paces=[machine])).holds is holds


def test_pods_a_second_are_reported_if_each_is_decided() -> None:
    assert row("gangs", 2.0).per_s == pytest.approx(5000)
    assert row("opening", 2.0).per_s is None


def test_what_is_over_budget_is_named() -> None:
    squared, linear = {10: 1.0, 100: 100.0}, {10: 1.0, 100: 10.0}
    growth = [
        SessionGrowth(Growth("by jobs", squared), 1.2),
        SessionGrowth(Growth("by nodes", linear), 1.1),
        SessionGrowth(Growth("by queues", squared), None),
    ]
    report = BatchReport(rows=[row("gangs", 9.0), row("one_gang", 0.1)], growth=growth)
    assert report.broken == ["gangs", "growth by jobs"]


# report


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


SMALL = ("--nodes", "20", "--pods", "40", "--rounds", "1")


def test_the_json_has_the_shape_of_the_cores(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "batch.json"
    told = invoke(*SMALL, "--workload", "gangs", "--workload", "opening", "-o", "json", "--file", str(file))
    found = json.loads(file.read_text(encoding="utf-8"))
    assert json.loads(told) == found
    gangs, opening = found["workloads"]
    assert (gangs["workload"], gangs["nodes"], gangs["pods"], gangs["holds"]) == ("gangs", 20, 40, None)
    assert all(gangs[key] > 0 for key in ("decisions_per_s", "p50_us", "p99_us", "cpu_p50_us"))
    assert opening["decisions_per_s"] is None
    assert opening["cold_us"] > 0
    for each in (gangs, opening):
        assert (each["budget_us"], each["volcano_us"]) == (None, None)
    assert gangs["naive_p50_us"] > 0
    assert opening["naive_p50_us"] == opening["cold_us"]
    assert found["machine"]["calibration"] > 0
    assert (found["growth"], found["memory"]) == ([], None)


def test_a_full_size_reports_its_budget_and_volcanos_time() -> None:
    found = row("one_gang", 0.4).as_json()
    assert (found["budget_us"], found["volcano_us"], found["holds"]) == (500_000, 4_700_000, True)


def test_people_get_tables(tmp_path: Path) -> None:
    told = invoke(*SMALL, "--workload", "preempt", "--check", "--file", str(tmp_path / "batch.json"))
    assert "preempt" in told
    assert "budget ms" in told
    assert "batch.json" in told


def test_check_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchRow, "holds", property(lambda _: False))
    result = CliRunner().invoke(
        main, [*SMALL, "--workload", "gangs", "--check", "--file", str(tmp_path / "batch.json")]
    )
    assert result.exit_code == 1
    assert "over budget: gangs" in result.output


@pytest.mark.parametrize("name", AXES)
def test_growth_is_measured_by_one_thing_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def place(nodes: int, sizes: list[int], rounds: int, queues: int) -> Latencies:
        asked.append((nodes, len(sizes), queues))
        return Latencies([float(len(asked) * rounds)])

    monkeypatch.setattr("benchmarks.batch_growth.place_gangs", place)
    found = measure_growth(name)
    assert list(found.found.p50_us) == list(AXES[name].sizes)
    varying = [len(set(values)) > 1 for values in zip(*asked, strict=True)]
    assert varying.count(True) == 1
    assert measure_growth(name, quick=True).holds is None


def test_the_page_describes_every_workload() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## The batch engine")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    told = {cells[0]: (cells[1], cells[4].partition(" s")[0]) for cells in rows if cells[0] in WORKLOADS}
    assert told == {name: (f"{workload.nodes:,}", _budget(workload)) for name, workload in WORKLOADS.items()}


def _budget(workload: BatchWorkload) -> str:
    return "" if workload.budget_us is None else f"{round(workload.budget_us / 1e6, 2):g}"
