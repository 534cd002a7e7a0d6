"""What score plugins add to the totals of one kind of pod, and who of them has to be asked again, when.

`Standing` puts totals together from these. A plugin either scores alone, each row for itself, or it normalises or
compares, and then its scores may move on all rows at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from bayplan.framework.parts import NOTHING, Part, Weighted
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
    def vector(self) -> IntVector | None:
        """Scores by row, weighted where the plugin does not score alone; None where they are the same everywhere."""
        part = self.part
        if not part.scores_alone:
            return self.weighted.vector
        # Pods that come and go may make one speak up that looks at them.
        return None if part.silent and not part.role.looks_at_pods else part.raw

    @property
    def factor(self) -> int:
        return self.part.role.weight if self.part.scores_alone else 1

    @property
    def given(self) -> tuple[IntVector | None, int]:
        """A vector and its factor, or one number for all rows."""
        vector = self.vector
        return (None, self.weighted.flat) if vector is None else (vector, self.factor)

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
            return self.part.raw[rows] * self.factor
        return self.weighted.over(rows)


class Cast(NamedTuple):
    """Who has something to say about these pods."""

    by_amounts: list[Part]  # of those who look at what happens on a row: whom its amounts tell everything
    by_pods: list[Part]  # and all others
    names: tuple[str, ...]  # of the score plugins
    scores: list[tuple[IntVector | None, int]]  # what each has given
    shifting: list[tuple[int, Addend]]  # those who do not score alone, with their place in `scores`
    simple: bool  # pods that come or go on a row are followed by asking these about that row

    @classmethod
    def of(cls, parts: list[Part], addends: list[Addend]) -> Cast:
        followers = [part for part in parts if part.role.looks_at_pods and (part.filtering or part.scoring)]
        speaking = [addend for addend in addends if addend.speaks]
        shifting = [(place, addend) for place, addend in enumerate(speaking) if not addend.part.scores_alone]
        return cls(
            [part for part in followers if part.role.sees_amounts and part.scores_alone],
            [part for part in followers if not part.role.sees_amounts or not part.scores_alone],
            tuple(addend.part.role.name for addend in speaking),
            [addend.given for addend in speaking],
            shifting,
            bool(addends) and all(a.part.role.moves for _, a in shifting if a.part.role.looks_at_pods),
        )

    def total(self, row: int) -> int:
        total = 0
        for vector, factor in self.scores:
            if vector is None:
                total += factor
                continue
            total += vector.item(row) * factor
        return total
