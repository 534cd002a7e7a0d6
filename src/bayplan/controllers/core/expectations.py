"""Has the watch told what we did? Until it has, what exists is not what we see, and nobody may count.

Asked before a controller decides how many pods are missing. Creations are counted and deletions noted before they are
asked for, and struck off as the watch tells of them. All is forgotten after five minutes, since a gap in the watch may
have swallowed an object that came and went. Cost: a dictionary entry for each owner with writes under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.clock import Clock

EXPECTATIONS_TIMEOUT_S = 300.0


@dataclass(slots=True)
class _OwnerExpectations:
    until: float
    creations: int = 0
    deletions: set[str] = field(default_factory=set)


class Expectations:
    """What the watch still has to tell, by owner's uid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, _OwnerExpectations] = {}

    def expect_creations(self, owner: str, count: int) -> None:
        """We are about to make so many objects."""
        self._noted(owner).creations += count

    def lower_creations(self, owner: str, count: int = 1) -> None:
        """That many were not made after all."""
        self._less(owner, count)

    def creation_observed(self, owner: str) -> None:
        """The watch told of a new object."""
        self._less(owner, 1)

    def expect_deletion(self, owner: str, uid: str) -> None:
        """We are about to delete this object."""
        self._noted(owner).deletions.add(uid)

    def deletion_observed(self, owner: str, uid: str) -> None:
        """The object goes, or is gone, or it did not come to that."""
        found = self._waiting.get(owner)
        if found is not None:
            found.deletions.discard(uid)
            self._tidy(owner, found)

    def satisfied(self, owner: str) -> bool:
        """Whether everything that we did to this owner's objects has been told."""
        found = self._waiting.get(owner)
        if found is not None and found.until <= self._clock.monotonic_s():
            del self._waiting[owner]
            found = None
        return found is None

    def delete(self, owner: str) -> None:
        """The owner is gone."""
        self._waiting.pop(owner, None)

    def _noted(self, owner: str) -> _OwnerExpectations:
        found = self._waiting.setdefault(owner, _OwnerExpectations(0.0))
        found.until = self._clock.monotonic_s() + EXPECTATIONS_TIMEOUT_S
        return found

    def _less(self, owner: str, count: int) -> None:
        found = self._waiting.get(owner)
        if found is not None:
            found.creations = max(0, found.creations - count)
            self._tidy(owner, found)

    def _tidy(self, owner: str, found: _OwnerExpectations) -> None:
        if not found.creations and not found.deletions:
            del self._waiting[owner]
