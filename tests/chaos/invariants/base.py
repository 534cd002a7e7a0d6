"""Base of the invariant checkers: violations, the world that they look at, and checks that wait for late news."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from chaos.knowledge import Knowledge
from chaos.record import Change, Record

SKEW_S = 2.0
"""Watches of different kinds are different streams: what is compared across kinds is compared after this time."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`objects`: uids of the objects whose histories belong to the report."""

    invariant: str
    at_s: float
    text: str
    objects: tuple[str, ...] = ()


@dataclass(slots=True)
class Acts:
    """What the driver did itself, and so is no act of the processes under test."""

    deleted: dict[str, float] = field(default_factory=dict)
    """By uid of the object: when its deletion was sent."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    """Times without a working scheduler or API server: kills, stops, restarts."""

    def outage_between(self, start_s: float, end_s: float) -> bool:
        return any(start <= end_s and end >= start_s for start, end in self.outages)


@dataclass(slots=True)
class World:
    record: Record = field(default_factory=Record)
    knowledge: Knowledge = field(default_factory=Knowledge)
    acts: Acts = field(default_factory=Acts)


Found = Iterator[Violation]


class Checker:
    """One invariant, or several of one concern. Subclasses override what they need."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checks = 0
        """How often something was compared: an invariant that never looked has shown nothing."""
        self._later: list[tuple[float, int, Callable[[], Found]]] = []
        self._number = count()

    def on_change(self, change: Change) -> Found:  # noqa: ARG002
        """A change of the record, at once."""
        return iter(())

    def on_tick(self, now_s: float) -> Found:  # noqa: ARG002
        """Several times a second."""
        return iter(())

    def on_calm(self, now_s: float) -> Found:  # noqa: ARG002
        """After a time without faults, when everything that waited was placed."""
        return iter(())

    def on_empty(self, now_s: float) -> Found:  # noqa: ARG002
        """In the end, after the workload was deleted."""
        return iter(())

    def violation(self, at_s: float, text: str, *objects: str) -> Violation:
        return Violation(self.name, at_s, text, objects)

    def later(self, at_s: float, check: Callable[[], Found]) -> None:
        """Run a check when late news must have arrived."""
        heapq.heappush(self._later, (at_s, next(self._number), check))

    def due(self, now_s: float) -> Found:
        """Checks whose time has come."""
        while self._later and self._later[0][0] <= now_s:
            yield from heapq.heappop(self._later)[2]()


class Invariants:
    """All checkers of a run: feeds them, and hands each violation on once."""

    def __init__(self, world: World, checkers: list[Checker], report: Callable[[Violation], None]) -> None:
        self.checkers = checkers
        self._report = report
        self._seen: set[tuple[str, str]] = set()
        world.record.listeners.append(self.on_change)

    def on_change(self, change: Change) -> None:
        for checker in self.checkers:
            self._hand_on(checker.on_change(change))

    def tick(self, now_s: float) -> None:
        for checker in self.checkers:
            self._hand_on(checker.due(now_s))
            self._hand_on(checker.on_tick(now_s))

    def calm(self, now_s: float) -> None:
        for checker in self.checkers:
            self._hand_on(checker.on_calm(now_s))

    def empty(self, now_s: float) -> None:
        for checker in self.checkers:
            self._hand_on(checker.on_empty(now_s))

    def _hand_on(self, found: Found) -> None:
        for each in found:
            if (each.invariant, each.text) not in self._seen:
                self._seen.add((each.invariant, each.text))
                self._report(each)
