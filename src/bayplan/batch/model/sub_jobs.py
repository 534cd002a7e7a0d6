"""Sub-jobs of a job's sub-group policies, and the default sub-job for all other tasks.

A job without policies has one sub-job, which shares the job's indexes. `TaskStatusIndex` counts tasks by status for
both. Statements keep these counts current, so a readiness check is a few additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task, parse_int
from bayplan.objects.core import Pod
from bayplan.objects.meta import NAME_SUFFIX_ALPHABET
from bayplan.objects.selectors.label_selectors import SelectorError, compile_label_selector
from bayplan.objects.volcano.types import HARD, SOFT, NetworkTopology, SubGroupPolicy

_LONGEST_SUFFIX = 128


@dataclass(slots=True)
class ResolvedNetworkTopology:
    """A session's copy of a network topology. The session resolves tier names and makes soft mode hard."""

    mode: str
    highest_tier_allowed: int | None
    highest_tier_name: str

    @classmethod
    def from_spec(cls, spec: NetworkTopology | None) -> ResolvedNetworkTopology | None:
        if spec is None:
            return None
        return cls(spec.mode, spec.highest_tier_allowed, spec.highest_tier_name)

    def hard_tier(self) -> int | None:
        """The highest tier that the tasks may span; None when there is no such limit."""
        return self.highest_tier_allowed if self.mode == HARD else None

    def resolve_tier_name(self, tiers: dict[str, int]) -> None:
        """Replace a tier name by its number. An unknown name stays and limits nothing."""
        if self.highest_tier_allowed is None and self.highest_tier_name in tiers:
            self.highest_tier_allowed = tiers[self.highest_tier_name]
            self.highest_tier_name = ""

    def validation_error(self) -> str:
        """The error that remains after tier names are resolved; "" if valid."""
        if self.mode not in ("", HARD, SOFT):
            return f'mode is "{self.mode}", neither {HARD} nor {SOFT}'
        if self.mode == HARD and self.highest_tier_allowed is None and self.highest_tier_name:
            return f'highestTierName is "{self.highest_tier_name}", which no hypernode has'
        return ""

    def make_hard(self, tier: int) -> None:
        """Replace soft mode by hard mode with `tier`, the top tier, which every node satisfies."""
        if self.mode == SOFT:
            self.mode, self.highest_tier_allowed, self.highest_tier_name = HARD, tier, ""


class TaskStatusIndex:
    __slots__ = ("best_effort_pending", "by_status", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.by_status: list[dict[str, Task]] = [{} for _ in TaskStatus]
        self.best_effort_pending = 0

    def add(self, task: Task) -> None:
        self.tasks[task.uid] = task
        self.by_status[task.status][task.uid] = task
        if task.best_effort and task.status is TaskStatus.PENDING:
            self.best_effort_pending += 1

    def remove(self, task: Task) -> None:
        del self.tasks[task.uid]
        del self.by_status[task.status][task.uid]
        if task.best_effort and task.status is TaskStatus.PENDING:
            self.best_effort_pending -= 1

    def move(self, task: Task, before: TaskStatus) -> None:
        """Move the task from status `before` to its current status."""
        after = task.status
        by_status = self.by_status
        del by_status[before][task.uid]
        by_status[after][task.uid] = task
        if task.best_effort:
            if before is TaskStatus.PENDING:
                self.best_effort_pending -= 1
            if after is TaskStatus.PENDING:
                self.best_effort_pending += 1

    def replace(self, task: Task) -> None:
        """Replace the object of a task with the same uid and status."""
        self.tasks[task.uid] = task
        self.by_status[task.status][task.uid] = task


class TaskSet:
    """Queries shared by jobs and sub-jobs."""

    __slots__ = ("status_index",)

    status_index: TaskStatusIndex
    min_available: int

    @property
    def tasks(self) -> dict[str, Task]:
        return self.status_index.tasks

    def with_status(self, *statuses: TaskStatus) -> Iterator[Task]:
        """The tasks in these statuses. Copy them before changing statuses in the loop."""
        for status in statuses:
            yield from self.status_index.by_status[status].values()

    def count(self, *statuses: TaskStatus) -> int:
        return sum(len(self.status_index.by_status[status]) for status in statuses)

    @property
    def pending(self) -> dict[str, Task]:
        return self.status_index.by_status[TaskStatus.PENDING]

    @property
    def ready_task_num(self) -> int:
        """Number of tasks that have a node or are finished."""
        by = self.status_index.by_status
        return len(by[4]) + len(by[3]) + len(by[5]) + len(by[1]) + len(by[7])

    @property
    def waiting_task_num(self) -> int:
        return len(self.status_index.by_status[TaskStatus.PIPELINED])

    @property
    def allocated_task_num(self) -> int:
        """Tasks in one of the `HOLDING` statuses."""
        by = self.status_index.by_status
        return len(by[4]) + len(by[3]) + len(by[5]) + len(by[1])

    def is_ready(self) -> bool:
        return self.ready_task_num + self.status_index.best_effort_pending >= self.min_available

    def is_pipelined(self) -> bool:
        return self.waiting_task_num + self.ready_task_num + self.status_index.best_effort_pending >= self.min_available

    def is_starving(self) -> bool:
        return self.waiting_task_num + self.ready_task_num < self.min_available


class SubJob(TaskSet):
    """Tasks of a job that one sub-group policy groups together."""

    __slots__ = (
        "allocated_hyper_node",
        "gid",
        "job",
        "match_index",
        "min_available",
        "network_topology",
        "nominated_hyper_node",
        "priority",
        "uid",
    )

    def __init__(
        self, gid: str, uid: str, job: str, min_available: int, topology: ResolvedNetworkTopology | None
    ) -> None:
        self.gid = gid  # shared by all sub-jobs of one policy
        self.uid = uid
        self.job = job
        self.min_available = min_available
        self.network_topology = topology
        self.match_index = 0
        self.priority = 0  # the highest priority of any task added so far
        self.allocated_hyper_node = ""
        self.nominated_hyper_node = ""
        self.status_index = TaskStatusIndex()

    @classmethod
    def of_policy(cls, job: str, policy: SubGroupPolicy, values: list[str]) -> SubJob:
        size = 1 if policy.sub_group_size is None else policy.sub_group_size
        topology = ResolvedNetworkTopology.from_spec(policy.network_topology)
        sub_job = cls(group_id(job, policy), sub_job_id(job, policy, values), job, size, topology)
        sub_job.match_index = parse_int(values[0]) or 0
        return sub_job

    def add(self, task: Task) -> None:
        self.status_index.add(task)
        self.priority = max(self.priority, task.priority)

    @property
    def hard_tier(self) -> int | None:
        return None if self.network_topology is None else self.network_topology.hard_tier()

    def min_resources(self) -> Amounts:
        """The total request of the pending tasks."""
        total = Amounts()
        for task in self.pending.values():
            total.add(task.init_resreq)
        return total

    def __repr__(self) -> str:
        return f"SubJob({self.uid})"


def match_values(policy: SubGroupPolicy, pod: Pod) -> list[str]:
    """The values that assign the pod to a sub-group of this policy; empty if it matches none."""
    labels = pod.metadata.labels
    if policy.label_selector is not None:
        try:
            if not compile_label_selector(policy.label_selector).matches(labels):
                return []
        except SelectorError:
            return []
    values = [labels.get(key, "") for key in policy.match_label_keys]
    return values if all(values) else []


def group_id(job: str, policy: SubGroupPolicy) -> str:
    return f"{job}/{policy.name}"


def sub_job_id(job: str, policy: SubGroupPolicy, values: list[str]) -> str:
    suffix = "-".join(values)
    if len(suffix.encode()) > _LONGEST_SUFFIX:
        suffix = _safe_encode(str(_fnv32a(suffix.encode())))
    return f"{job}/{policy.name}-{suffix}"


def _fnv32a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _safe_encode(text: str) -> str:
    """Kubernetes' SafeEncodeString: writes a hash without letters that could form words."""
    return "".join(NAME_SUFFIX_ALPHABET[ord(letter) % len(NAME_SUFFIX_ALPHABET)] for letter in text)
