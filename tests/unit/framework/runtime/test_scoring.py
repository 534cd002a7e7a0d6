"""Scores: weights, normalization, and invalid results of plugins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import PRE_SCORE, SCORE
from bayplan.framework.api.status import SKIP, Code, error, unschedulable
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.framework.runtime.scoring import ScorePoints, TotalScores, default_normalize, top_positions
from bayplan.snapshot import IntVector, NodeInfo, NodeTable
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import make_cycle, make_node, make_pod, make_snapshot

NODES = ("a", "b", "c")


class Whole:
    """Scores all nodes at once."""

    def __init__(self, name: str, answer: Any) -> None:
        self.name = name
        self.answer = answer

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> Any:  # noqa: ARG002
        if isinstance(self.answer, Exception):
            raise self.answer
        return np.array(self.answer, dtype=np.int64) if isinstance(self.answer, list) else self.answer


class One:
    """Scores one node at a time."""

    def __init__(self, name: str, **answers: Any) -> None:
        self.name = name
        self.answers = answers

    def score(self, cycle: Cycle, node: NodeInfo) -> Any:  # noqa: ARG002
        return self.answers.get(node.name, 0)


class Normalizing(Whole):
    def __init__(self, name: str, answer: Any, normalized: Any) -> None:
        super().__init__(name, answer)
        self.normalized = normalized

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> Any:  # noqa: ARG002
        if isinstance(self.normalized, Exception):
            raise self.normalized
        return self.normalized(scores) if callable(self.normalized) else self.normalized


class Prepares(Whole):
    def __init__(self, name: str, answer: Any, result: Any) -> None:
        super().__init__(name, answer)
        self.result = result

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Any:  # noqa: ARG002
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def scoring(*plugins: Any, weights: Mapping[str, int] | None = None) -> ScorePoints:
    return ScorePoints(
        [plugin for plugin in plugins if PRE_SCORE.extended_by(plugin)],
        [plugin for plugin in plugins if SCORE.extended_by(plugin)],
        {plugin.name: 1 for plugin in plugins} | dict(weights or {}),
        PluginCaller(ManualClock(), PluginTimings()),
    )


def run(*plugins: Any, weights: Mapping[str, int] | None = None) -> TotalScores:
    snapshot = make_snapshot([make_node(name) for name in NODES])
    return scoring(*plugins, weights=weights).score(make_cycle(make_pod(), snapshot), snapshot.table)


def test_the_total_is_the_weighted_sum() -> None:
    scores = run(Whole("W", [1, 2, 3]), One("O", a=10, c=30), weights={"W": 3, "O": 2})
    assert scores.total.tolist() == [23, 6, 69]
    assert {name: vector.tolist() for name, vector in scores.by_plugin.items()} == {"W": [3, 6, 9], "O": [20, 0, 60]}
    assert scores.total.dtype == np.int64


def test_without_any_score_plugin_every_node_gets_one() -> None:
    assert run().total.tolist() == [1, 1, 1]
    assert not scoring().has_score_plugins


def test_normalized_scores_count() -> None:
    scores = run(Normalizing("N", [10, 20, 40], default_normalize), weights={"N": 2})
    assert scores.total.tolist() == [50, 100, 200]


def test_raw_scores_may_have_any_value_before_normalization() -> None:
    assert run(Normalizing("N", [-5, 10**12, 0], lambda _: np.array([0, 100, 5]))).total.tolist() == [0, 100, 5]


def test_small_integer_types_are_accepted() -> None:
    scores = run(Whole("W", np.array([100, 100, 100], dtype=np.int8)), weights={"W": 100})
    assert scores.total.tolist() == [10_000] * 3


def test_skip_keeps_the_score_of_the_same_plugin_out() -> None:
    scores = run(Prepares("S", [1, 2, 3], SKIP), Whole("W", [5, 5, 5]))
    assert set(scores.by_plugin) == {"W"}
    assert scores.total.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        pytest.param(error("broke"), 'running PreScore plugin "P": broke', id="error"),
        pytest.param(unschedulable("no"), 'running PreScore plugin "P": no', id="a-rejection-is-not-for-here"),
        pytest.param(
            ValueError("boom"), r'running PreScore plugin "P": ValueError: boom \(test_scoring.py:\d+\)', id="raises"
        ),
        pytest.param(7, 'running PreScore plugin "P": returned 7, which is not a Status', id="nonsense"),
    ],
)
def test_prescore_that_fails(result: Any, text: str) -> None:
    scores = run(Prepares("P", [1, 2, 3], result))
    assert scores.status.code is Code.ERROR
    assert scores.status.plugin == "P"
    assert re.fullmatch(text, scores.status.message)
    assert scores.total.tolist() == [0, 0, 0]


FAILED = 'running Score plugins: plugin "P" failed with: '
RANGE = 'applying score defaultWeights on Score plugins: plugin "P" returns an invalid score '


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        pytest.param(Whole("P", error("broke")), f"{FAILED}broke", id="error"),
        pytest.param(Whole("P", ValueError("boom")), rf"{FAILED}ValueError: boom \(test_scoring.py:\d+\)", id="raises"),
        pytest.param(One("P", b=error("broke")), f"{FAILED}broke", id="one-node-error"),
        pytest.param(One("P", b="high"), f"{FAILED}a score must be a 64-bit integer; got 'high'", id="one-node-text"),
        pytest.param(One("P", b=1.5), f"{FAILED}a score must be a 64-bit integer; got 1.5", id="one-node-fraction"),
        pytest.param(
            Whole("P", np.zeros(4, dtype=np.int64)),
            rf"{FAILED}3 integers are needed, one for each node; got shape \(4,\) of int64",
            id="wrong-length",
        ),
        pytest.param(
            Whole("P", np.zeros(3)),
            rf"{FAILED}3 integers are needed, one for each node; got shape \(3,\) of float64",
            id="wrong-type",
        ),
        pytest.param(
            Whole("P", (1, 2, 3)),
            f"{FAILED}3 integers are needed, one for each node; got shape None of tuple",
            id="no-array",
        ),
        pytest.param(
            Whole("P", [0, 101, 200]),
            re.escape(f"{RANGE}101, it should in the range of [0, 100] after normalizing"),
            id="too-large",
        ),
        pytest.param(
            Whole("P", [0, 0, -1]),
            re.escape(f"{RANGE}-1, it should in the range of [0, 100] after normalizing"),
            id="too-small",
        ),
        pytest.param(
            Normalizing("P", [1, 2, 3], error("broke")),
            'running Normalize on Score plugins: plugin "P" failed with: broke',
            id="normalize-error",
        ),
        pytest.param(
            Normalizing("P", [1, 2, 3], KeyError("x")),
            r'running Normalize on Score plugins: plugin "P" failed with: KeyError: .x. \(test_scoring.py:\d+\)',
            id="normalize-raises",
        ),
        pytest.param(
            Normalizing("P", [1, 2, 3], np.zeros(2, dtype=np.int64)),
            r'running Normalize on Score plugins: plugin "P" failed with: 3 integers .* got shape \(2,\) of int64',
            id="normalize-length",
        ),
    ],
)
def test_a_plugin_that_fails_is_named(plugin: Any, text: str) -> None:
    scores = run(Whole("Before", [1, 1, 1]), plugin)
    assert scores.status.code is Code.ERROR
    assert scores.status.plugin == "P"
    assert re.fullmatch(text, scores.status.message)


def test_plugins_that_are_called_for_each_node() -> None:
    assert scoring(Whole("W", [1]), One("O")).per_node_plugins == ("O",)
    assert scoring(Whole("W", [1])).per_node_plugins == ()


@pytest.mark.parametrize(
    ("scores", "reverse", "expected"),
    [
        pytest.param([0, 5, 10], False, [0, 50, 100], id="stretched"),
        pytest.param([0, 5, 10], True, [100, 50, 0], id="reversed"),
        pytest.param([0, 0], False, [0, 0], id="nothing-to-stretch"),
        pytest.param([0, 0], True, [100, 100], id="nothing-to-stretch-reversed"),
        pytest.param([1, 3], False, [33, 100], id="truncated"),
        pytest.param([1, 3], True, [67, 0], id="truncated-before-reversing"),
        pytest.param([-1, 3], False, [-33, 100], id="towards-zero"),
        pytest.param([-1, 500], False, [0, 100], id="hardly-negative-is-nothing"),
        pytest.param([-4, -1], True, [100, 100], id="nothing-positive"),
        pytest.param([], False, [], id="no-nodes"),
    ],
)
def test_default_normalization(scores: list[int], reverse: bool, expected: list[int]) -> None:
    assert default_normalize(np.array(scores, dtype=np.int64), reverse=reverse).tolist() == expected


TOTALS = np.array([5.0, 9.0, -np.inf, 9.0, 1.5, 7.0, 2.0, -np.inf])


@pytest.mark.parametrize(
    ("totals", "first", "positions"),
    [
        pytest.param(np.array([5, 9, -1, 9, 1]), 3, [3, 1, 0, 4, 2], id="integers"),
        pytest.param(TOTALS, 3, [3, 1, 5, 0, 6], id="the-chosen-one-first"),
        pytest.param(TOTALS[:3], 1, [1, 0], id="without-minus-infinity"),
        pytest.param(TOTALS[:1], 0, [0], id="one-node"),
    ],
)
def test_top_positions(totals: npt.NDArray[Any], first: int, positions: list[int]) -> None:
    before = totals.copy()
    assert top_positions(totals, first, 5) == positions
    assert np.array_equal(totals, before)
