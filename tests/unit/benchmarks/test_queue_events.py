"""The benchmark of queue events: every case has the described effect, and a run reports it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import calibration
from benchmarks.queue_events import CASES, FEW_KINDS, PODS, Case, main, measure
from click.testing import CliRunner


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here depends on timing."""
    monkeypatch.setattr(calibration, "run_s", lambda: calibration.REFERENCE_S)


@pytest.mark.parametrize("kinds", [2, 30], ids=["few-kinds", "all-different"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.plugin)
def test_every_case_requeues_the_described_pods(case: Case, kinds: int) -> None:
    found = measure(case, 30, kinds)
    assert found.woken == (30 if case.wakes else 0)
    assert found.holds(1.0) is None, "budgets are about ten thousand pods"


def test_a_budget_is_for_the_whole_event_and_for_every_slice() -> None:
    found = replace(measure(CASES[0], 20, FEW_KINDS), pods=PODS, total_ms=1.5, longest_ms=1.5)
    assert (found.budget_ms, found.holds(1.0), found.holds(2.0)) == (1.0, False, True)
    assert replace(found, kinds=PODS).holds(1.0)
    assert not replace(found, kinds=PODS, longest_ms=11.0).holds(1.0)
    assert replace(found, case=CASES[-1], total_ms=500.0).holds(1.0)


def test_a_run_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = CliRunner().invoke(main, ["--quick", "--check", "--file", str(file)])
    assert done.exit_code == 0, done.output
    told = json.loads(file.read_text())
    assert len(told["events"]) == 2 * len(CASES)
    assert {"case", "kinds", "total_ms", "budget_ms", "longest_slice_ms", "holds"} <= told["events"][0].keys()
