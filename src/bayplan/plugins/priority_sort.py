"""Orders the queue by priority, then by queueing time.

Called by the scheduling queue at every push and pop. Cost: two comparisons.
"""

from __future__ import annotations

from datetime import datetime

from bayplan.framework.api.plugin import QueuedPod


class PrioritySort:
    """Orders the queue by priority, then by the time at which a pod was queued."""

    name = "PrioritySort"

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        first_priority, second_priority = first.pod.priority, second.pod.priority
        return first_priority > second_priority or (
            first_priority == second_priority and first.timestamp < second.timestamp
        )

    def sort_key(self, queued: QueuedPod) -> tuple[int, datetime]:
        """Return the same order as a key, which saves a call at every comparison."""
        return -queued.pod.priority, queued.timestamp
