"""What does a plugin add to the totals of all rows, when it normalises its scores or compares candidates?

Asked by `parts` once such scores are known. Scores that are no scores are found here, before they reach a total.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bayplan.framework.api.plugin import MAX_SCORE, ScoreGroups
from bayplan.framework.runtime.scoring import invalid_scores_error
from bayplan.snapshot import BoolVector, IntVector, RowVector


class NotShareable(Exception):
    """This pod needs an attempt of its own: a plugin rejects it outright, narrows the nodes or breaks."""


class ScoreByRow(Protocol):
    """Something that has a number for each row."""

    def item(self, row: int, /) -> int: ...


class GroupScores:
    """Scores that groups of rows have in common: spelled out for all rows by those alone who need that.

    `of_row` belongs to the plugin that made the groups and moves with them; all of this is true until then.
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
    """Parts of totals: one number a row, or one number where it is the same on all candidates."""

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
                whole = np.zeros(len(candidates), dtype=np.int64)
                whole[candidates] = scores
                scores = whole
            self._vector = scores

    @classmethod
    def from_groups(cls, groups: ScoreGroups, weight: int) -> WeightedScores:
        """From scores that groups of rows have in common, where all rows are candidates."""
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
        """One number a row; None where it is the same on all candidates."""
        if self._vector is None and self.groups is not None:
            self._vector = self.groups.all_rows()
        return self._vector

    @property
    def row_scores(self) -> ScoreByRow | None:
        """The same for whoever asks about a few rows."""
        return self._vector if self.groups is None else self.groups

    def on_rows(self, rows: BoolVector) -> IntVector:
        """For each of these rows."""
        vector = self.vector
        if vector is not None:
            return vector[rows]
        return np.full(np.count_nonzero(rows), self.constant, dtype=np.int64)


def has_out_of_range(scores: IntVector) -> bool:
    """Whether one of them is no score."""
    if not len(scores):
        return False
    unsigned = scores.view(np.uint64)  # negative ones are very large
    return unsigned.item(unsigned.argmax()) > MAX_SCORE


def to_score_vector(answer: object, plugin: str, count: int) -> IntVector:
    """What a plugin returned as one whole number a row."""
    if not isinstance(answer, np.ndarray) or answer.shape != (count,) or answer.dtype.kind not in "iu":
        raise invalid_scores_error(answer, plugin, count)
    return np.ascontiguousarray(answer, dtype=np.int64)


NO_WEIGHTED_SCORES = WeightedScores(np.zeros(0, dtype=np.int64), 0, None)
"""What a plugin adds that sits a pod out."""
