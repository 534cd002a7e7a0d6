"""Prefers full nodes, so that empty ones can be released. Orders jobs by priority, and preempts lower ones only.

Cost: four columns for each class of tasks, and after that the changed rows; one lookup for the job of each candidate.
"""

from collections.abc import Sequence

import numpy as np

from bayplan.batch import ROW_LOCAL, Arguments, FloatVector, Job, Nodes, Session, Task, same_for_all
from bayplan.framework import MAX_SCORE


class CostAware:
    """Packs nodes, orders jobs by priority, and preempts lower priorities only."""

    name = "costaware"

    def __init__(self, arguments: Arguments) -> None:
        self._weight = arguments.get_float("costaware.weight", 1.0)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        session.add_job_order_fn(self.name, self._order)
        session.add_node_order_nodes_fn(self.name, self._scores, signature=same_for_all, depends_on=ROW_LOCAL)
        session.add_preemptable_fn(self.name, self._victims)

    def _order(self, left: Job, right: Job) -> int:
        return right.priority - left.priority

    def _scores(self, task: Task, nodes: Nodes) -> FloatVector:  # noqa: ARG002
        """The mean of the used fractions of cpu and memory; a node without one of the two counts as empty in it."""
        used = np.zeros(len(nodes))
        for resource in ("cpu", "memory"):
            total = nodes.allocatable(resource)
            used += np.divide(nodes.used(resource), total, out=np.zeros(len(nodes)), where=total > 0)
        return used / 2 * self._weight * MAX_SCORE

    def _victims(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        jobs = self._session.jobs
        mine = jobs[preemptor.job].priority
        return [task for task in candidates if task.job in jobs and jobs[task.job].priority < mine]
