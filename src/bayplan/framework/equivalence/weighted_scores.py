"""What a plugin that normalizes its scores or compares candidates adds to the totals of all rows.

Called by `PluginEvaluation` when such scores are known. Invalid scores are found here, before they reach a total.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.plugin_traits import ScoreGroups
from bayplan.framework.runtime.scoring import invalid_scores_error
from bayplan.snapshot import BoolVector, IntVector, RowVector


class NotShareable(Exception):
    """The pod needs a full attempt: a plugin rejects it at PreFilter, narrows the nodes or fails."""


class ScoreByRow(Protocol):
    def item(self, row: int, /) -> int: ...


class GroupScores:
    """Scores that all rows of a group share. Expanded to all rows only on demand.

    `of_row` belongs to the plugin that built the groups and changes with them. The scores are valid until then.
    """

    __slots__ = ("of_row", "scores")

    def __init__(self, scores: list[int], of_row: RowVector) -> None:
        self.scores = scores
        self.of_row = of_row

    def item(self, row: int) -> int:
        return self.scores[self.of_row.item(row)]

    def all_rows(self) -> IntVector:
        return np.array(self.scores, dtype=np.int64).take(self.of_row)


class WeightedScores:
    """Weighted scores of one plugin: one number for each row, or one number for all candidates."""

    __slots__ = ("_vector", "constant", "groups")

    def __init__(self, scores: IntVector, weight: int, candidates: BoolVector | None) -> None:
        if has_out_of_range(scores):
            raise NotShareable
        self.groups: GroupScores | None = None
        self._vector: IntVector | None = None
        self.constant = scores.item(0) * weight if len(scores) else 0
        if len(scores) and (scores != scores[0]).any():
            scores = scores * weight
            if candidates is not None:
                all_rows = np.zeros(len(candidates), dtype=np.int64)
                all_rows[candidates] = scores
                scores = all_rows
            self._vector = scores

    @classmethod
    def from_groups(cls, groups: ScoreGroups, weight: int) -> WeightedScores:
        """Build from scores of groups, if all rows are candidates."""
        if groups.lowest < 0 or groups.highest > MAX_SCORE:
            raise NotShareable
        weighted = cls.__new__(cls)
        weighted.constant = groups.lowest * weight
        weighted._vector = None
        weighted.groups = None
        if groups.lowest != groups.highest:
            scores = groups.scores if isinstance(groups.scores, list) else [int(score) for score in groups.scores]
            weighted.groups = GroupScores([score * weight for score in scores], groups.of_row)
        return weighted

    @property
    def vector(self) -> IntVector | None:
        """One number for each row. None if it is the same for all candidates."""
        if self._vector is None and self.groups is not None:
            self._vector = self.groups.all_rows()
        return self._vector

    @property
    def row_scores(self) -> ScoreByRow | None:
        """Like `vector`, for callers that need a few rows."""
        return self._vector if self.groups is None else self.groups

    def on_rows(self, rows: BoolVector) -> IntVector:
        vector = self.vector
        if vector is not None:
            return vector[rows]
        return np.full(np.count_nonzero(rows), self.constant, dtype=np.int64)


def has_out_of_range(scores: IntVector) -> bool:
    if not len(scores):
        return False
    unsigned = scores.view(np.uint64)  # negative scores become very large
    return unsigned.item(unsigned.argmax()) > MAX_SCORE


def to_score_vector(result: object, plugin: str, count: int) -> IntVector:
    """Check the scores that a plugin returned, and convert them to int64."""
    if not isinstance(result, np.ndarray) or result.shape != (count,) or result.dtype.kind not in "iu":
        raise invalid_scores_error(result, plugin, count)
    return np.ascontiguousarray(result, dtype=np.int64)


NO_WEIGHTED_SCORES = WeightedScores(np.zeros(0, dtype=np.int64), 0, None)
"""What a plugin adds that skips the pod."""
