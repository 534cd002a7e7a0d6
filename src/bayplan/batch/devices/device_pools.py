"""Devices of a node that several pods share, as a plugin keeps them during a session.

A plugin that knows such devices appends a pool to `session.device_pools` when the session opens. The session tells it
who is counted on a node; the predicates plugin lets it choose devices for a task that gets a node.
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
        """The task counts on the node from now on. Tasks that are being deleted, or only promised room, do not."""
        ...

    def remove_task(self, task: Task, node: Node) -> None:
        """It no longer does."""
        ...

    def allocate(self, task: Task, node: Node) -> Status | None:
        """Choose devices for a task that is given the node; a Status where there are none. Pods without a request
        are passed over."""
        ...

    def release(self, task: Task, node: Node) -> bool:
        """Give back what was chosen. False: the pod cannot be rid of it, and stays in the view of its node."""
        ...

    def simulate(self, trial: Simulation) -> Status | None:
        """Whether the node's devices would do for the task, once those who are gone in the trial are gone."""
        ...

    def queue_amounts(self, task: Task) -> Mapping[str, float]:
        """What the task's devices count as in its queue's status, in place of its requests of these names."""
        ...
