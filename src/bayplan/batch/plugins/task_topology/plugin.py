"""The `task-topology` plugin: places tasks of a job near tasks of roles with affinity.

Annotations of a job define which roles have affinity or anti-affinity (`task_topology.buckets`). Tasks of the fullest
bucket go first. A node scores higher for a task the more tasks of its bucket are there or fit there.
Cost: some column operations for each task of such a job, because every placement changes the scores of the next task.
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
from bayplan.batch.plugins.task_topology.buckets import Bucket, JobBuckets, TaskTopologyError, TaskTopologySpec, role_of
from bayplan.batch.session.session import Session
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.objects.resources import CPU, MEMORY
from bayplan.snapshot import BoolVector

IntVector = npt.NDArray[np.int64]


class TaskTopologyPlugin:
    """Applies affinity and anti-affinity between roles of a job."""

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
        session.add_event_handler(self.name, allocate=self._on_allocate)

    # Tasks

    def _order(self, left: Task, right: Task) -> int:
        """Tasks in buckets first. Within a job: fuller buckets, then older buckets, then more important roles."""
        left_job, right_job = self._jobs.get(left.job), self._jobs.get(right.job)
        if left_job is None or right_job is None:
            return 0
        first, second = left_job.bucket_of(left), right_job.bucket_of(right)
        if first is None or second is None:
            return (first is None) - (second is None)
        if left.job != right.job:
            return 0
        if first is not second:
            return _compare((-len(first.waiting), first.index), (-len(second.waiting), second.index))
        return _compare(right_job.importance(right), left_job.importance(left))

    def _on_allocate(self, task: Task) -> None:
        buckets = self._jobs.get(task.job)
        if buckets is not None:
            buckets.bind(task)

    # Nodes

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
        """Rows whose future idle is too small for the task, or that lack a resource which it requests with 0."""
        requested = task.resreq
        found = (_idle_columns(nodes, CPU) < requested.milli_cpu) | (_idle_columns(nodes, MEMORY) < requested.memory)
        for resource in nodes.accounts.dimensions.names[2:]:
            idle = _idle_columns(nodes, resource)
            found |= idle < requested.get(resource)
            if resource in (requested.scalars or {}) and not requested.get(resource):
                found |= (idle == 0) & ~rows_with_resource(nodes, resource)[nodes.rows]
        return found


def count_excluded_tasks(task: Task, bucket: Bucket, nodes: Nodes) -> IntVector:
    """For each row, the number of waiting tasks that must be left out so that the rest of the bucket fits."""
    remaining = bucket.remaining_requests(task)
    found = np.zeros(len(nodes), dtype=np.int64)
    for resource, steps in zip(bucket.resources, remaining.T, strict=True):
        idle = _idle_columns(nodes, resource)
        too_small = np.flatnonzero(steps[0] - idle >= TOLERANCE)
        if len(too_small):
            excluded = np.searchsorted(-steps, -(idle[too_small] + TOLERANCE), side="right")
            found[too_small] = np.maximum(found[too_small], excluded)
    return np.minimum(found, len(remaining) - 1)


def _idle_columns(nodes: Nodes, resource: str) -> FloatVector:
    """Idle plus releasing amounts."""
    return nodes.idle(resource) + nodes.releasing(resource)


def _compare(left: tuple[int, int], right: tuple[int, int]) -> int:
    return (left > right) - (left < right)
