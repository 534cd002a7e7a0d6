"""Backoff of failed pods.

The backoff doubles with each failure, up to a limit. If pods may be popped from the backoff queue early, times are
rounded to whole seconds: within a second pods are in queue order, and a pod is ready in the second after.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bayplan.queue.queued_pod import QueuedPodInfo

WINDOW = timedelta(seconds=1)
NO_BACKOFF_TIME = datetime.min.replace(tzinfo=UTC)
_MAX_DOUBLINGS = 60
_MAX_BACKOFF_S = 10.0**9
"""About thirty years. A larger backoff would exceed the range of datetime."""


@dataclass(frozen=True, slots=True)
class PodBackoff:
    """Backoff rule. With a limit of 0 no pod waits."""

    initial_s: float = 1.0
    max_s: float = 10.0
    windowed: bool = True

    def duration_s(self, count: int) -> float:
        """Return the backoff after the `count`-th failure."""
        if count <= 0:
            return 0.0
        doubled: float = self.initial_s * 2 ** min(count - 1, _MAX_DOUBLINGS)
        return min(doubled, self.max_s, _MAX_BACKOFF_S)

    def expires_at(self, queued: QueuedPodInfo) -> datetime:
        """Return the end of the pod's backoff; the earliest datetime for a pod that never failed."""
        count = queued.consecutive_errors or queued.unschedulable_count
        if not count or self.max_s <= 0:
            return NO_BACKOFF_TIME
        if queued.backoff_until is None:
            end = queued.timestamp + timedelta(seconds=self.duration_s(count))
            queued.backoff_until = self._floor(end)
        return queued.backoff_until

    def is_backing_off(self, queued: QueuedPodInfo, now: datetime) -> bool:
        """Whether the pod is still in backoff. A pod whose backoff ends within the current second still is."""
        return self.expires_at(queued) >= self._floor(now)

    def ready_at(self, queued: QueuedPodInfo) -> datetime:
        """Return the first time at which `is_backing_off` is false."""
        return self.expires_at(queued) + (WINDOW if self.windowed else timedelta(microseconds=1))

    def _floor(self, time: datetime) -> datetime:
        return time.replace(microsecond=0) if self.windowed else time
