"""Do tasks of a job land on the nodes where their companions are, or can be?

Jobs say in annotations which roles want to share nodes and which do not (`task_buckets`). Tasks of the fullest bucket
go first, and a node is better for a task the more of its bucket is there or fits there.
Cost: some column operations for each task of such a job, since every placement changes what is best for the next.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.node_columns import rows_with_resource
from bayplan.batch.model.amounts import TOLERANCE
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.task_topology.buckets import (
    Bucket,
    JobBuckets,
    TaskTopologyError,
    TaskTopologySpec,
    role_of,
)
from bayplan.batch.session.session import Session
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.objects.resources import CPU, MEMORY
from bayplan.snapshot import BoolVector

IntVector = npt.NDArray[np.int64]


class TaskTopologyPlugin:
    """Keeps roles of a job together, or apart, as its annotations ask for."""

    name = "task-topology"
    takes: ClassVar[tuple[Argument, ...]] = (Argument("task-topology.weight", int, 1),)

    def __init__(self, arguments: Arguments) -> None:
        self._weight = arguments.get_int("task-topology.weight", 1)
        self._jobs: dict[str, JobBuckets] = {}

    def on_session_open(self, session: Session) -> None:
        self._session = session
        for job in session.jobs.values():
            if not job.pending:
                continue
            try:
                topology = TaskTopologySpec.of(job)
            except TaskTopologyError as fault:
                session.faults.append(f"{self.name}: job {job.uid}: {fault}; its roles are treated alike")
                continue
            if topology is not None:
                self._jobs[job.uid] = JobBuckets(topology, job.tasks.values(), session.snapshot.nodes.index)
        session.add_task_order_fn(self.name, self._order)
        session.add_node_order_nodes_fn(self.name, self._score, signature=self._signature, depends_on=self._version)
        session.add_event_handler(self.name, allocate=self._allocated)

    # tasks ------------------------------------------------------------------------------------------------------

    def _order(self, left: Task, right: Task) -> int:
        """Tasks in buckets first, of one job those of fuller buckets, of older ones, of more important roles."""
        of_left, of_right = self._jobs.get(left.job), self._jobs.get(right.job)
        if of_left is None or of_right is None:
            return 0
        one, other = of_left.bucket_of(left), of_right.bucket_of(right)
        if one is None or other is None:
            return (one is None) - (other is None)
        if left.job != right.job:
            return 0
        if one is not other:
            return _compare((-len(one.waiting), one.index), (-len(other.waiting), other.index))
        return _compare(of_right.importance(right), of_left.importance(left))

    def _allocated(self, task: Task) -> None:
        buckets = self._jobs.get(task.job)
        if buckets is not None:
            buckets.bind(task)

    # nodes ------------------------------------------------------------------------------------------------------

    def _signature(self, task: Task) -> Hashable:
        buckets = self._jobs.get(task.job)
        bucket = buckets.bucket_of(task) if buckets is not None else None
        return () if bucket is None else (task.job, bucket.index, role_of(task), task.demand_key)

    def _version(self, task: Task) -> Hashable:
        buckets = self._jobs.get(task.job)
        return 0 if buckets is None else buckets.version

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        buckets = self._jobs.get(task.job)
        bucket = buckets.bucket_of(task) if buckets is not None else None
        if buckets is None or bucket is None:
            return np.zeros(len(nodes))
        tasks = (
            buckets.affinity_counts(task, bucket)[nodes.rows]
            + len(bucket.waiting)
            - count_excluded_tasks(task, bucket, nodes)
        )
        scores = (tasks * self._weight).astype(np.float64) * float(MAX_SCORE) / float(buckets.largest)
        return np.where(self._too_small(task, nodes), 0.0, scores)

    def _too_small(self, task: Task, nodes: Nodes) -> BoolVector:
        """Rows that lack something for the task even when everybody who goes is gone, or that lack anything at all."""
        asked = task.resreq
        found = (_idle_columns(nodes, CPU) < asked.milli_cpu) | (_idle_columns(nodes, MEMORY) < asked.memory)
        for resource in nodes.accounts.dimensions.names[2:]:
            room = _idle_columns(nodes, resource)
            found |= room < asked.get(resource)
            if resource in (asked.scalars or {}) and not asked.get(resource):
                found |= (room == 0) & ~rows_with_resource(nodes, resource)[nodes.rows]
        return found


def count_excluded_tasks(task: Task, bucket: Bucket, nodes: Nodes) -> IntVector:
    """How many of the others that wait must stay away from each row so that the rest of the bucket fits there."""
    remains = bucket.remaining_requests(task)
    found = np.zeros(len(nodes), dtype=np.int64)
    for resource, steps in zip(bucket.resources, remains.T, strict=True):
        room = _idle_columns(nodes, resource)
        short = np.flatnonzero(steps[0] - room >= TOLERANCE)
        if len(short):
            enough = np.searchsorted(-steps, -(room[short] + TOLERANCE), side="right")
            found[short] = np.maximum(found[short], enough)
    return np.minimum(found, len(remains) - 1)


def _idle_columns(nodes: Nodes, resource: str) -> FloatVector:
    """What is idle, and what will be once everybody who goes is gone."""
    return nodes.idle(resource) + nodes.releasing(resource)


def _compare(left: tuple[int, int], right: tuple[int, int]) -> int:
    return (left > right) - (left < right)
