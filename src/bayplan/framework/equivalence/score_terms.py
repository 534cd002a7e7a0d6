"""The score terms of the totals of one equivalence class, and when each term must be updated.

`ClassEvaluation` sums these to totals. A plugin either scores each row by itself, or it normalizes or compares
candidates. The scores of the latter may move on all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from struct import Struct

from bayplan.framework.equivalence.plugin_evaluation import PluginEvaluation
from bayplan.framework.equivalence.weighted_scores import NO_WEIGHTED_SCORES, ScoreByRow, WeightedScores
from bayplan.snapshot import BoolVector, IntVector


class ScoreTerm:
    """The term that one score plugin adds to the totals."""

    __slots__ = ("changes", "evaluation", "last_checked_stamp", "stamp", "weighted")

    def __init__(self, evaluation: PluginEvaluation) -> None:
        self.evaluation = evaluation
        self.changes = -1  # `changes` of the plugin evaluation when this was computed
        self.stamp: Hashable = None  # dependencies of the scores then, for a plugin that compares candidates
        self.last_checked_stamp: Hashable = None  # dependencies at the last check
        self.weighted: WeightedScores = NO_WEIGHTED_SCORES  # unused if the scores are row-local

    @property
    def is_active(self) -> bool:
        """Whether the plugin has scores for these pods."""
        return (
            self.weighted is not NO_WEIGHTED_SCORES
            if self.evaluation.compares_candidates
            else self.evaluation.has_score
        )

    @property
    def may_become_active(self) -> bool:
        """Whether PreScore has skipped these candidates and may not skip different candidates.

        A plugin with `scores_depend_on` skips until its `depends_on` changes.
        """
        evaluation = self.evaluation
        return (
            evaluation.compares_candidates
            and evaluation.role.pre_scores
            and not (self.is_active or evaluation.not_applicable or evaluation.role.scores_depend_on is not None)
        )

    @property
    def raw(self) -> IntVector | None:
        """The row-local scores, if they may differ by row."""
        evaluation = self.evaluation
        # A plugin that looks at pods may start to score when pods change.
        return None if evaluation.all_zero and not evaluation.role.looks_at_pods else evaluation.raw

    @property
    def score_source(self) -> tuple[Callable[[int], int] | None, int]:
        """How to read the score of a row, and its factor. None: the number is the same for all rows."""
        evaluation = self.evaluation
        by_row: ScoreByRow | None
        by_row, factor = (
            (self.raw, evaluation.role.weight) if evaluation.scores_row_local else (self.weighted.row_scores, 1)
        )
        return (None, self.weighted.constant) if by_row is None else (by_row.item, factor)

    def has_moved(self) -> bool:
        """Whether the scores may have changed on unchanged rows."""
        evaluation = self.evaluation
        if evaluation.compares_candidates:
            if evaluation.role.scores_depend_on is None:
                return False
            self.last_checked_stamp = evaluation.scores_stamp()
            return self.last_checked_stamp != self.stamp
        return evaluation.changes != self.changes

    def on_rows(self, rows: BoolVector) -> IntVector:
        if self.evaluation.scores_row_local:
            return self.evaluation.raw[rows] * self.evaluation.role.weight
        return self.weighted.on_rows(rows)


class ActiveScoreTerms:
    """The score terms of the plugins that score these pods."""

    __slots__ = ("_pack", "inactive_terms", "names", "score_sources", "terms")

    def __init__(self, terms: list[ScoreTerm]) -> None:
        self.terms = [term for term in terms if term.is_active]
        self.inactive_terms = [term for term in terms if term.may_become_active]
        self.names = tuple([term.evaluation.role.name for term in self.terms])
        self.score_sources = [term.score_source for term in self.terms]  # score of a row and its factor
        self._pack = _score_packer(1 + len(self.terms))  # the total and each score, as int64

    def total_at(self, row: int) -> int:
        total = 0
        for score, factor in self.score_sources:
            total += factor if score is None else score(row) * factor
        return total

    def pack_row_scores(self, row: int) -> bytes:
        """Pack the total of a row on which the pod fits, and the score of each plugin."""
        scores = [factor if score is None else score(row) * factor for score, factor in self.score_sources]
        return self._pack(sum(scores), *scores)


@lru_cache(maxsize=64)
def _score_packer(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}q").pack


class IncrementalPlan:
    """The evaluations to update when pods come and go."""

    __slots__ = (
        "amount_evaluations",
        "can_update_rows",
        "has_inactive_terms",
        "normalized_terms",
        "pod_evaluations",
        "row_evaluations",
        "row_local_scores",
    )

    def __init__(self, evaluations: list[PluginEvaluation], active: ActiveScoreTerms, *, scores: bool) -> None:
        """`scores`: whether the profile has score plugins."""
        # of the plugins that look at pods: those that read only the amounts of a row, and the rest
        self.amount_evaluations: list[PluginEvaluation] = []
        self.pod_evaluations: list[PluginEvaluation] = []
        for evaluation in evaluations:
            if evaluation.role.looks_at_pods and (evaluation.has_filter or evaluation.has_score):
                (
                    self.amount_evaluations
                    if evaluation.role.reads_amounts_only and evaluation.scores_row_local
                    else self.pod_evaluations
                ).append(evaluation)
        self.row_evaluations = self.pod_evaluations + self.amount_evaluations
        row_local = [(a.raw, a.evaluation.role.weight) for a in active.terms if a.evaluation.scores_row_local]
        # Row-local scores by the function that reads a row, and their weight; normalized terms with their position.
        self.row_local_scores: list[tuple[Callable[[int], int], int]] = [
            (raw.item, by) for raw, by in row_local if raw is not None
        ]
        self.normalized_terms = [
            (place, term) for place, term in enumerate(active.terms) if not term.evaluation.scores_row_local
        ]
        # Whether a change of pods on a row requires an update of that row only.
        moving = [*active.inactive_terms, *[term for _, term in self.normalized_terms]]
        self.can_update_rows = scores and all(
            a.evaluation.role.scores_depend_on is not None for a in moving if a.evaluation.role.looks_at_pods
        )
        # whether other terms may become active with other candidates
        self.has_inactive_terms = bool(active.inactive_terms)

    def row_local_total(self, row: int) -> int:
        total = 0
        for score, weight in self.row_local_scores:
            total += score(row) * weight
        return total
