"""A Volcano queue as a session sees it."""

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
    """One queue. The plugins that compute shares and quotas store them by queue name."""

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
        """Whether other queues may reclaim what this queue holds. Default: yes."""
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
    """Cycles of parent queues: a message per cycle, and its queues. The root and missing parents end a chain."""
    found: dict[str, tuple[str, ...]] = {}
    done: set[str] = set()
    for name in queues:
        chain: list[str] = []
        while name in queues and name not in done and name not in chain and name != volcano.ROOT_QUEUE:
            chain.append(name)
            name = queues[name].parent
        if name in chain:
            cycle = [*chain[chain.index(name) :], name]
            message = f"queues form a cycle of parents: {' > '.join(reversed(cycle))}; give one of them another parent"
            found[message] = tuple(cycle[:-1])
        done.update(chain)
    return found
