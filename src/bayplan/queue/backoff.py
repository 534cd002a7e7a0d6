"""How long does a pod that failed wait before it is tried again?

The more often it failed the longer, up to a limit. With pods popped from the backoff queue when nothing else is to do,
time counts in whole seconds: within a second pods come in the queue's order, and a pod is ready in the second after.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bayplan.queue.queued_pod import QueuedPodInfo

WINDOW = timedelta(seconds=1)
NO_BACKOFF_TIME = datetime.min.replace(tzinfo=UTC)
_MAX_DOUBLINGS = 60
_MAX_BACKOFF_S = 10.0**9
"""Some thirty years: more would leave the calendar."""


@dataclass(frozen=True, slots=True)
class PodBackoff:
    """The rule. A limit of 0 means that nobody waits."""

    initial_s: float = 1.0
    max_s: float = 10.0
    windowed: bool = True

    def duration_s(self, count: int) -> float:
        """How long after the `count`-th failure."""
        if count <= 0:
            return 0.0
        doubled: float = self.initial_s * 2 ** min(count - 1, _MAX_DOUBLINGS)
        return min(doubled, self.max_s, _MAX_BACKOFF_S)

    def expires_at(self, queued: QueuedPodInfo) -> datetime:
        """When the pod's wait ends; the beginning of time for one that never failed."""
        count = queued.consecutive_errors or queued.unschedulable_count
        if not count or self.max_s <= 0:
            return NO_BACKOFF_TIME
        if queued.backoff_until is None:
            end = queued.timestamp + timedelta(seconds=self.duration_s(count))
            queued.backoff_until = self._floor(end)
        return queued.backoff_until

    def is_backing_off(self, queued: QueuedPodInfo, now: datetime) -> bool:
        """Whether the pod still has to wait. One whose wait ends in the second that runs still does."""
        return self.expires_at(queued) >= self._floor(now)

    def ready_at(self, queued: QueuedPodInfo) -> datetime:
        """The first moment at which `is_backing_off` says no."""
        return self.expires_at(queued) + (WINDOW if self.windowed else timedelta(microseconds=1))

    def _floor(self, moment: datetime) -> datetime:
        return moment.replace(microsecond=0) if self.windowed else moment
