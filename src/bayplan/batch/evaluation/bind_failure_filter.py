"""Excludes nodes on which the binder recently failed to bind a task, and tasks during their backoff.

Part of every session that uses the binder, whatever plugins are configured. Without it, a binding that always fails
would be requested in every session, and other tasks would wait. Runs before all predicates, and again at commits,
because actions can skip predicates. Cost: one mask for each task with a failure; all other tasks share an empty one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bayplan.batch.evaluation.node_points import NODE_STATIC, NodeFunction
from bayplan.batch.model.nodes import Nodes
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON

OWNER = "BindRequestBinder"
"""The pod engine's plugin with the same function."""


@dataclass(frozen=True, slots=True)
class BindFailureFilter:
    """The bind failures, as one session queries them."""

    failures: BindFailures

    def predicate(self) -> NodeFunction:
        return NodeFunction(
            OWNER, for_nodes=self._reject_excluded_nodes, signature=self._signature, depends_on=NODE_STATIC
        )

    def pre_predicate(self, task: Task) -> Status | None:
        """The reason why a task is on backoff for all nodes; None if it is not."""
        message = self.failures.backoff_message(task.uid)
        return error(f"plugin {OWNER} pre-predicates failed {message}") if message else None

    def allows_binding(self, tasks: Iterable[Task]) -> bool:
        """Whether no allocated task is on backoff or on an excluded node."""
        failures = self.failures
        return not any(
            failures.backoff_message(task.uid) or task.node_name in failures.excluded_nodes(task.uid)
            for task in tasks
            if task.uid in failures.records and task.status is TaskStatus.ALLOCATED
        )

    def _signature(self, task: Task) -> Hashable:
        """A task with failures shares its evaluation with no other task."""
        return task.uid if task.uid in self.failures.records else ""

    def _reject_excluded_nodes(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        excluded = self.failures.excluded_nodes(task.uid)
        if excluded:
            names = nodes.snapshot.nodes.names
            mask = np.array([names[row] in excluded for row in nodes.rows.tolist()], dtype=np.bool_)
            yield Rejection(mask, EXCLUDED_NODE_REASON, resolvable=False)
