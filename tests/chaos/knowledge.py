"""How old may the state be on which a scheduler decided?

A binding that appears at some time was decided earlier, on what the watches had delivered by then. Invariants about
things that the driver itself changes (nodes, labels, taints, queues) are judged against every state of that window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BASE_S = 8.0
"""Decision, writes with retries and delays of the proxy, and the delivery of watch events."""


@dataclass(slots=True)
class Interval:
    start_s: float
    end_s: float | None = None


@dataclass(slots=True)
class Knowledge:
    """Times at which processes may have been cut off from news: stopped, with a dead watch, without a server."""

    intervals: list[Interval] = field(default_factory=list)

    def cut_off(self, at_s: float) -> Interval:
        found = Interval(at_s)
        self.intervals.append(found)
        return found

    def restore(self, interval: Interval, at_s: float) -> None:
        interval.end_s = at_s

    def since(self, at_s: float) -> float:
        """The beginning of the window for a binding that appeared at `at_s`."""
        start = at_s - BASE_S
        moved = True
        while moved:
            moved = False
            for each in self.intervals:
                end_s = at_s if each.end_s is None else each.end_s
                if each.start_s <= at_s and end_s >= start and each.start_s - BASE_S < start:
                    start, moved = each.start_s - BASE_S, True
        return start
