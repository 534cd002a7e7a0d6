"""Simulation of one node without certain victims, for one task.

Topology-aware preemption creates one for each node that it examines. It has its own amounts. Plugins store data for it
under their own name (`state`), which is empty at first on every node.
"""

from __future__ import annotations

from typing import Any

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.tasks import Task


class Simulation:
    """A copy of a node's accounts, with state of plugins."""

    def __init__(self, task: Task, node: Node) -> None:
        self.task = task  # the task to place
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
