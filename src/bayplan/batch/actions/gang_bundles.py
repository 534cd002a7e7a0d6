"""Which tasks of other jobs go together when room is made for a gang, and which of them first?

Asked by `gangpreempt` and `gangreclaim`, a domain at a time. What a job has above its minimum is one bundle, safe to
take; the rest is another, and taking it ends the gang. A bundle goes as a whole, also where less would do.
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
    """Safe ones go first."""

    SAFE = 0
    WHOLE = 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """Tasks of one job that go together."""

    kind: BundleKind
    job: Job
    tasks: list[Task]
    freed_amounts: Amounts
    lost_amounts: Amounts  # what the job loses by it: nothing, or all that it is

    def restricted_to(self, allowed: Collection[str]) -> Bundle | None:
        """What is left of it when only these tasks may go; a whole bundle is there completely or not at all."""
        kept = [task for task in self.tasks if task.uid in allowed]
        if len(kept) == len(self.tasks):
            return self
        if not kept or self.kind is BundleKind.WHOLE:
            return None
        return replace(self, tasks=kept, freed_amounts=total_request_of(kept))

    def value_for(self, need: Amounts) -> float:
        """How much of the need it covers for what the job loses."""
        costs = _covered_share(self.lost_amounts, need, math.inf)
        return math.inf if costs == 0 else _covered_share(self.freed_amounts, need, 1.0) / costs


def total_request_of(tasks: Iterable[Task]) -> Amounts:
    total = Amounts()
    for task in tasks:
        total.add(task.resreq)
    return total


def _covered_share(amounts: Amounts, need: Amounts, most: float) -> float:
    return sum(min(amounts.get(name) / need.get(name), most) for name in need.names())


# making them


def make_bundles(job: Job, candidates: Sequence[Task]) -> list[Bundle]:
    """The candidates of one job as bundles: the least important are taken first, as long as nothing breaks."""
    tasks = sorted(candidates, key=lambda task: (task.priority, task.uid))
    if not tasks:
        return []
    if job.ready_task_num < job.min_available:  # it is broken already
        return [_bundle(BundleKind.SAFE, job, tasks)]
    surplus = _SurplusTasks(job)
    parts: dict[BundleKind, list[Task]] = {BundleKind.SAFE: [], BundleKind.WHOLE: []}
    for task in tasks:
        parts[BundleKind.SAFE if surplus.take_if_surplus(task) else BundleKind.WHOLE].append(task)
    return [_bundle(kind, job, part) for kind, part in parts.items() if part]


def _bundle(kind: BundleKind, job: Job, tasks: list[Task]) -> Bundle:
    costs = Amounts() if kind is BundleKind.SAFE else job.total_request
    return Bundle(kind, job, tasks, total_request_of(tasks), costs)


class _SurplusTasks:
    """What a job has more than it needs: tasks, tasks of each role, sub-jobs of each group."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tasks = job.ready_task_num - job.min_available
        self._roles = {
            role: job.role_count(role, _READY_STATUSES, best_effort=True) - least
            for role, least in (job.task_min_available.items() if job.checks_task_min_available else ())
        }
        self._broken: set[str] = set()  # sub-jobs that no longer count
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
        """Whether the task can go without harm; if so it is gone from here on."""
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


# choosing among them


def sort_bundles(bundles: Sequence[Bundle], need: Amounts, prefer: Callable[[Bundle, Bundle], int]) -> list[Bundle]:
    """Safe ones first, then as `prefer` says (negative: the left first), then the better worth."""
    worths = {id(bundle): bundle.value_for(need) for bundle in bundles}

    def compare(left: Bundle, right: Bundle) -> int:
        if left.kind is not right.kind:
            return left.kind - right.kind
        preferred = prefer(left, right)
        if preferred:
            return preferred
        gain = worths[id(left)], worths[id(right)]
        if gain[0] != gain[1]:
            return -1 if gain[0] > gain[1] else 1
        one, other = _tie_break_key(left), _tie_break_key(right)
        return (one > other) - (one < other)

    return sorted(bundles, key=cmp_to_key(compare))


def _tie_break_key(bundle: Bundle) -> tuple[str, str, int]:
    return bundle.job.uid, bundle.tasks[0].uid, len(bundle.tasks)
