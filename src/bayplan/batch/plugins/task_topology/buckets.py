"""Which tasks of a job should share a node? Buckets of tasks, built from what the job's annotations say of its roles.

`task-topology` builds the buckets of a job when a session opens and follows them as tasks are placed. A bucket holds
tasks whose roles want to be together; its tasks should all find room on one node.
Cost: a few array operations a task.
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
    """What a job says about its roles cannot be followed."""


def role_of(task: Task) -> str:
    """The role as this plugin reads it: from the annotation alone."""
    return task.pod.metadata.annotations.get(TASK_SPEC, "")


@dataclass(frozen=True, slots=True)
class TaskTopologySpec:
    """What annotations say of roles: those of one group want to be together, or apart; a group of one means itself."""

    affinity: tuple[tuple[str, ...], ...] = ()
    anti_affinity: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job) -> TaskTopologySpec | None:
        """None for a job that says nothing."""
        notes = job.pod_group.metadata.annotations
        if not notes.keys() & {AFFINITY, ANTI_AFFINITY, TASK_ORDER}:
            return None
        roles = {task.role for task in job.tasks.values()}
        together = _groups(notes, AFFINITY, roles)
        apart = _groups(notes, ANTI_AFFINITY, roles)
        order = _group(notes[TASK_ORDER], TASK_ORDER, roles) if TASK_ORDER in notes else ()
        return cls(together, apart, order)


def _groups(notes: Mapping[str, str], key: str, roles: set[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(_group(text, key, roles) for text in notes[key].split(";")) if key in notes else ()


def _group(text: str, key: str, roles: set[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name, count in Counter(filter(None, names)).items():
        if name not in roles:
            raise TaskTopologyError(f"{key} names the role {name}, of which the job has no task")
        if count > 1:
            raise TaskTopologyError(f"{key} names the role {name} twice in one group")
    return names


class Bucket:
    """Tasks that should be together: those still waiting, and how many are on which node."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.waiting: dict[str, Task] = {}
        self.request = Amounts()  # of those waiting
        self.bound = 0
        self.on_node: Counter[str] = Counter()
        self._asked: npt.NDArray[np.float64] | None = None  # a line for each who waited when it was made
        self._lines: dict[str, int] = {}  # of it, by task
        self._waiting_mask = np.zeros(0, dtype=np.bool_)  # lines of those who wait still

    def add(self, task: Task) -> None:
        if task.node_name:
            self._count(task)
        else:
            self.waiting[task.uid] = task
            self.request.add(task.resreq)

    def bind(self, task: Task) -> None:
        """The task got a node in this session. Upstream takes nothing back when it loses it again."""
        self._count(task)
        if self.waiting.pop(task.uid, None) is not None and self._asked is not None:
            self._waiting_mask[self._lines[task.uid]] = False
        self.request.sub_unchecked(task.resreq)

    def _count(self, task: Task) -> None:
        self.on_node[task.node_name] += 1
        self.bound += 1

    @property
    def resources(self) -> tuple[str, ...]:
        return (CPU, MEMORY, *(self.request.scalars or {}))

    def remaining_requests(self, task: Task) -> npt.NDArray[np.float64]:
        """What waits, with all who do, and less one of the others after each other; a column a resource."""
        resources = self.resources
        if self._asked is None:
            self._lines = {uid: line for line, uid in enumerate(self.waiting)}
            asked = [[each.resreq.get(name) for name in resources] for each in self.waiting.values()]
            self._asked = np.array(asked, dtype=np.float64).reshape(-1, len(resources))
            self._waiting_mask = np.ones(len(asked), dtype=np.bool_)
        others = self._waiting_mask.copy()
        if task.uid in self._lines:
            others[self._lines[task.uid]] = False
        everybody = np.array([[self.request.get(name) for name in resources]])
        steps: npt.NDArray[np.float64] = np.subtract.accumulate(np.concatenate((everybody, self._asked[others])))
        return steps


class JobBuckets:
    """The buckets of one job."""

    def __init__(self, topology: TaskTopologySpec, tasks: Iterable[Task], rows: Mapping[str, int]) -> None:
        """`rows`: of the session's nodes, by name."""
        self.buckets: list[Bucket] = []
        self.largest = 0  # tasks that a bucket has had at most
        self.version = 0  # changes with every task that is placed
        self.priority: dict[str, int] = {}
        self.order = {role: len(topology.order) - place for place, role in enumerate(topology.order)}
        self._together = self._pairs(topology.affinity, INTER_PRIORITY, SELF_PRIORITY)
        self._apart = self._pairs(topology.anti_affinity, INTER_ANTI_PRIORITY, SELF_ANTI_PRIORITY)
        self._bucket_of: dict[str, Bucket] = {}
        self._rows = rows
        self._anti_affinity_by_role: dict[
            str, npt.NDArray[np.int64]
        ] = {}  # by role: tasks of this session on each row to be apart from
        self._build([task for task in tasks if role_of(task) and role_of(task) in self.priority])

    def _pairs(self, groups: Sequence[tuple[str, ...]], among: int, alone: int) -> set[tuple[str, str]]:
        """Which role is concerned with which; the priorities of the roles are noted on the way."""
        found: set[tuple[str, str]] = set()
        for group in groups:
            if len(group) == 1:
                found.add((group[0], group[0]))
            else:
                found.update((a, b) for a in group for b in group if a != b)
            for role in group:
                self.priority[role] = max(self.priority.get(role, 0), alone if len(group) == 1 else among)
        return found

    def affinity(self, role: str, other: str) -> int:
        """How much a task of one role likes a task of the other: 1, -1 or nothing."""
        return ((role, other) in self._together) - ((role, other) in self._apart)

    def importance(self, task: Task) -> tuple[int, int]:
        """Tasks of a bucket go by the order that the user gave, then by what their roles need."""
        role = role_of(task)
        return self.order.get(role, 0), self.priority.get(role, 0)

    def bucket_of(self, task: Task) -> Bucket | None:
        return self._bucket_of.get(task.uid)

    # building ---------------------------------------------------------------------------------------------------

    def _build(self, tasks: list[Task]) -> None:
        roles = {role: number for number, role in enumerate(self.priority)}
        likes = np.array([[self.affinity(role, other) for role in roles] for other in roles], dtype=np.int64)
        fondness = np.zeros((len(roles), len(tasks)), dtype=np.int64)  # of each role for each bucket
        weights = np.zeros(len(tasks))  # what waits in each bucket, all resources added up
        by_node: dict[str, Bucket] = {}
        for task in sorted(tasks, key=self._build_order):
            role = roles[role_of(task)]
            if task.node_name:
                bucket = by_node.get(task.node_name)
            else:
                bucket = self._best(fondness[role, : len(self.buckets)], weights)
            if bucket is None:
                bucket = Bucket(len(self.buckets))
                self.buckets.append(bucket)
                if task.node_name:
                    by_node[task.node_name] = bucket
            bucket.add(task)
            self._bucket_of[task.uid] = bucket
            self.largest = max(self.largest, len(bucket.waiting) + bucket.bound)
            fondness[:, bucket.index] += likes[role]
            weights[bucket.index] += 0.0 if task.node_name else _weight(task.resreq)

    def _build_order(self, task: Task) -> tuple[bool, str, int, int, str]:
        if task.node_name:
            return (False, task.node_name, 0, 0, "")
        order, priority = self.importance(task)
        return (True, "", -order, -priority, task.name)

    def _best(self, fondness: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> Bucket | None:
        """The bucket that the role likes best, of equal ones the lightest; None: it is better off alone."""
        if not len(fondness) or (most := fondness.max()) < 0:
            return None
        liked = np.flatnonzero(fondness == most)
        return self.buckets[int(liked[weights[liked].argmin()])]

    # following --------------------------------------------------------------------------------------------------

    def bind(self, task: Task) -> None:
        """The task got a node."""
        self.version += 1
        row = self._rows.get(task.node_name)
        for role, other in self._apart if row is not None else ():
            if other == role_of(task):
                self._anti_affinity_counts(role)[row] += 1
        bucket = self.bucket_of(task)
        if bucket is not None:
            bucket.bind(task)

    def affinity_counts(self, task: Task, bucket: Bucket) -> npt.NDArray[np.int64]:
        """By row: tasks of the bucket there, less those of this session that the task wants to be apart from."""
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
    """All resources as one number: a thousandth of a CPU, a MiB and one of anything else count the same."""
    weight = amounts.milli_cpu + amounts.memory / 1024 / 1024
    for amount in (amounts.scalars or {}).values():
        weight += amount
    return weight
