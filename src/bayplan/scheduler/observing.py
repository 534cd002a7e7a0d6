"""What is worth counting in the life of a pod: told as it happens, to metrics or to nobody.

`telemetry.SchedulerMetrics` is an observer by shape. Whoever tells never waits and never asks; each costs a look-up and
an addition.
"""

from __future__ import annotations

from typing import Protocol

SCHEDULED, UNSCHEDULABLE, ERROR = "scheduled", "unschedulable", "error"
SUCCEEDED, FAILED, TIMED_OUT = "success", "failure", "timeout"


class Observer(Protocol):
    """Told of what a live scheduler does."""

    def decided(self, seconds: float) -> None:
        """A node was looked for, whether one was found or not."""
        ...

    def attempt(self, result: str, profile: str, seconds: float) -> None:
        """An attempt is over: after its binding, or when it failed."""
        ...

    def scheduled(self, attempts: int, since_first_s: float | None, *, after_flush: bool = False) -> None:
        """A pod is bound, after so many attempts and so long after it could first be tried."""
        ...

    def group_decided(self, seconds: float) -> None:
        """Places were looked for, for all pods of a group."""
        ...

    def group_attempt(self, result: str, profile: str, seconds: float) -> None:
        """An attempt for a group is over."""
        ...

    def handled(self, event: str, seconds: float) -> None:
        """A watch event went to cache and queue."""
        ...

    def waited_on_permit(self, result: str, seconds: float) -> None: ...

    def preempted(self, victims: int) -> None:
        """So many are to be evicted for one pod."""
        ...

    def preemption_ran(self, result: str, seconds: float) -> None:
        """Victims were deleted, or that failed."""
        ...

    def claim_created(self, result: str) -> None:
        """A device claim was written for a pod that asked for a resource."""
        ...

    def conditions_awaited(self, profile: str, driver: str, status: str, seconds: float) -> None:
        """A pod waited for a device to be ready."""
        ...


class NoObserver:
    """Nobody counts."""

    def decided(self, seconds: float) -> None: ...
    def attempt(self, result: str, profile: str, seconds: float) -> None: ...
    def scheduled(self, attempts: int, since_first_s: float | None, *, after_flush: bool = False) -> None: ...
    def group_decided(self, seconds: float) -> None: ...
    def group_attempt(self, result: str, profile: str, seconds: float) -> None: ...
    def handled(self, event: str, seconds: float) -> None: ...
    def waited_on_permit(self, result: str, seconds: float) -> None: ...
    def preempted(self, victims: int) -> None: ...
    def preemption_ran(self, result: str, seconds: float) -> None: ...
    def claim_created(self, result: str) -> None: ...
    def conditions_awaited(self, profile: str, driver: str, status: str, seconds: float) -> None: ...
