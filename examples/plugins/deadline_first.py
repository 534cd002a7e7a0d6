"""A custom queue order: among pods of equal priority, the nearest deadline first.

Deadlines are RFC 3339 times in the annotation `example.com/deadline`; pods without one come last. A scheduler has one
queue, so a configuration that enables this at queueSort disables PrioritySort there: see
examples/config/deadline-first.yaml. Cost: a few comparisons at every push and pop.
"""

from datetime import UTC, datetime

from bayplan.framework import Pod, QueuedPod

DEADLINE = "example.com/deadline"
NEVER = datetime.max.replace(tzinfo=UTC)


class DeadlineFirst:
    """Priority, then deadline, then the time since the pod was queued."""

    name = "DeadlineFirst"

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return _rank(first) < _rank(second)


def _rank(queued: QueuedPod) -> tuple[int, datetime, datetime]:
    return -queued.pod.priority, _deadline(queued.pod), queued.timestamp


def _deadline(pod: Pod) -> datetime:
    """An invalid deadline counts as none: an order must never fail, or no pod is scheduled at all."""
    try:
        found = datetime.fromisoformat(pod.metadata.annotations[DEADLINE])
    except (KeyError, ValueError):
        return NEVER
    return found if found.tzinfo else found.replace(tzinfo=UTC)
