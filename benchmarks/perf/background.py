"""Periodic steps beside the operations, on a clock that can skip idle time.

Called between attempts. The clock is the machine's, advanced by `skip` when no pod can be scheduled: a benchmark that
deletes a pod every ten milliseconds takes as long as the work takes, not as long as its intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

Step = Callable[[], bool]
"""Performs one step; returns whether there is more to do."""


@dataclass
class _Task:
    step: Step
    every_s: float
    due_s: float


class Background:
    """Steps that are repeated at their own interval."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []
        self._skipped_s = 0.0

    @property
    def now_s(self) -> float:
        return perf_counter() + self._skipped_s

    def start(self, step: Step, every_s: float) -> None:
        """Repeat a step, for the first time one interval from now."""
        self._tasks.append(_Task(step, every_s, self.now_s + every_s))

    def run_due(self) -> None:
        """Run the steps that are due. Like a ticker, a late step does not catch up."""
        now = self.now_s
        for task in [each for each in self._tasks if each.due_s <= now]:
            task.due_s = now + task.every_s
            if not task.step():
                self._tasks.remove(task)

    def skip(self, until_s: float | None = None) -> bool:
        """Advance the clock to the next due step, at most to `until_s`.

        Returns False if there is no further step.
        """
        moments = [task.due_s for task in self._tasks] + ([] if until_s is None else [until_s])
        if not moments:
            return False
        self._skipped_s += max(0.0, min(moments) - self.now_s)
        return True
