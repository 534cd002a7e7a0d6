"""Where is a task not to be tried, because the binder has lately given it up there? And when not at all?

A part of every session whose pods are bound by the binder, whatever plugins are listed: without it a binding that is
always refused would be asked for in session after session, and others would wait. Asked before all predicates, and once
more at commits, for actions need not ask. Cost: one mask for each task that has failed; the others share an empty one.
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
"""Who does the same in the pod engine."""


@dataclass(frozen=True, slots=True)
class BindFailureFilter:
    """What is remembered of failures, as one session asks for it."""

    failures: BindFailures

    def predicate(self) -> NodeFunction:
        return NodeFunction(
            OWNER, for_nodes=self._reject_excluded_nodes, signature=self._signature, depends_on=NODE_STATIC
        )

    def pre_predicate(self, task: Task) -> Status | None:
        """Why a task is not to be tried on any node."""
        why = self.failures.backoff_message(task.uid)
        return error(f"plugin {OWNER} pre-predicates failed {why}") if why else None

    def allows_binding(self, tasks: Iterable[Task]) -> bool:
        """Whether each that is to be bound may be bound where it was put."""
        failures = self.failures
        return not any(
            failures.backoff_message(task.uid) or task.node_name in failures.excluded_nodes(task.uid)
            for task in tasks
            if task.uid in failures.records and task.status is TaskStatus.ALLOCATED
        )

    def _signature(self, task: Task) -> Hashable:
        """A task that has failed before is like no other."""
        return task.uid if task.uid in self.failures.records else ""

    def _reject_excluded_nodes(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        excluded = self.failures.excluded_nodes(task.uid)
        if excluded:
            names = nodes.snapshot.nodes.names
            mask = np.array([names[row] in excluded for row in nodes.rows.tolist()], dtype=np.bool_)
            yield Rejection(mask, EXCLUDED_NODE_REASON, resolvable=False)
