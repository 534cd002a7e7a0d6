"""Decisions on the page: of sessions only new ones, with sentences that are built on request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from bayplan.telemetry.decisions import FLOATS, DecisionRecord, Ranking
from bayplan.telemetry.page_feed import MAX_KEPT, MAX_RETURNED, SessionDecisions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Session:
    """A session outcome."""

    binds: dict[str, str] = field(default_factory=dict)
    evicts: dict[str, str] = field(default_factory=dict)
    messages: dict[str, Any] = field(default_factory=dict)
    final_gauges: dict[str, dict[str, float]] = field(default_factory=dict)


def sessions() -> SessionDecisions:
    return SessionDecisions(lambda: NOON)


def bound(pod: str) -> DecisionRecord:
    ranking = Ranking(("a", "b"), ("binpack",), array(FLOATS, [2.5, 2.5, 1, 1]).tobytes(), 2, FLOATS)
    return DecisionRecord(NOON, pod, "u", "volcano", "a", "scheduled", "", nodes=3, feasible=2, ranking=ranking)


def test_bound_pods_have_the_sentence_of_their_decision() -> None:
    found = sessions()
    found.records.add(bound("d/x"))
    found.add_session(Session(binds={"d/x": "a", "d/old": "b"}))
    count, entries = found.since(0)
    assert count == 2
    assert [(each.pod, each.node, each.text) for each in entries] == [
        ("d/x", "a", "best of 2 with 2.5, 1.5 ahead of b (binpack +1.5)"),
        ("d/old", "b", "placed by a session"),
    ]
    assert found.since(count) == (2, [])


def test_a_pending_pod_is_reported_when_its_message_changes() -> None:
    found = sessions()
    for text in ("full", "full", "fuller"):
        found.add_session(Session(messages={"d/x": SimpleNamespace(message=text)}, evicts={"d/y": "reclaim"}))
    _, entries = found.since(0)
    assert [each.text for each in entries if each.outcome == "unschedulable"] == ["full", "fuller"]
    assert [each.text for each in entries if each.outcome == "evicted"] == ["evicted by reclaim"] * 3


def test_the_numbers_of_kept_and_returned_decisions_are_limited() -> None:
    found = sessions()
    found.add_session(Session(binds={f"d/{number}": "a" for number in range(2 * MAX_KEPT)}))
    count, entries = found.since(0)
    assert (count, len(entries), entries[-1].pod) == (2 * MAX_KEPT, MAX_RETURNED, f"d/{2 * MAX_KEPT - 1}")
