"""The precounted twins agree with the naive twins; and a disagreement is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.naive import DecisionMismatch, agree, naive_registry
from benchmarks.naive_counts import CountedAffinity, CountedSpread, image_scores
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.config.defaults import DEFAULT_PLUGINS
from bayplan.config.model import MULTI_POINT
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.snapshot import NodeTable
from naive import image_locality, inter_pod_affinity, pod_topology_spread
from support.builders.framework import FEASIBLE, make_node, make_pod, make_snapshot

few = settings(max_examples=40)


@given(data=st.data())
@few
def test_spread_that_counts_first(data: st.DataObject) -> None:
    case = data.draw(pod_topology_spread.TWIN.cases)
    counted = CountedSpread(case)
    for node in case.cluster.nodes:
        assert counted.judge(node) == pod_topology_spread.judge(case, node)
        assert not counted.is_idle or counted.judge(node) == FEASIBLE


@given(data=st.data())
@few
def test_affinity_that_counts_first(data: st.DataObject) -> None:
    case = data.draw(inter_pod_affinity.TWIN.cases)
    counted = CountedAffinity(case)
    for node in case.cluster.nodes:
        assert counted.judge(node) == inter_pod_affinity.judge(case, node)
        assert not counted.is_idle or counted.judge(node) == FEASIBLE


@given(data=st.data())
@few
def test_images_that_are_counted_first(data: st.DataObject) -> None:
    case = data.draw(image_locality.TWIN.cases.filter(lambda case: case.pod.spec.containers))
    assert image_scores(case, case.cluster.nodes) == image_locality.scores(case, case.cluster.nodes)


def test_every_filter_and_score_of_the_profile_is_plain() -> None:
    profile = {ref.name for ref in DEFAULT_PLUGINS.at(MULTI_POINT).enabled}
    shipped = {entry.name for entry in naive_registry() if entry.plugin.__module__.startswith("bayplan.plugins")}
    assert not any(
        hasattr(entry.plugin, method)
        for entry in naive_registry()
        if entry.name in shipped & profile
        for method in ("filter", "filter_nodes", "score", "score_nodes")
    )


def decided(totals: list[int] | None, rows: list[int]) -> SchedulingDecision:
    columns = make_snapshot([make_node(f"n{number}") for number in range(4)]).nodes
    scores = None if totals is None else TotalScores(np.array(totals), {"Some": np.array(totals)})
    return SchedulingDecision("n0", nodes=NodeTable(columns, np.array(rows)), scores=scores)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        pytest.param(([1, 2], [0, 1]), ([1, 2], [0, 2]), "not the same", id="other nodes"),
        pytest.param(([1, 2], [0, 1]), ([1, 3], [0, 1]), "n1 is scored", id="other totals"),
        pytest.param(([1], [0]), (None, [0]), "only one", id="one has not scored"),
    ],
)
def test_disagreements_end_the_benchmark(one: Any, other: Any, words: str) -> None:
    with pytest.raises(DecisionMismatch, match=words):
        agree(decided(*one), decided(*other), make_pod())


def said_of(one: SchedulingDecision, other: SchedulingDecision) -> str:
    """The error of a comparison; empty if there is none."""
    try:
        agree(one, other, make_pod())
    except DecisionMismatch as found:
        return str(found)
    return ""


def test_the_same_totals_agree() -> None:
    assert said_of(decided([1, 2], [0, 1]), decided([1, 2], [0, 1])) == ""
    assert said_of(decided(None, [0]), decided(None, [0])) == ""


def test_a_pod_that_only_one_can_place_is_reported() -> None:
    with pytest.raises(DecisionMismatch, match="or n0"):
        agree(SchedulingDecision(), decided([1], [0]), make_pod())
