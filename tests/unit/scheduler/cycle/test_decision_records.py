"""Decision records: their contents, their size limit, and the sentences made from them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from bayplan.framework.api.diagnosis import Diagnosis, FilterReasonRows
from bayplan.framework.api.status import SUCCESS, Code, Status, error, unschedulable
from bayplan.framework.equivalence.rejections import RejectionCount
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.scheduler.cycle.decision_records import decision_record
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.snapshot import NodeTable
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.telemetry.decisions import (
    MAX_RECORD_BYTES,
    NO_RANKING,
    REASON_BYTES,
    DecisionRecord,
    DecisionRing,
    Ranking,
    ReasonCount,
    ScoredNode,
)
from support.builders.framework import make_node, make_pod, make_snapshot

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = make_pod("web", uid="u1")


def diagnosis(nodes: int, reasons: dict[str, list[int]]) -> Diagnosis:
    """A diagnosis with a set of rows for each reason."""
    found = Diagnosis([f"node-{number:05}" for number in range(nodes)])
    found.verdicts.codes[:] = Code.UNSCHEDULABLE
    for text, rows in reasons.items():
        mask = np.zeros(nodes, dtype=np.bool_)
        mask[rows] = True
        found.verdicts.reasons.append(FilterReasonRows("Plugin", text, mask))
    return found


def failed(found: Diagnosis, **fields: object) -> SchedulingDecision:
    return SchedulingDecision(status=unschedulable(found.sentence()), diagnosis=found, **fields)  # type: ignore[arg-type]


def placed(totals: list[int], chosen: int, *, rows: list[int] | None = None) -> SchedulingDecision:
    columns = make_snapshot([make_node(f"n{number}") for number in range(len(totals))]).nodes
    nodes = NodeTable(columns, None if rows is None else np.array(rows))
    vector = np.array(totals, dtype=np.int64)[rows if rows is not None else slice(None)]
    scores = TotalScores(vector, {"Fit": vector - 1, "Image": np.ones_like(vector)})
    return SchedulingDecision(f"n{chosen}", SUCCESS, Diagnosis(columns.names), nodes, scores)


# contents


def test_a_placement_records_the_best_nodes_with_their_scores_by_plugin() -> None:
    record = decision_record(POD, placed([5, 9, 7, 1, 3, 8, 2], 1), NOON)
    assert (record.pod, record.uid, record.profile, record.at) == ("default/web", "u1", "default-scheduler", NOON)
    assert (record.node, record.outcome, record.message) == ("n1", "scheduled", "")
    assert (record.nodes, record.feasible) == (7, 7)
    assert [(each.node, each.total) for each in record.best] == [("n1", 9), ("n5", 8), ("n2", 7), ("n0", 5), ("n4", 3)]
    assert record.best[0].by_plugin == (("Fit", 8), ("Image", 1))


def test_the_chosen_node_comes_first_among_equals() -> None:
    record = decision_record(POD, placed([7] * 20, 13), NOON)
    assert [each.node for each in record.best] == ["n13", "n0", "n1", "n2", "n3"]
    narrowed = decision_record(POD, placed([7] * 20, 13, rows=[19, 4, 13]), NOON)
    assert [each.node for each in narrowed.best] == ["n13", "n19", "n4"]


def test_the_only_node_that_fits_has_no_scores() -> None:
    found = diagnosis(3, {"full": [0, 1]})
    columns = make_snapshot([make_node(f"n{number}") for number in range(3)]).nodes
    decision = SchedulingDecision("n2", diagnosis=found, nodes=NodeTable(columns, np.array([2])))
    record = decision_record(POD, decision, NOON)
    assert (record.best, record.feasible) == ((), 1)
    assert record.reasons == (ReasonCount("Plugin", "full", 2),), "no bits for a pod that was placed"


def test_a_failure_records_reasons_and_their_nodes() -> None:
    record = decision_record(POD, failed(diagnosis(10, {"rare": [3], "common": [0, 1, 9], "never": []})), NOON)
    assert record.outcome == "unschedulable"
    assert record.message == "0/10 nodes are available: 1 rare, 3 common."
    assert [(each.text, each.nodes) for each in record.reasons] == [("common", 3), ("rare", 1)]
    bits = np.unpackbits(np.frombuffer(record.reasons[0].bits, dtype=np.uint8), count=10)
    assert np.flatnonzero(bits).tolist() == [0, 1, 9]


def test_an_error_has_its_own_outcome() -> None:
    record = decision_record(POD, SchedulingDecision(status=error("broke"), nominated_node_name=""), NOON)
    assert (record.outcome, record.message, record.nodes) == ("error", "broke", 0)


def test_a_nomination_is_recorded_with_its_victims() -> None:
    decision = failed(diagnosis(2, {"full": [0, 1]}), nominated_node_name="n1", victims=("default/v",))
    record = decision_record(POD, decision, NOON)
    assert (record.nominated, record.victims) == ("n1", ("default/v",))


# size


def many_reasons(count: int, length: int) -> Diagnosis:
    return diagnosis(5000, {f"{number} {'x' * length}": list(range(number, 5000, count)) for number in range(count)})


@pytest.mark.parametrize(
    "decision",
    [
        pytest.param(lambda: failed(many_reasons(1, 40)), id="one-reason"),
        pytest.param(lambda: failed(many_reasons(3, 60)), id="three-reasons"),
        pytest.param(lambda: failed(many_reasons(12, 120)), id="twelve-reasons"),
        pytest.param(lambda: failed(many_reasons(2500, 30)), id="a-reason-for-every-other-node"),
        pytest.param(lambda: failed(many_reasons(2, 5000)), id="endless-texts"),
        pytest.param(
            lambda: failed(
                many_reasons(4, 60), nominated_node_name="n", victims=tuple("ns/" + "v" * 250 for _ in range(100))
            ),
            id="a-hundred-victims",
        ),
    ],
)
def test_a_record_at_5000_nodes_is_at_most_4_kb(decision: Callable[[], SchedulingDecision]) -> None:
    record = decision_record(POD, decision(), NOON)
    assert record.size_bytes <= MAX_RECORD_BYTES == 4096
    assert record.reasons, "some reasons fit"


def test_a_placement_among_5000_with_long_names_is_at_most_4_kb() -> None:
    columns = make_snapshot([make_node(f"{number}-{'n' * 240}") for number in range(50)]).nodes
    total = np.arange(50)
    parts = {f"Plugin{number}": total for number in range(12)}
    decision = SchedulingDecision(
        columns.names[49], SUCCESS, many_reasons(40, 90), NodeTable(columns), TotalScores(total, parts)
    )
    record = decision_record(POD, decision, NOON)
    assert record.size_bytes <= MAX_RECORD_BYTES
    assert record.best[0].node == columns.names[49]


def test_the_masks_of_the_most_frequent_reasons_are_recorded_first() -> None:
    sizes = [len(each.bits) for each in decision_record(POD, failed(many_reasons(12, 60)), NOON).reasons]
    assert sizes[0] == 625
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0


class Shared:
    """Fake class evaluation with these totals and rejections."""

    scoring = ("Fit",)

    def __init__(self, names: list[str], totals: list[int], rejected: Diagnosis) -> None:
        self.snapshot = make_snapshot([make_node(name) for name in names])
        self.candidates = len(totals)
        self._totals = totals
        self._rejected = rejected

    def ranking(self, first: int, count: int) -> list[int]:
        rest = sorted((row for row in range(len(self._totals)) if row != first), key=lambda row: -self._totals[row])
        return [first, *rest][:count]

    def scores_at(self, rows: list[int]) -> bytes:
        return np.array([[self._totals[row]] * 2 for row in rows], dtype=np.int64).tobytes()

    def rejections(self) -> tuple[RejectionCount, ...]:
        reasons = sorted(self._rejected.reasons(), key=lambda each: each.text)
        return tuple(RejectionCount(each.plugin, each.text, int(each.mask.sum())) for each in reasons)

    def decision(self, row: int) -> SchedulingDecision:
        standing: Any = self
        return SchedulingDecision(self.snapshot.nodes.names[row], SUCCESS, row=row, class_evaluation=standing)


@pytest.mark.parametrize(
    "rejected",
    [
        pytest.param(diagnosis(10, {}), id="nowhere-rejected"),
        pytest.param(diagnosis(10, {"a rare one": [3], "common": [0, 1, 9]}), id="the-frequent-first"),
        pytest.param(many_reasons(40, 90), id="more-than-fit"),
        pytest.param(many_reasons(300, 1), id="many-short-texts"),
        pytest.param(many_reasons(2, 5000), id="endless-texts"),
    ],
)
def test_a_shared_placement_records_the_same_reasons_as_a_full_evaluation(rejected: Diagnosis) -> None:
    shared = decision_record(POD, Shared(["n0", "n1"], [5, 9], rejected).decision(1), NOON)
    columns = make_snapshot([make_node("n1")]).nodes
    alone = decision_record(POD, SchedulingDecision("n1", SUCCESS, rejected, NodeTable(columns)), NOON)
    assert [(each.plugin, each.text, each.nodes) for each in shared.reasons] == [
        (each.plugin, each.text, each.nodes) for each in alone.reasons
    ]
    assert sum(len(each.text) + REASON_BYTES for each in shared.reasons) <= 640
    assert (shared.node, shared.outcome, shared.nodes, shared.feasible) == ("n1", "scheduled", 2, 2)


@pytest.mark.parametrize(("length", "kept"), [(77, 5), (78, 5), (79, 4)])
def test_reasons_of_a_placement_fill_their_bytes_exactly(length: int, kept: int) -> None:
    """Five texts of 80 characters with the overhead of a reason are 640 bytes."""
    rejected = many_reasons(6, length)
    shared = decision_record(POD, Shared(["n0", "n1"], [5, 9], rejected).decision(1), NOON)
    columns = make_snapshot([make_node("n1")]).nodes
    alone = decision_record(POD, SchedulingDecision("n1", SUCCESS, rejected, NodeTable(columns)), NOON)
    assert (len(shared.reasons), len(alone.reasons)) == (kept, kept)


def test_a_message_is_cut_between_characters() -> None:
    record = decision_record(POD, SchedulingDecision(status=error("x" + "é" * 1000)), NOON)
    assert record.message == "x" + "é" * 511


@pytest.mark.parametrize(
    ("totals", "best"),
    [
        pytest.param([5], [], id="the-only-node"),
        pytest.param([5, 9], ["n0", "n1"], id="two-nodes"),
        pytest.param([9, 1, 2, 3, 4, 5, 6], ["n0", "n6", "n5", "n4", "n3"], id="five-of-seven"),
    ],
)
def test_a_shared_placement_records_the_best_nodes_if_there_is_a_choice(totals: list[int], best: list[str]) -> None:
    names = [f"n{number}" for number in range(len(totals))]
    record = decision_record(POD, Shared(names, totals, diagnosis(1, {})).decision(0), NOON)
    assert [(each.node, each.total) for each in record.best] == [(name, totals[int(name[1:])]) for name in best]


# ring


def record(pod: str, *, message: str = "", node: str | None = None, **fields: object) -> DecisionRecord:
    fields = {"nodes": 3, "feasible": 0, "outcome": "unschedulable", **fields}
    return DecisionRecord(NOON, pod, "u", "mine", node, message=message, **fields)  # type: ignore[arg-type]


def test_a_ring_keeps_the_newest_within_its_bytes() -> None:
    ring = DecisionRing(limit_bytes=10_000)
    for number in range(1000):
        ring.add(record(f"ns/p{number}", message="x" * 300))
        assert ring.size_bytes <= 10_000
    assert [each.pod for each in ring][-1] == "ns/p999"
    assert 10 < len(ring) < 30
    assert ring.size_bytes == sum(each.size_bytes for each in ring)


def test_a_record_larger_than_the_ring_is_not_kept() -> None:
    ring = DecisionRing(limit_bytes=100)
    ring.add(record("ns/p"))
    assert (len(ring), ring.size_bytes) == (0, 0)


def test_the_newest_record_of_a_pod() -> None:
    ring = DecisionRing()
    ring.add(record("ns/p", message="first"))
    ring.add(record("ns/q", message="other"))
    ring.add(record("ns/p", message="second"))
    latest = ring.latest("ns/p")
    assert latest is not None
    assert latest.message == "second"
    assert ring.latest("ns/unknown") is None


# sentences


def ranking(*best: ScoredNode) -> Ranking:
    plugins = tuple(plugin for plugin, _ in best[0].by_plugin)
    nodes = tuple(each.node for each in best)
    numbers = [number for each in best for number in (each.total, *dict(each.by_plugin).values())]
    return Ranking(nodes, plugins, array("q", numbers).tobytes(), len("".join(nodes)))


def scored(node: str, total: int, **parts: int) -> ScoredNode:
    return ScoredNode(node, total, tuple(parts.items()))


def test_a_ranking_is_decoded() -> None:
    best = (scored("n1", 90, Fit=50, Image=40), scored("n2", -1, Fit=45, Image=2**40), scored("n3", 0, Fit=0, Image=0))
    assert ranking(*best).scored_nodes() == best
    assert NO_RANKING.scored_nodes() == ()


def test_a_ranking_has_the_first_nodes_within_its_size() -> None:
    whole = ranking(*(scored(f"n{number}" * 20, number, Fit=number, Image=7) for number in range(5)))
    cut = Ranking.fit(400, whole.nodes, whole.plugins, whole.scores)
    assert cut.scored_nodes() == whole.scored_nodes()[:3]
    assert Ranking.fit(10_000, whole.nodes, whole.plugins, whole.scores) == whole


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        pytest.param(record("ns/p", outcome="error", message="broke"), "the attempt failed: broke", id="error"),
        pytest.param(record("ns/p", message="0/3 nodes …"), "0/3 nodes …", id="nowhere"),
        pytest.param(
            record("ns/p", nominated="n1", victims=("a/v", "a/w")),
            "fits no node yet; it fits n1 once a/v and a/w are gone",
            id="nominated",
        ),
        pytest.param(record("ns/p", node="n1", outcome="scheduled", feasible=1), "the only node that fits", id="only"),
        pytest.param(
            record(
                "ns/p",
                node="n1",
                outcome="scheduled",
                feasible=1,
                reasons=(ReasonCount("A", "full", 2), ReasonCount("B", "far", 1)),
            ),
            "the only node that fits; other nodes: 2 full, 1 far",
            id="only-with-other-nodes",
        ),
        pytest.param(
            record(
                "ns/p",
                node="n1",
                outcome="scheduled",
                feasible=3,
                ranking=ranking(scored("n1", 90, Fit=50, Image=40), scored("n2", 70, Fit=45, Image=25)),
            ),
            "best of 3 with 90, 20 ahead of n2 (Image +15)",
            id="best-with-the-deciding-plugin",
        ),
        pytest.param(
            record(
                "ns/p",
                node="n1",
                outcome="scheduled",
                feasible=2,
                ranking=ranking(scored("n1", 9, Fit=9), scored("n2", 9, Fit=9)),
            ),
            "best of 2 with 9; 1 other node with the same score, chosen at random",
            id="a-tie",
        ),
        pytest.param(
            record(
                "ns/p",
                node="n1",
                outcome="scheduled",
                feasible=9,
                ranking=ranking(*(scored(f"n{n}", 9) for n in range(3))),
            ),
            "best of 9 with 9; 2 other nodes with the same score, chosen at random",
            id="a-tie-of-three",
        ),
        pytest.param(
            record(
                "ns/p",
                node="n1",
                outcome="scheduled",
                feasible=9,
                ranking=ranking(*(scored(f"n{n}", 9) for n in range(5))),
            ),
            "best of 9 with 9; 4 or more nodes with the same score, chosen at random",
            id="a-tie-of-more-than-recorded",
        ),
        pytest.param(
            record("ns/p", node="n1", outcome="scheduled", feasible=2, ranking=ranking(scored("n1", 9))),
            "best of 2 with 9",
            id="nothing-to-compare-with",
        ),
    ],
)
def test_decision_sentence(decision: DecisionRecord, words: str) -> None:
    assert decision_sentence(decision) == words


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (record("ns/p", node="n1"), "ns/p goes to n1"),
        (record("ns/p", message="0/3 nodes"), "ns/p stays pending: 0/3 nodes"),
    ],
    ids=["placed", "pending"],
)
def test_record_sentence(decision: DecisionRecord, words: str) -> None:
    assert decision.sentence() == words


def test_a_status_of_a_decision() -> None:
    assert (
        decision_record(POD, SchedulingDecision(status=Status(Code.UNRESOLVABLE, ("x",))), NOON).outcome
        == "unschedulable"
    )
