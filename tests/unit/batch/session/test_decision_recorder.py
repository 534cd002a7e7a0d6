"""Decision records: what is kept of choices until tasks are bound."""

from __future__ import annotations

import pytest

from bayplan.batch.model.tasks import Task
from bayplan.batch.session import decision_recorder
from bayplan.batch.session.decision_recorder import DecisionRecorder, make_ranking
from bayplan.clock import ManualClock
from bayplan.telemetry.decisions import MAX_RECORD_BYTES, DecisionRing, ScoredNode
from bayplan.testing import BatchHarness, make_gang, make_node


def task() -> Task:
    gang = make_gang("job", 1)
    with BatchHarness(nodes=[make_node("n")], gangs=[gang]) as harness, harness.session() as session:
        found = harness.task(session, gang.pods[0])
        found.node_name = "n"
        return found


def test_a_choice_of_another_node_is_not_recorded() -> None:
    ring, one = DecisionRing(), task()
    recorder = DecisionRecorder(ring, ManualClock())
    recorder.note_choice(one, "n", 2, make_ranking(("n", "m"), ("binpack",), [2.5, 2.5, 1.0, 1.0]))
    recorder.note_choice(one, "m", 7)  # from a trial that was undone
    recorder.record_decision(one, 9)
    (record,) = ring
    assert (record.pod, record.node, record.nodes, record.feasible) == (one.key, "n", 9, 2)
    assert record.best == (ScoredNode("n", 2.5, (("binpack", 2.5),)), ScoredNode("m", 1, (("binpack", 1),)))


def test_the_number_of_pending_choices_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_recorder, "_MAX_PENDING_CHOICES", 3)
    ring, one = DecisionRing(), task()
    recorder = DecisionRecorder(ring, ManualClock())
    for node in ("n", "a", "b", "c"):
        recorder.note_choice(one, node, 2)
    recorder.record_decision(one, 9)
    (record,) = ring
    assert record.feasible == 0  # the oldest choice was dropped
    many = tuple(f"{'x' * 250}-{number}" for number in range(5))
    plugins = tuple(f"plugin-{number}" for number in range(20))
    scores = [1.0] * (len(many) * (1 + len(plugins)))
    assert make_ranking(many, plugins, scores).size_bytes <= MAX_RECORD_BYTES // 2
