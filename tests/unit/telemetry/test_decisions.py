"""Decision records: their size, the ring of the newest records, and their sentences."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.telemetry.decision_text import decision_sentence
from bayplan.telemetry.decisions import (
    FLOATS,
    INTEGERS,
    REASON_BYTES,
    DecisionRecord,
    DecisionRing,
    Ranking,
    ReasonCount,
    display_score,
    text_bytes,
)

EMPTY_BYTES = 256 + len("default/p") + len("u")


def record(pod: str = "default/p", **fields: Any) -> DecisionRecord:
    known: dict[str, Any] = {"node": None, "outcome": "unschedulable", "message": "", "nodes": 2, "feasible": 0}
    return DecisionRecord(datetime(2026, 1, 1, tzinfo=UTC), pod, "u", "default-scheduler", **{**known, **fields})


def ranking(*totals: int, names: str = "abcde", plugin: str = "Fit") -> Ranking:
    """Nodes whose totals come from one plugin."""
    scores = array(INTEGERS, [number for total in totals for number in (total, total)]).tobytes()
    return Ranking.fit(1000, tuple(names[: len(totals)]), (plugin,), scores)


@pytest.mark.parametrize(
    ("score", "text"),
    [(2.0, "2"), (2.5, "2.5"), (0.1 + 0.2, "0.3"), (1.0000001, "1"), (1.000001, "1.000001"), (-3.0, "-3"), (7, "7")],
)
def test_scores_are_rounded_for_display(score: float, text: str) -> None:
    assert str(display_score(score)) == text


@pytest.mark.parametrize(("text", "size"), [("", 0), ("abc", 3), ("é", 2), ("aé", 3)])
def test_the_size_of_a_text_is_its_size_in_utf8(text: str, size: int) -> None:
    assert text_bytes(text) == size


@pytest.mark.parametrize(
    ("budget", "kept"), [(1000, 3), (129, 3), (128, 2), (86, 2), (85, 1), (43, 1), (42, 0), (0, 0)]
)
def test_a_ranking_has_the_nodes_that_fit_its_budget(budget: int, kept: int) -> None:
    scores = array(INTEGERS, [9, 9, 8, 8, 7, 7]).tobytes()
    found = Ranking.fit(budget, ("aaa", "bbb", "ccc"), ("Fit",), scores)
    assert found.nodes == ("aaa", "bbb", "ccc")[:kept]
    assert found.size_bytes == kept * 43 <= max(budget, 0)
    assert [(each.node, each.total, each.by_plugin) for each in found.scored_nodes()] == [
        (name, total, (("Fit", total),)) for name, total in (("aaa", 9), ("bbb", 8), ("ccc", 7))[:kept]
    ]


@pytest.mark.parametrize(("budget", "kept"), [(162, 2), (161, 1), (81, 1), (80, 0)])
def test_every_plugin_counts_for_the_size_of_a_ranking(budget: int, kept: int) -> None:
    scores = array(INTEGERS, [9, 4, 5, 8, 4, 4]).tobytes()
    found = Ranking.fit(budget, ("a", "b"), ("Fit", "Taint"), scores)
    assert [(each.node, each.total, each.by_plugin) for each in found.scored_nodes()] == [
        ("a", 9, (("Fit", 4), ("Taint", 5))),
        ("b", 8, (("Fit", 4), ("Taint", 4))),
    ][:kept]


def test_float_scores_are_rounded() -> None:
    scores = array(FLOATS, [1.5, 0.1 + 0.2]).tobytes()
    (found,) = Ranking(("a",), ("binpack",), scores, 1, FLOATS).scored_nodes()
    assert (found.total, found.by_plugin) == (1.5, (("binpack", 0.3),))


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        pytest.param({}, 0, id="nothing"),
        pytest.param({"message": "éa"}, 3, id="message"),
        pytest.param({"ranking": ranking(9)}, 41, id="ranking"),
        pytest.param({"reasons": (ReasonCount("Fit", "full", 2, b"12"),)}, 4 + 2 + REASON_BYTES, id="reason"),
        pytest.param({"victims": ("d/x", "d/é")}, 3 + 4, id="victims"),
    ],
)
def test_the_size_of_a_record(fields: dict[str, Any], more: int) -> None:
    assert record(**fields).size_bytes == EMPTY_BYTES + more


def test_the_short_sentence_of_a_record() -> None:
    assert record(message="full").sentence() == "default/p stays pending: full"
    assert record(node="a").sentence() == "default/p goes to a"


@pytest.mark.parametrize(("spare", "kept"), [(0, 3), (-1, 2)], ids=["all fit", "one byte less"])
def test_the_ring_keeps_the_newest(spare: int, kept: int) -> None:
    ring = DecisionRing(3 * EMPTY_BYTES + spare)
    for number in range(3):
        ring.add(record(message="", feasible=number))
    assert [each.feasible for each in ring] == [0, 1, 2][3 - kept :]
    assert (len(ring), ring.size_bytes, ring.added) == (kept, kept * EMPTY_BYTES, 3)
    assert [each.feasible for each in ring.newest(2)] == [1, 2]
    assert [each.feasible for each in ring.newest(9)] == [0, 1, 2][3 - kept :]


def test_latest_returns_the_newest_record_of_a_pod() -> None:
    ring = DecisionRing()
    for pod, feasible in (("d/a", 1), ("d/b", 2), ("d/a", 3)):
        ring.add(record(pod, feasible=feasible))
    found = ring.latest("d/a")
    assert found is not None
    assert found.feasible == 3
    assert ring.latest("d/c") is None


@pytest.mark.parametrize(("limit", "keeps"), [(0, False), (1, True)])
def test_a_ring_of_no_bytes_keeps_no_record(limit: int, keeps: bool) -> None:
    ring = DecisionRing(limit)
    assert ring.keeps_any is keeps
    ring.add(record())
    assert (len(ring), ring.size_bytes, ring.added) == (0, 0, 1)


FULL, TAINTED = ReasonCount("Fit", "were full", 3), ReasonCount("Taint", "had taints", 1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"outcome": "error", "message": "boom"}, "the attempt failed: boom", id="error"),
        pytest.param({"message": "full"}, "full", id="nowhere"),
        pytest.param({"node": "a", "feasible": 1}, "the only node that fits", id="only one node"),
        pytest.param(
            {"node": "a", "feasible": 1, "reasons": (FULL, TAINTED)},
            "the only node that fits; other nodes: 3 were full, 1 had taints",
            id="other nodes",
        ),
        pytest.param(
            {"node": "a", "feasible": 1, "reasons": (FULL,) * 4},
            "the only node that fits; other nodes: 3 were full, 3 were full, 3 were full",
            id="three reasons",
        ),
        pytest.param({"node": "a", "feasible": 3, "ranking": ranking(9)}, "best of 3 with 9", id="one was compared"),
        pytest.param(
            {"node": "a", "feasible": 2, "ranking": ranking(9, 7)},
            "best of 2 with 9, 2 ahead of b (Fit +2)",
            id="ahead",
        ),
        pytest.param(
            {"node": "a", "feasible": 3, "ranking": ranking(9, 9, 7)},
            "best of 3 with 9; 1 other node with the same score, chosen at random",
            id="a tie",
        ),
        pytest.param(
            {"node": "a", "feasible": 4, "ranking": ranking(9, 9, 9, 9)},
            "best of 4 with 9; 3 other nodes with the same score, chosen at random",
            id="three ties",
        ),
        pytest.param(
            {"node": "a", "feasible": 9, "ranking": ranking(9, 9, 9, 9, 9)},
            "best of 9 with 9; 4 or more nodes with the same score, chosen at random",
            id="as many ties as are kept",
        ),
    ],
)
def test_the_sentence_of_a_decision(fields: dict[str, Any], text: str) -> None:
    assert decision_sentence(record(**fields)) == text
