"""What happens beside the operations, and when? Steps that are due at moments of a clock that need not wait.

Asked between attempts. The clock is the machine's, moved on by `skip` whenever nobody has anything to do: a benchmark
that deletes a pod every ten milliseconds takes as long as the work takes, and not as long as it was told to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

Step = Callable[[], bool]
"""Does something; whether there is more to do."""


@dataclass
class _Task:
    step: Step
    every_s: float
    due_s: float


class Background:
    """Steps that are repeated at their own pace."""

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
        """Do what is due. Like a ticker, a task that is late does not catch up."""
        now = self.now_s
        for task in [each for each in self._tasks if each.due_s <= now]:
            task.due_s = now + task.every_s
            if not task.step():
                self._tasks.remove(task)

    def skip(self, until_s: float | None = None) -> bool:
        """Move the clock to the next moment at which something is due, at the latest to `until_s`.

        False if nothing ever will be.
        """
        moments = [task.due_s for task in self._tasks] + ([] if until_s is None else [until_s])
        if not moments:
            return False
        self._skipped_s += max(0.0, min(moments) - self.now_s)
        return True
