"""Buckets: tasks of a job that should share a node, built from the annotations of the job.

`task-topology` builds the buckets of a job when a session opens and updates them as tasks are placed. A bucket holds
tasks whose roles have affinity; ideally all of them fit on one node. Cost: a few array operations per task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import TASK_SPEC, Task
from bayplan.errors import BayplanError
from bayplan.objects.resources import CPU, MEMORY

AFFINITY = "volcano.sh/task-topology-affinity"
ANTI_AFFINITY = "volcano.sh/task-topology-anti-affinity"
TASK_ORDER = "volcano.sh/task-topology-task-order"

SELF_ANTI_PRIORITY, INTER_PRIORITY, SELF_PRIORITY, INTER_ANTI_PRIORITY = 4, 3, 2, 1


class TaskTopologyError(BayplanError):
    """The annotations of a job name roles incorrectly."""


def role_of(task: Task) -> str:
    """The role from the annotation `volcano.sh/task-spec`; other sources are ignored here."""
    return task.pod.metadata.annotations.get(TASK_SPEC, "")


@dataclass(frozen=True, slots=True)
class TaskTopologySpec:
    """Affinity and anti-affinity groups of roles, and their order. A group of one role applies to the role itself."""

    affinity: tuple[tuple[str, ...], ...] = ()
    anti_affinity: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job) -> TaskTopologySpec | None:
        """Read the annotations of a job; None if it has none of them."""
        annotations = job.pod_group.metadata.annotations
        if not annotations.keys() & {AFFINITY, ANTI_AFFINITY, TASK_ORDER}:
            return None
        roles = {task.role for task in job.tasks.values()}
        affinity = _groups(annotations, AFFINITY, roles)
        anti_affinity = _groups(annotations, ANTI_AFFINITY, roles)
        order = _group(annotations[TASK_ORDER], TASK_ORDER, roles) if TASK_ORDER in annotations else ()
        return cls(affinity, anti_affinity, order)


def _groups(annotations: Mapping[str, str], key: str, roles: set[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(_group(text, key, roles) for text in annotations[key].split(";")) if key in annotations else ()


def _group(text: str, key: str, roles: set[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name, count in Counter(filter(None, names)).items():
        if name not in roles:
            raise TaskTopologyError(f"{key} names the role {name}, of which the job has no task")
        if count > 1:
            raise TaskTopologyError(f"{key} names the role {name} twice in one group")
    return names


class Bucket:
    """Tasks that should be together: the waiting ones, and the number of placed ones by node."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.waiting: dict[str, Task] = {}
        self.request = Amounts()  # of waiting tasks
        self.bound = 0
        self.on_node: Counter[str] = Counter()
        self._requests: npt.NDArray[np.float64] | None = None  # one line per task that waited when it was built
        self._lines: dict[str, int] = {}  # line by task
        self._waiting_mask = np.zeros(0, dtype=np.bool_)  # lines of tasks that still wait

    def add(self, task: Task) -> None:
        if task.node_name:
            self._count(task)
        else:
            self.waiting[task.uid] = task
            self.request.add(task.resreq)

    def bind(self, task: Task) -> None:
        """Record that the task got a node in this session. As upstream, a later loss of the node is not recorded."""
        self._count(task)
        if self.waiting.pop(task.uid, None) is not None and self._requests is not None:
            self._waiting_mask[self._lines[task.uid]] = False
        self.request.sub_unchecked(task.resreq)

    def _count(self, task: Task) -> None:
        self.on_node[task.node_name] += 1
        self.bound += 1

    @property
    def resources(self) -> tuple[str, ...]:
        return (CPU, MEMORY, *(self.request.scalars or {}))

    def remaining_requests(self, task: Task) -> npt.NDArray[np.float64]:
        """Sum of the waiting requests, then the sum with the tasks except this one removed one after another.

        Columns are resources.
        """
        resources = self.resources
        if self._requests is None:
            self._lines = {uid: line for line, uid in enumerate(self.waiting)}
            requests = [[each.resreq.get(name) for name in resources] for each in self.waiting.values()]
            self._requests = np.array(requests, dtype=np.float64).reshape(-1, len(resources))
            self._waiting_mask = np.ones(len(requests), dtype=np.bool_)
        remaining = self._waiting_mask.copy()
        if task.uid in self._lines:
            remaining[self._lines[task.uid]] = False
        total = np.array([[self.request.get(name) for name in resources]])
        steps: npt.NDArray[np.float64] = np.subtract.accumulate(np.concatenate((total, self._requests[remaining])))
        return steps


class JobBuckets:
    def __init__(self, topology: TaskTopologySpec, tasks: Iterable[Task], rows: Mapping[str, int]) -> None:
        """Build the buckets; `rows` maps node names of the session to rows."""
        self.buckets: list[Bucket] = []
        self.largest = 0  # size of the largest bucket
        self.version = 0  # increases with every placed task
        self.priority: dict[str, int] = {}
        self.order = {role: len(topology.order) - place for place, role in enumerate(topology.order)}
        self._affinity_pairs = self._pairs(topology.affinity, INTER_PRIORITY, SELF_PRIORITY)
        self._anti_affinity_pairs = self._pairs(topology.anti_affinity, INTER_ANTI_PRIORITY, SELF_ANTI_PRIORITY)
        self._bucket_of: dict[str, Bucket] = {}
        self._rows = rows
        self._anti_affinity_by_role: dict[str, npt.NDArray[np.int64]] = {}  # placed tasks to avoid, by row
        self._build([task for task in tasks if role_of(task) and role_of(task) in self.priority])

    def _pairs(self, groups: Sequence[tuple[str, ...]], several: int, single: int) -> set[tuple[str, str]]:
        """Pairs of roles in the same group; also stores the priorities of the roles."""
        found: set[tuple[str, str]] = set()
        for group in groups:
            if len(group) == 1:
                found.add((group[0], group[0]))
            else:
                found.update((a, b) for a in group for b in group if a != b)
            for role in group:
                self.priority[role] = max(self.priority.get(role, 0), single if len(group) == 1 else several)
        return found

    def affinity(self, role: str, other: str) -> int:
        """1 if the roles have affinity, -1 if they have anti-affinity, 0 otherwise or for both."""
        return ((role, other) in self._affinity_pairs) - ((role, other) in self._anti_affinity_pairs)

    def importance(self, task: Task) -> tuple[int, int]:
        """Sort key of tasks in a bucket: the user's order of roles, then the priority of the role."""
        role = role_of(task)
        return self.order.get(role, 0), self.priority.get(role, 0)

    def bucket_of(self, task: Task) -> Bucket | None:
        return self._bucket_of.get(task.uid)

    # Construction

    def _build(self, tasks: list[Task]) -> None:
        roles = {role: number for number, role in enumerate(self.priority)}
        affinity_by_role = np.array([[self.affinity(role, other) for role in roles] for other in roles], dtype=np.int64)
        affinities = np.zeros((len(roles), len(tasks)), dtype=np.int64)  # of each role to each bucket
        weights = np.zeros(len(tasks))  # waiting requests of each bucket, all resources added up
        by_node: dict[str, Bucket] = {}
        for task in sorted(tasks, key=self._build_order):
            role = roles[role_of(task)]
            if task.node_name:
                bucket = by_node.get(task.node_name)
            else:
                bucket = self._best(affinities[role, : len(self.buckets)], weights)
            if bucket is None:
                bucket = Bucket(len(self.buckets))
                self.buckets.append(bucket)
                if task.node_name:
                    by_node[task.node_name] = bucket
            bucket.add(task)
            self._bucket_of[task.uid] = bucket
            self.largest = max(self.largest, len(bucket.waiting) + bucket.bound)
            affinities[:, bucket.index] += affinity_by_role[role]
            weights[bucket.index] += 0.0 if task.node_name else _weight(task.resreq)

    def _build_order(self, task: Task) -> tuple[bool, str, int, int, str]:
        if task.node_name:
            return (False, task.node_name, 0, 0, "")
        order, priority = self.importance(task)
        return (True, "", -order, -priority, task.name)

    def _best(self, affinities: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> Bucket | None:
        """The bucket with the highest affinity, the lightest one among ties; None if all are negative."""
        if not len(affinities) or (highest := affinities.max()) < 0:
            return None
        best = np.flatnonzero(affinities == highest)
        return self.buckets[int(best[weights[best].argmin()])]

    # Updates

    def bind(self, task: Task) -> None:
        """Record that the task got a node."""
        self.version += 1
        row = self._rows.get(task.node_name)
        for role, other in self._anti_affinity_pairs if row is not None else ():
            if other == role_of(task):
                self._anti_affinity_counts(role)[row] += 1
        bucket = self.bucket_of(task)
        if bucket is not None:
            bucket.bind(task)

    def affinity_counts(self, task: Task, bucket: Bucket) -> npt.NDArray[np.int64]:
        """By row: placed tasks of the bucket, minus tasks of this session with anti-affinity to the task."""
        found = -self._anti_affinity_counts(role_of(task))
        for node, count in bucket.on_node.items():
            if node in self._rows:
                found[self._rows[node]] += count
        return found

    def _anti_affinity_counts(self, role: str) -> npt.NDArray[np.int64]:
        if role not in self._anti_affinity_by_role:
            self._anti_affinity_by_role[role] = np.zeros(len(self._rows), dtype=np.int64)
        return self._anti_affinity_by_role[role]


def _weight(amounts: Amounts) -> float:
    """All resources as one number: a millicore, a MiB and one unit of any other resource count the same."""
    weight = amounts.milli_cpu + amounts.memory / 1024 / 1024
    for amount in (amounts.scalars or {}).values():
        weight += amount
    return weight
