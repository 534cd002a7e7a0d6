"""Expectations of controllers, as in kube-controller-manager: own creations and deletions that the watch has not shown.

A controller checks them before it computes how many pods are missing. Creations are counted and deletions recorded
before the request, and removed when the watch delivers them. They expire after five minutes, because an object may be
created and deleted in a gap of the watch. Cost: a dictionary entry per owner with writes in flight.
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
    """Outstanding expectations by the owner's uid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_owner: dict[str, _OwnerExpectations] = {}

    def expect_creations(self, owner: str, count: int) -> None:
        self._get_or_add(owner).creations += count

    def lower_creations(self, owner: str, count: int = 1) -> None:
        """Remove expected creations that failed."""
        self._lower(owner, count)

    def creation_observed(self, owner: str) -> None:
        """Record a creation that the watch delivered."""
        self._lower(owner, 1)

    def expect_deletion(self, owner: str, uid: str) -> None:
        self._get_or_add(owner).deletions.add(uid)

    def deletion_observed(self, owner: str, uid: str) -> None:
        """Record a deletion that the watch delivered, or that failed."""
        found = self._by_owner.get(owner)
        if found is not None:
            found.deletions.discard(uid)
            self._delete_if_empty(owner, found)

    def satisfied(self, owner: str) -> bool:
        """Whether the watch has delivered all writes to the owner's objects."""
        found = self._by_owner.get(owner)
        if found is not None and found.until <= self._clock.monotonic_s():
            del self._by_owner[owner]
            found = None
        return found is None

    def delete(self, owner: str) -> None:
        """Remove the expectations of a deleted owner."""
        self._by_owner.pop(owner, None)

    def _get_or_add(self, owner: str) -> _OwnerExpectations:
        found = self._by_owner.setdefault(owner, _OwnerExpectations(0.0))
        found.until = self._clock.monotonic_s() + EXPECTATIONS_TIMEOUT_S
        return found

    def _lower(self, owner: str, count: int) -> None:
        found = self._by_owner.get(owner)
        if found is not None:
            found.creations = max(0, found.creations - count)
            self._delete_if_empty(owner, found)

    def _delete_if_empty(self, owner: str, found: _OwnerExpectations) -> None:
        if not found.creations and not found.deletions:
            del self._by_owner[owner]
