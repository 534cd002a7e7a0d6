"""Interface of plugins to devices of a node that several pods share.

A plugin with such devices appends a pool to `session.device_pools` when the session opens. The session reports the
tasks that are counted on each node. The predicates plugin calls it to choose devices for a task that gets a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bayplan.batch.model.nodes import Node
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.simulation import Simulation
from bayplan.framework.api.status import Status


class DevicePool(Protocol):
    """One kind of shared device on all nodes."""

    def add_task(self, task: Task, node: Node) -> None:
        """Count the task on the node. Not called for releasing and pipelined tasks."""
        ...

    def remove_task(self, task: Task, node: Node) -> None: ...

    def allocate(self, task: Task, node: Node) -> Status | None:
        """Choose devices for a task that gets the node; a Status when there are none. Pods without a request are
        ignored."""
        ...

    def release(self, task: Task, node: Node) -> bool:
        """Release the chosen devices. False: the pod keeps them and stays in the view of its node."""
        ...

    def simulate(self, trial: Simulation) -> Status | None:
        """Whether the node's devices suffice for the task, without the tasks that the trial removes."""
        ...

    def queue_amounts(self, task: Task) -> Mapping[str, float]:
        """The amounts of the task's devices in its queue's status, replacing its requests of the same names."""
        ...
