"""One node tried out for one task: what if these victims were gone?

Topology-aware preemption makes one for each node it looks at. Amounts are its own; plugins keep what they need for it
under their own name (`state`), starting from nothing on every node.
"""

from __future__ import annotations

from typing import Any

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.tasks import Task


class Simulation:
    """A copy of a node's accounts, and of whatever plugins put into it."""

    def __init__(self, task: Task, node: Node) -> None:
        self.task = task  # the one that looks for a place
        self.node = node
        self.future_idle: Amounts = node.future_idle
        self.tasks: dict[str, Task] = dict(node.tasks)
        self.state: dict[str, Any] = {}  # by plugin

    def remove(self, task: Task) -> None:
        self.tasks.pop(task.uid, None)
        self.future_idle.add(task.resreq)

    def add(self, task: Task) -> None:
        self.tasks[task.uid] = task
        self.future_idle.sub_unchecked(task.resreq)

    def fits(self) -> bool:
        return self.task.init_resreq.less_equal(self.future_idle)
