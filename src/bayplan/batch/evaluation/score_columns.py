"""One kube-scheduler score plugin on every row, for one class of tasks.

Used by `FrameworkScores`, which decides what must be evaluated again. Cost of a refresh: the changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_traits import PluginTraits, traits_of
from bayplan.framework.equivalence.plugin_evaluation import MAX_SINGLE_ROWS
from bayplan.framework.equivalence.weighted_scores import has_out_of_range
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable


class ScoreError(Exception):
    """A plugin failed to score, or its scores are out of range."""


@dataclass(slots=True)
class ScoreColumn:
    """One score plugin on every row: its raw and its weighted scores."""

    plugin: Any
    weight: int
    active: bool = False
    normalizes: bool = False
    traits: PluginTraits = field(init=False)
    raw: IntVector = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    weighted: IntVector = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        self.normalizes = hasattr(self.plugin, "normalize")
        self.traits = traits_of(self.plugin)

    def evaluate(self, cycle: Cycle, feasible: BoolVector) -> None:
        """Score all rows, or only the candidates if the plugin compares them."""
        table = cycle.snapshot.table
        if not self.traits.compares_candidates:
            # copied, because a plugin may keep what it returned
            self.raw = np.array(_check_vector(self.plugin.score_nodes(cycle, table)))
        else:
            candidates = table.restricted_to(feasible)
            self.raw = np.zeros(len(table), dtype=np.int64)
            self.raw[feasible] = _check_vector(self.plugin.score_nodes(cycle, candidates))
        self.normalize_and_weight(cycle, feasible)

    def refresh(self, cycle: Cycle, rows: Sequence[int]) -> None:
        """Score some rows. Only for plugins that neither compare candidates nor normalize."""
        if len(rows) <= MAX_SINGLE_ROWS and hasattr(self.plugin, "score"):
            for row in rows:
                self.raw[row] = score = self.plugin.score(cycle, NodeInfo(cycle.snapshot.nodes, row))
                self.weighted[row] = _check_score(score) * self.weight
            return
        where = np.array(rows, dtype=np.intp)
        self.raw[where] = scores = _check_vector(self.plugin.score_nodes(cycle, NodeTable(cycle.snapshot.nodes, where)))
        self.weighted[where] = _check_scores(scores) * self.weight

    def normalize_and_weight(self, cycle: Cycle, feasible: BoolVector) -> None:
        """Normalize over the candidates and apply the weight."""
        if not self.normalizes:
            self.weighted = _check_scores(self.raw, feasible) * self.weight
            return
        candidates = cycle.snapshot.table.restricted_to(feasible)
        final = _check_vector(self.plugin.normalize(cycle, candidates, self.raw[feasible]))
        self.weighted = np.zeros(len(self.raw), dtype=np.int64)
        self.weighted[feasible] = _check_scores(final) * self.weight


def _check_vector(answer: object) -> IntVector:
    if not isinstance(answer, np.ndarray) or answer.dtype.kind not in "iuf":
        raise InvalidAnswer(answer, "a vector of whole numbers, one per node,")
    return answer.astype(np.int64, copy=False)


def _check_score(score: int) -> int:
    if not 0 <= score <= MAX_SCORE:
        raise ScoreError
    return score


def _check_scores(scores: IntVector, where: BoolVector | None = None) -> IntVector:
    """The scores, if they are in range on the candidates."""
    if has_out_of_range(scores if where is None else scores[where]):
        raise ScoreError
    return scores
