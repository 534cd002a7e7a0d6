"""What score plugins add to the totals of one kind of pod, and who of them has to be asked again, when.

`Standing` puts totals together from these. A plugin either scores alone, each row for itself, or it normalises or
compares, and then its scores may move on all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from struct import Struct

from bayplan.framework.equivalence.plugin_evaluation import PluginEvaluation
from bayplan.framework.equivalence.weighted_scores import NO_WEIGHTED_SCORES, ScoreByRow, WeightedScores
from bayplan.snapshot import BoolVector, IntVector


class ScoreTerm:
    """What one score plugin adds to the totals."""

    __slots__ = ("changes", "evaluation", "last_checked_stamp", "stamp", "weighted")

    def __init__(self, part: PluginEvaluation) -> None:
        self.evaluation = part
        self.changes = -1  # of the part, when this was computed
        self.stamp: Hashable = None  # what the scores of a plugin that compares depended on then
        self.last_checked_stamp: Hashable = None  # and when it was last asked whether they have moved
        self.weighted: WeightedScores = NO_WEIGHTED_SCORES  # of one that scores alone the part's own vector counts

    @property
    def is_active(self) -> bool:
        """Whether the plugin has something to say about these pods."""
        return (
            self.weighted is not NO_WEIGHTED_SCORES
            if self.evaluation.compares_candidates
            else self.evaluation.has_score
        )

    @property
    def may_become_active(self) -> bool:
        """Whether PreScore has skipped for these candidates, and might not for others. A plugin that says what its
        scores depend on skips for as long as its `depends_on` says nothing else."""
        part = self.evaluation
        return (
            part.compares_candidates
            and part.role.pre_scores
            and not (self.is_active or part.sits_out or part.role.has_scores_version)
        )

    @property
    def raw(self) -> IntVector | None:
        """The scores of one that scores alone, where they may differ from row to row."""
        part = self.evaluation
        # Pods that come and go may make one speak up that looks at them.
        return None if part.all_zero and not part.role.looks_at_pods else part.raw

    @property
    def score_source(self) -> tuple[Callable[[int], int] | None, int]:
        """What tells the number of a row, and its factor; None: one number for all rows."""
        part = self.evaluation
        by_row: ScoreByRow | None
        by_row, factor = (self.raw, part.role.weight) if part.scores_row_local else (self.weighted.row_scores, 1)
        return (None, self.weighted.constant) if by_row is None else (by_row.item, factor)

    def has_moved(self) -> bool:
        """Whether its scores may have changed on rows that nothing happened to, as far as the plugin can tell."""
        part = self.evaluation
        if part.compares_candidates:
            if not part.role.has_scores_version:
                return False
            self.last_checked_stamp = part.scores_stamp()
            return self.last_checked_stamp != self.stamp
        return part.changes != self.changes

    def on_rows(self, rows: BoolVector) -> IntVector:
        if self.evaluation.scores_row_local:
            return self.evaluation.raw[rows] * self.evaluation.role.weight
        return self.weighted.on_rows(rows)


class ActiveScoreTerms:
    """What score plugins say of these pods, those who say anything."""

    __slots__ = ("_pack", "inactive_terms", "names", "score_sources", "terms")

    def __init__(self, addends: list[ScoreTerm]) -> None:
        self.terms = [addend for addend in addends if addend.is_active]
        self.inactive_terms = [addend for addend in addends if addend.may_become_active]
        self.names = tuple([addend.evaluation.role.name for addend in self.terms])
        self.score_sources = [
            addend.score_source for addend in self.terms
        ]  # what each has given to a row, and its factor
        self._pack = _score_packer(1 + len(self.terms))  # a total and what each has given, as int64

    def total_at(self, row: int) -> int:
        total = 0
        for score, factor in self.score_sources:
            total += factor if score is None else score(row) * factor
        return total

    def pack_row_scores(self, row: int) -> bytes:
        """The total of a row, where the pod fits, and what each score plugin gave to it."""
        given = [factor if score is None else score(row) * factor for score, factor in self.score_sources]
        return self._pack(sum(given), *given)


@lru_cache(maxsize=64)
def _score_packer(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}q").pack


class IncrementalPlan:
    """Who has to be asked when pods come and go."""

    __slots__ = (
        "amount_evaluations",
        "can_update_rows",
        "has_inactive_terms",
        "normalized_terms",
        "pod_evaluations",
        "row_evaluations",
        "row_local_scores",
    )

    def __init__(self, parts: list[PluginEvaluation], spoken: ActiveScoreTerms, *, scores: bool) -> None:
        """`score_sources`: whether anybody would score at all."""
        self.amount_evaluations: list[
            PluginEvaluation
        ] = []  # of those who look at what happens on a row: whom its amounts tell everything
        self.pod_evaluations: list[PluginEvaluation] = []  # and all others
        for part in parts:
            if part.role.looks_at_pods and (part.has_filter or part.has_score):
                (
                    self.amount_evaluations
                    if part.role.reads_amounts_only and part.scores_row_local
                    else self.pod_evaluations
                ).append(part)
        self.row_evaluations = self.pod_evaluations + self.amount_evaluations
        apart = [(a.raw, a.evaluation.role.weight) for a in spoken.terms if a.evaluation.scores_row_local]
        # Those who score alone, by what tells the score of a row, and its weight; the others with their place.
        self.row_local_scores: list[tuple[Callable[[int], int], int]] = [
            (raw.item, by) for raw, by in apart if raw is not None
        ]
        self.normalized_terms = [
            (place, addend) for place, addend in enumerate(spoken.terms) if not addend.evaluation.scores_row_local
        ]
        # Whether pods that come or go on a row are followed by asking these about that row.
        asked = [*spoken.inactive_terms, *[addend for _, addend in self.normalized_terms]]
        self.can_update_rows = scores and all(
            a.evaluation.role.has_scores_version for a in asked if a.evaluation.role.looks_at_pods
        )
        self.has_inactive_terms = bool(
            spoken.inactive_terms
        )  # whether others may speak when there are other candidates

    def row_local_total(self, row: int) -> int:
        """What a row has of those who score alone."""
        total = 0
        for score, weight in self.row_local_scores:
            total += score(row) * weight
        return total
