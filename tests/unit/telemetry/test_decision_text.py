"""Sentences about victims, nominations and names; other sentences are tested in `test_decisions`."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.telemetry.decision_text import decision_sentence, join_names
from bayplan.telemetry.decisions import FLOATS, DecisionRecord, Ranking


def record(**fields: Any) -> DecisionRecord:
    decision: dict[str, Any] = {
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "pod": "default/p",
        "uid": "u",
        "profile": "default-scheduler",
        "node": None,
        "outcome": "unschedulable",
        "message": "0/2 nodes are available: 2 Insufficient cpu.",
        "nodes": 2,
        "feasible": 0,
    }
    return DecisionRecord(**{**decision, **fields})


def placed(**fields: Any) -> DecisionRecord:
    return record(**{"node": "a", "outcome": "scheduled", "message": "", "feasible": 2, **fields})


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        pytest.param(
            record(nominated="a", victims=("d/x",)), "fits no node yet; it fits a once d/x is gone", id="one-victim"
        ),
        pytest.param(
            record(nominated="a", victims=("d/x", "d/z")),
            "fits no node yet; it fits a once d/x and d/z are gone",
            id="two-victims",
        ),
        pytest.param(
            record(nominated="a", victims=("d/x", "d/y", "d/z")),
            "fits no node yet; it fits a once d/x, d/y and d/z are gone",
            id="three-victims",
        ),
        pytest.param(record(nominated="a"), "fits no node yet; resources on a are reserved for it", id="no-victims"),
        pytest.param(placed(nominated="a", feasible=1), "it was nominated to this node before", id="nominated"),
        pytest.param(placed(feasible=0), "placed without a comparison of nodes", id="uncompared"),
        pytest.param(
            placed(
                ranking=Ranking(
                    ("a", "b"), ("binpack", "drf"), array(FLOATS, [1.3, 0.3, 1, 1.0, 0.1, 0.9]).tobytes(), 2, FLOATS
                )
            ),
            "best of 2 with 1.3, 0.3 ahead of b (binpack +0.2)",
            id="floats",
        ),
        pytest.param(placed(), "one of 2 that fit; no plugin prefers any", id="nothing-scored"),
    ],
)
def test_the_sentence_of_a_decision(decision: DecisionRecord, text: str) -> None:
    assert decision_sentence(decision) == text


@pytest.mark.parametrize(
    ("names", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")], ids=["1", "2", "3"]
)
def test_names_in_a_sentence(names: list[str], text: str) -> None:
    assert join_names(names) == text
