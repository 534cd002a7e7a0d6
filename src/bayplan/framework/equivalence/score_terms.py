"""What score plugins add to the totals of one kind of pod, and who of them has to be asked again, when.

`Standing` puts totals together from these. A plugin either scores alone, each row for itself, or it normalises or
compares, and then its scores may move on all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from struct import Struct

from bayplan.framework.equivalence.plugin_evaluation import Part
from bayplan.framework.equivalence.weighted_scores import NOTHING, ByRow, Weighted
from bayplan.snapshot import BoolVector, IntVector


class Addend:
    """What one score plugin adds to the totals."""

    __slots__ = ("changes", "part", "seen", "stamp", "weighted")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.changes = -1  # of the part, when this was computed
        self.stamp: Hashable = None  # what the scores of a plugin that compares depended on then
        self.seen: Hashable = None  # and when it was last asked whether they have moved
        self.weighted: Weighted = NOTHING  # of one that scores alone the part's own vector counts

    @property
    def speaks(self) -> bool:
        """Whether the plugin has something to say about these pods."""
        return self.weighted is not NOTHING if self.part.compares else self.part.scoring

    @property
    def may_speak_up(self) -> bool:
        """Whether PreScore has skipped for these candidates, and might not for others. A plugin that says what its
        scores depend on skips for as long as its `depends_on` says nothing else."""
        part = self.part
        return part.compares and part.role.pre_scores and not (self.speaks or part.sits_out or part.role.moves)

    @property
    def raw(self) -> IntVector | None:
        """The scores of one that scores alone, where they may differ from row to row."""
        part = self.part
        # Pods that come and go may make one speak up that looks at them.
        return None if part.silent and not part.role.looks_at_pods else part.raw

    @property
    def given(self) -> tuple[Callable[[int], int] | None, int]:
        """What tells the number of a row, and its factor; None: one number for all rows."""
        part = self.part
        by_row: ByRow | None
        by_row, factor = (self.raw, part.role.weight) if part.scores_alone else (self.weighted.by_row, 1)
        return (None, self.weighted.flat) if by_row is None else (by_row.item, factor)

    def has_moved(self) -> bool:
        """Whether its scores may have changed on rows that nothing happened to, as far as the plugin can tell."""
        part = self.part
        if part.compares:
            if not part.role.moves:
                return False
            self.seen = part.scores_stamp()
            return self.seen != self.stamp
        return part.changes != self.changes

    def over(self, rows: BoolVector) -> IntVector:
        if self.part.scores_alone:
            return self.part.raw[rows] * self.part.role.weight
        return self.weighted.over(rows)


class Spoken:
    """What score plugins say of these pods, those who say anything."""

    __slots__ = ("_pack", "addends", "names", "scores", "waiting")

    def __init__(self, addends: list[Addend]) -> None:
        self.addends = [addend for addend in addends if addend.speaks]
        self.waiting = [addend for addend in addends if addend.may_speak_up]
        self.names = tuple([addend.part.role.name for addend in self.addends])
        self.scores = [addend.given for addend in self.addends]  # what each has given to a row, and its factor
        self._pack = _packing(1 + len(self.addends))  # a total and what each has given, as int64

    def total_at(self, row: int) -> int:
        total = 0
        for score, factor in self.scores:
            total += factor if score is None else score(row) * factor
        return total

    def spelled_out(self, row: int) -> bytes:
        """The total of a row, where the pod fits, and what each score plugin gave to it."""
        given = [factor if score is None else score(row) * factor for score, factor in self.scores]
        return self._pack(sum(given), *given)


@lru_cache(maxsize=64)
def _packing(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}q").pack


class Cast:
    """Who has to be asked when pods come and go."""

    __slots__ = ("alone", "by_amounts", "by_pods", "followers", "shifting", "simple", "waiting")

    def __init__(self, parts: list[Part], spoken: Spoken, *, scores: bool) -> None:
        """`scores`: whether anybody would score at all."""
        self.by_amounts: list[Part] = []  # of those who look at what happens on a row: whom its amounts tell everything
        self.by_pods: list[Part] = []  # and all others
        for part in parts:
            if part.role.looks_at_pods and (part.filtering or part.scoring):
                (self.by_amounts if part.role.sees_amounts and part.scores_alone else self.by_pods).append(part)
        self.followers = self.by_pods + self.by_amounts
        apart = [(a.raw, a.part.role.weight) for a in spoken.addends if a.part.scores_alone]
        # Those who score alone, by what tells the score of a row, and its weight; the others with their place.
        self.alone: list[tuple[Callable[[int], int], int]] = [(raw.item, by) for raw, by in apart if raw is not None]
        self.shifting = [(place, addend) for place, addend in enumerate(spoken.addends) if not addend.part.scores_alone]
        # Whether pods that come or go on a row are followed by asking these about that row.
        asked = [*spoken.waiting, *[addend for _, addend in self.shifting]]
        self.simple = scores and all(a.part.role.moves for a in asked if a.part.role.looks_at_pods)
        self.waiting = bool(spoken.waiting)  # whether others may speak when there are other candidates

    def alone_at(self, row: int) -> int:
        """What a row has of those who score alone."""
        total = 0
        for score, weight in self.alone:
            total += score(row) * weight
        return total
