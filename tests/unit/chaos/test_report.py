"""Journals, their summary, recovery times, and resumed campaigns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.campaign import Campaign, failed, load, report
from chaos.configurations import DEFAULT, EVERY, named
from chaos.invariants.base import Violation
from chaos.journal import Journal, read
from chaos.processes import _FRAME, _TRACEBACK
from chaos.proxy.server import WriteLine, WriteLog
from chaos.recovery import Recovery
from chaos.report import as_text, summarize
from chaos.violations import describe
from support.builders.chaos_histories import EventHistory, pod

TOTALS: dict[str, Any] = {
    "created": 5,
    "deleted": 4,
    "bound": 5,
    "evicted": 1,
    "evictions_allowed": 0,
    "scenarios": 1,
    "versions": 70,
    "relists": 3,
    "checks": {"over-commitment": 5, "gpu-shares": 0},
}


def _journal(path: Path, *, done: bool, at: float = 60.0, violation: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    journal.write("started", seed="7:0", configuration="pods@real", minutes=1)
    journal.write("fault", number=1, kind="answer_lost:binding", at=1.0)
    journal.write("effect", number=1, kind="answer_lost:binding", at=2.0)
    journal.write("effect", number=1, kind="answer_lost:binding", at=3.0)
    for took in (1.0, 2.0, 9.0):
        journal.write("recovery", kind="answer_lost:binding", took=took)
    if violation:
        journal.write("violation", invariant="over-commitment", at=4.0, text="two pods")
    journal.write("totals", done=done, at=at, **TOTALS)
    journal.close()
    return path


def test_a_summary_counts_faults_effects_and_recoveries(tmp_path: Path) -> None:
    summary = summarize([_journal(tmp_path / "j", done=True)])
    fault = summary["faults"]["answer_lost:binding"]
    assert (fault["ran"], fault["hit"], fault["effects"]) == (1, 1, 2)
    assert (fault["p50"], fault["max"]) == (2.0, 9.0)
    assert summary["unknown_outcomes"] == 2
    assert summary["totals"]["bound"] == 5
    text = as_text("pods@real", summary)
    assert "complete, 60 s, 0 violations" in text
    assert "never compared anything: gpu-shares" in text


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = _journal(tmp_path / "j", done=False)
    path.write_text(path.read_text() + '{"what": "viol')
    assert [entry["what"] for entry in read(path)][-1] == "totals"


@pytest.mark.parametrize(("late", "violated"), [(110.0, 0), (400.0, 1)])
def test_memory_that_grows_is_a_violation(tmp_path: Path, late: float, violated: int) -> None:
    journal = Journal(tmp_path / "j")
    for age in range(0, 3600, 10):
        journal.write("memory", slot="scheduler", instance=0, age=age, mib=100.0 if age < 1800 else late)
    journal.close()
    summary = summarize([tmp_path / "j"])
    assert [each["invariant"] for each in summary["violations"]] == ["memory-growth"] * violated


def test_a_campaign_is_resumed(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 7, 3.0, ("pods@real", "batch@embedded"))
    campaign.save()
    _journal(tmp_path / "pods@real" / "segment-0" / "journal.jsonl", done=False, at=60.0)
    assert load(tmp_path) == campaign
    assert campaign.minutes_done("pods@real") == 1.0
    assert campaign.minutes_done("batch@embedded") == 0.0
    assert failed(report(campaign)) == ["pods@real", "batch@embedded"]
    _journal(tmp_path / "pods@real" / "segment-1" / "journal.jsonl", done=True)
    assert campaign.minutes_done("pods@real") == campaign.minutes
    assert failed(report(campaign)) == ["batch@embedded"]
    assert "--seed 7" in (tmp_path / "report.txt").read_text()


def test_a_violation_fails_a_campaign_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 7, 1.0, ("pods@real",))
    campaign.save()
    _journal(tmp_path / "pods@real" / "segment-0" / "journal.jsonl", done=True, violation=True)
    whole = report(campaign)
    assert failed(whole) == ["pods@real"]
    assert json.loads((tmp_path / "report.json").read_text())["command"] == campaign.command
    assert "VIOLATION at 4.0 s: over-commitment: two pods" in (tmp_path / "report.txt").read_text()


def test_recovery_is_the_first_other_binding_after_the_fault() -> None:
    waiting, found = [1], list[tuple[str, float]]()
    recovery = Recovery(lambda: waiting[0], lambda kind, took_s: found.append((kind, took_s)))
    recovery.fault("lost", 1.0, pod="hit")
    recovery.binding(2.0, "hit")
    assert found == []
    recovery.binding(4.0, "other")
    assert found == [("lost", 3.0)]
    waiting[0] = 0
    recovery.fault("kill", 5.0)
    recovery.binding(9.0, "other")
    assert found == [("lost", 3.0)], "no pod waited, so there was nothing to recover"


def test_a_violation_has_histories_writes_and_faults_of_its_objects() -> None:
    story = EventHistory()
    one = pod("one")
    story.add(0, one)
    story.bind(1, one, "n")
    writes = WriteLog()
    for path in ("/api/v1/namespaces/chaos-p/pods/one/binding", "/api/v1/namespaces/chaos-p/pods/two/binding"):
        writes.lines.append(WriteLine(1.0, "scheduler", "POST", path, 201, "", b"{}"))
    uid = one["metadata"]["uid"]
    found = describe(
        Violation("bound-once", 2.0, "text", (uid,)), story.world.record, writes, [{"at": 1.5}, {"at": -200.0}]
    )
    assert [each["type"] for each in found["histories"][0]["versions"]] == ["ADDED", "MODIFIED"]
    assert [each["request"] for each in found["writes"]] == ["POST /api/v1/namespaces/chaos-p/pods/one/binding"]
    assert found["faults"] == [{"at": 1.5}]


def test_stack_traces_are_found_with_their_place() -> None:
    log = (
        'W1118 a warning\nTraceback (most recent call last):\n  File "/x/src/bayplan/binder/work.py", line 7, in run\n'
        "    act()\nValueError: no\nI1118 18:00 fine\n"
        '\tTraceback (most recent call last):\n\t  File "/x/src/bayplan/app/live.py", line 9, in go\n'
        "\tKeyError: 1\nI1118\n"
    )
    found = [each[0] for each in _TRACEBACK.finditer(log)]
    assert len(found) == 2
    assert found[0].endswith("ValueError: no\n")
    assert "fine" not in "".join(found)
    assert [_FRAME.findall(each)[0][1:] for each in found] == [("7", "run"), ("9", "go")]


def test_the_default_campaign_has_both_engines_both_binders_pairs_and_both_servers() -> None:
    chosen = named(("all",))
    assert [each.full_name for each in chosen] == list(DEFAULT)
    assert len(chosen) >= 6
    assert {each.server for each in chosen} == {"real", "embedded"}
    assert sum(each.has_leases for each in chosen) == 2
    assert {slot.role for each in chosen for slot in each.slots} == {"scheduler", "run", "batch", "binder"}
    assert len(named(("every",))) == len(EVERY) == 2 * len({each.name for each in EVERY.values()})
