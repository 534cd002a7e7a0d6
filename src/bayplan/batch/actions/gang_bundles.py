"""Bundles: the tasks of a victim job that are evicted together for a gang, and the order of bundles.

Called by `gangpreempt` and `gangreclaim`, once per domain. The tasks of a job above its minimum form one safe bundle.
The other tasks form a whole bundle; evicting it breaks the gang. A bundle is evicted completely, also if fewer tasks
would suffice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cmp_to_key

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.statuses import READY
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task

_READY_STATUSES = tuple(READY)


class BundleKind(IntEnum):
    """Kinds of bundles, in eviction order: safe bundles go first."""

    SAFE = 0
    WHOLE = 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """Tasks of one job that are evicted together."""

    kind: BundleKind
    job: Job
    tasks: list[Task]
    freed_amounts: Amounts
    lost_amounts: Amounts  # what the job loses: nothing for a safe bundle, its total request for a whole one

    def restricted_to(self, allowed: Collection[str]) -> Bundle | None:
        """Return the bundle without the tasks that are not allowed. A whole bundle stays complete or becomes None."""
        remaining = [task for task in self.tasks if task.uid in allowed]
        if len(remaining) == len(self.tasks):
            return self
        if not remaining or self.kind is BundleKind.WHOLE:
            return None
        return replace(self, tasks=remaining, freed_amounts=total_request_of(remaining))

    def value_for(self, need: Amounts) -> float:
        """Volcano's ROI: the share of the need that the bundle frees, divided by the share that the job loses."""
        costs = _covered_share(self.lost_amounts, need, math.inf)
        return math.inf if costs == 0 else _covered_share(self.freed_amounts, need, 1.0) / costs


def total_request_of(tasks: Iterable[Task]) -> Amounts:
    total = Amounts()
    for task in tasks:
        total.add(task.resreq)
    return total


def _covered_share(amounts: Amounts, need: Amounts, most: float) -> float:
    return sum(min(amounts.get(name) / need.get(name), most) for name in need.names())


def make_bundles(job: Job, candidates: Sequence[Task]) -> list[Bundle]:
    """Split the candidates of one job into bundles. Lower priorities are checked for surplus first."""
    tasks = sorted(candidates, key=lambda task: (task.priority, task.uid))
    if not tasks:
        return []
    if job.ready_task_num < job.min_available:  # the gang is broken already
        return [_bundle(BundleKind.SAFE, job, tasks)]
    surplus = _SurplusTasks(job)
    tasks_by_kind: dict[BundleKind, list[Task]] = {BundleKind.SAFE: [], BundleKind.WHOLE: []}
    for task in tasks:
        tasks_by_kind[BundleKind.SAFE if surplus.take_if_surplus(task) else BundleKind.WHOLE].append(task)
    return [_bundle(kind, job, members) for kind, members in tasks_by_kind.items() if members]


def _bundle(kind: BundleKind, job: Job, tasks: list[Task]) -> Bundle:
    costs = Amounts() if kind is BundleKind.SAFE else job.total_request
    return Bundle(kind, job, tasks, total_request_of(tasks), costs)


class _SurplusTasks:
    """Counts what a job has above its minimum: tasks, tasks of each role, ready sub-jobs of each group."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tasks = job.ready_task_num - job.min_available
        self._roles = {
            role: job.role_count(role, _READY_STATUSES, best_effort=True) - least
            for role, least in (job.task_min_available.items() if job.checks_task_min_available else ())
        }
        self._broken: set[str] = set()  # sub-jobs that are not ready, or no longer
        self._groups: Counter[str] = Counter()
        if job.min_sub_jobs:
            self._count_groups()

    def _count_groups(self) -> None:
        for sub_job in self._job.sub_jobs.values():
            if sub_job.is_ready():
                self._groups[sub_job.gid] += 1
            else:
                self._broken.add(sub_job.uid)
        self._groups.subtract(self._job.min_sub_jobs)

    def take_if_surplus(self, task: Task) -> bool:
        """True if the job keeps its minimum without the task; the task is then subtracted from the counters."""
        sub_job = self._job.sub_job_of(task) if self._job.min_sub_jobs else None
        if self._tasks <= 0 or self._roles.get(task.role, 1) <= 0 or not self._group_spares(sub_job):
            return False
        self._tasks -= 1
        if task.role in self._roles:
            self._roles[task.role] -= 1
        if sub_job is not None and sub_job.uid not in self._broken:
            self._broken.add(sub_job.uid)
            self._groups[sub_job.gid] -= 1
        return True

    def _group_spares(self, sub_job: SubJob | None) -> bool:
        return sub_job is None or sub_job.uid in self._broken or self._groups[sub_job.gid] > 0


def sort_bundles(bundles: Sequence[Bundle], need: Amounts, prefer: Callable[[Bundle, Bundle], int]) -> list[Bundle]:
    """Sort safe bundles first, then by `prefer` (negative: left first), then by value, highest first."""
    values = {id(bundle): bundle.value_for(need) for bundle in bundles}

    def compare(left: Bundle, right: Bundle) -> int:
        if left.kind is not right.kind:
            return left.kind - right.kind
        preferred = prefer(left, right)
        if preferred:
            return preferred
        value = values[id(left)], values[id(right)]
        if value[0] != value[1]:
            return -1 if value[0] > value[1] else 1
        left_key, right_key = _tie_break_key(left), _tie_break_key(right)
        return (left_key > right_key) - (left_key < right_key)

    return sorted(bundles, key=cmp_to_key(compare))


def _tie_break_key(bundle: Bundle) -> tuple[str, str, int]:
    return bundle.job.uid, bundle.tasks[0].uid, len(bundle.tasks)
