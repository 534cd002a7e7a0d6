"""A tenant's queue as a session sees it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.tasks import EARLIEST_TIME
from bayplan.objects.volcano import types as volcano

HIERARCHY = "volcano.sh/hierarchy"
HIERARCHY_WEIGHTS = "volcano.sh/hierarchy-weights"
OPEN = "Open"


class Queue:
    """One queue. Shares and quotas belong to the plugins that compute them, by the queue's name."""

    def __init__(self, queue: volcano.Queue) -> None:
        self.queue = queue
        self.name: str = queue.metadata.name
        self.uid: str = self.name  # Volcano's id of a queue is its name
        self.weight: int = queue.spec.weight
        self.parent: str = queue.spec.parent
        self.priority: int = queue.spec.priority
        self.created: datetime = queue.metadata.creation_timestamp or EARLIEST_TIME

    @property
    def hierarchy(self) -> str:
        return self.queue.metadata.annotations.get(HIERARCHY, "")

    @property
    def hierarchy_weights(self) -> str:
        return self.queue.metadata.annotations.get(HIERARCHY_WEIGHTS, "")

    @property
    def reclaimable(self) -> bool:
        """Whether others may take back what the queue holds: yes, unless it says no."""
        return self.queue.spec.reclaimable is not False

    @property
    def is_open(self) -> bool:
        return self.queue.status.state == OPEN

    @cached_property
    def capability(self) -> Amounts:
        return Amounts.of(self.queue.spec.capability)

    @cached_property
    def guarantee(self) -> Amounts:
        return Amounts.of(self.queue.spec.guarantee.resource)

    @cached_property
    def deserved(self) -> Amounts:
        return Amounts.of(self.queue.spec.deserved)

    def __repr__(self) -> str:
        return f"Queue({self.name})"


def find_queue_cycles(queues: Mapping[str, Queue]) -> dict[str, tuple[str, ...]]:
    """Queues that are below themselves: a sentence a cycle, and who is in it. The root, or a parent that does not
    exist, ends a line."""
    found: dict[str, tuple[str, ...]] = {}
    done: set[str] = set()
    for name in queues:
        line: list[str] = []
        while name in queues and name not in done and name not in line and name != volcano.ROOT_QUEUE:
            line.append(name)
            name = queues[name].parent
        if name in line:
            ring = [*line[line.index(name) :], name]
            sentence = f"queues are below themselves: {' > '.join(reversed(ring))}; give one of them another parent"
            found[sentence] = tuple(ring[:-1])
        done.update(line)
    return found
