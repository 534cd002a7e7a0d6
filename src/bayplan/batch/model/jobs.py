"""Job: a pod group with its tasks.

Answers whether a job is valid, ready or starving, what it holds and why it waits. A job lives as long as its pod group.
The cluster state changes it when pods come and go. A session changes task statuses (`set_status`) and restores them
when it closes. Every status change updates counters and sums, so queries cost the same for 10 tasks and for 10,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from bayplan.batch.model.amounts import Amounts, excess_amounts
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.statuses import IS_HOLDING, READY, VALID, TaskStatus
from bayplan.batch.model.sub_jobs import (
    ResolvedNetworkTopology,
    SubJob,
    TaskSet,
    TaskStatusIndex,
    group_id,
    match_values,
    sub_job_id,
)
from bayplan.batch.model.tasks import EARLIEST_TIME, PREEMPTABLE, Task, parse_bool, revocable_zone
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import PodGroup, PodGroupCondition

SLA_WAITING_TIME = "volcano.sh/sla-waiting-time"
OLD_SLA_WAITING_TIME = "sla-waiting-time"
JDB_MIN_AVAILABLE = "volcano.sh/jdb-min-available"
JDB_MAX_UNAVAILABLE = "volcano.sh/jdb-max-unavailable"

PENDING_PHASE, INQUEUE_PHASE, RUNNING_PHASE = "Pending", "Inqueue", "Running"
UNKNOWN_PHASE, COMPLETED_PHASE = "Unknown", "Completed"
_READY_STATUSES = tuple(READY)
_READY_OR_PIPELINED_STATUSES = (*_READY_STATUSES, TaskStatus.PIPELINED)
_VALID_STATUSES = tuple(VALID)


class Job(TaskSet):
    """One pod group with its tasks."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.namespace, _, self.name = uid.partition("/")
        self.status_index = TaskStatusIndex()
        self.revision = 0  # changes whenever tasks, their statuses or the group change
        self.roles: dict[str, list[int]] = {}  # by role: the number of tasks in each status
        self.role_best_effort: dict[str, int] = {}  # by role: the number of pending tasks without requests
        self.allocated = Amounts()
        self.total_request = Amounts()
        self.priority = 0
        self.allocated_hyper_node = ""
        self.saved_hyper_node = ""  # the hypernode of earlier sessions
        self.sub_hyper_nodes: dict[str, str] = {}  # by sub-job: its hypernode, kept between sessions
        self.fit_error = ""
        self.nodes_fit_errors: dict[str, FitErrors] = {}  # by task; written by `record_fit_errors`
        self._failed_roles: dict[str, set[str]] = {}  # by sub-job
        self.gated_task_num = 0
        self.network_topology: ResolvedNetworkTopology | None = None
        self.schedule_start: datetime | None = None
        self._sub_jobs: dict[str, SubJob] | None = None
        self._sub_job_of: dict[str, SubJob] = {}
        self.pod_group: PodGroup = PodGroup()
        self.has_group = False
        self._read_group()

    # Pod group

    def set_group(self, group: PodGroup) -> None:
        """Set the first or a newer version of the pod group."""
        self.pod_group = group
        self.has_group = True
        self._read_group()
        self._sub_jobs = None

    def unset_group(self) -> None:
        self.pod_group = PodGroup()
        self.has_group = False
        self._read_group()
        self._sub_jobs = None

    def _read_group(self) -> None:
        self.revision += 1
        self._min_resources: Amounts | None = None
        group = self.pod_group
        spec, annotations = group.spec, group.metadata.annotations
        self.queue: str = spec.queue
        self.min_available: int = spec.min_member
        self.task_min_available: Mapping[str, int] = spec.min_task_member
        self.task_min_available_total = sum(spec.min_task_member.values())
        self.min_sub_jobs: dict[str, int] = {
            group_id(self.uid, policy): policy.min_sub_groups or 0 for policy in spec.sub_group_policy
        }
        self.created: datetime = group.metadata.creation_timestamp or EARLIEST_TIME
        self.preemptable: bool = _group_preemptable(group)
        self.revocable_zone: str = revocable_zone(annotations)
        self.waiting_time_s: float | None = _waiting_time_s(annotations)
        self.budget_min_available: str = annotations.get(JDB_MIN_AVAILABLE, "")
        self.budget_max_unavailable: str = (
            "" if JDB_MIN_AVAILABLE in annotations else annotations.get(JDB_MAX_UNAVAILABLE, "")
        )
        self.reset_for_session()

    def reset_for_session(self) -> None:
        """Reset the values that a session can change to those of the pod group."""
        group = self.pod_group
        status, spec = group.status, group.spec
        self.phase: str = status.phase
        self.conditions: list[PodGroupCondition] = [*status.conditions]
        self.fit_error = ""
        if self.nodes_fit_errors or self._failed_roles:
            self.reset_fit_errors()
        self.network_topology = None
        if spec.network_topology is not None or spec.sub_group_policy:
            self.network_topology = ResolvedNetworkTopology.from_spec(spec.network_topology)
            self._sub_jobs = None

    @property
    def has_topology_specs(self) -> bool:
        spec = self.pod_group.spec
        return spec.network_topology is not None or bool(spec.sub_group_policy)

    @property
    def min_resources_given(self) -> ResourceList | None:
        return self.pod_group.spec.min_resources

    def min_resources(self) -> Amounts:
        """A copy of the resources that the group needs to start; empty when the group declares none."""
        if self._min_resources is None:
            self._min_resources = Amounts.of(self.pod_group.spec.min_resources or {})
        return self._min_resources.clone()

    def is_pending(self) -> bool:
        """Whether the group waits for admission into its queue."""
        return not self.has_group or self.phase in ("", PENDING_PHASE)

    # Tasks

    def add_task(self, task: Task) -> None:
        self.revision += 1
        self.status_index.add(task)
        self._count(task, task.status, 1)
        self.total_request.add(task.resreq)
        self.gated_task_num += task.gated
        if IS_HOLDING[task.status]:
            self.allocated.add(task.resreq)
        self._sub_jobs = None

    def remove_task(self, task: Task) -> None:
        self.revision += 1
        self.status_index.remove(task)
        self._count(task, task.status, -1)
        self.total_request.sub_unchecked(task.resreq)
        self.gated_task_num -= task.gated
        if IS_HOLDING[task.status]:
            self.allocated.sub_unchecked(task.resreq)
        self._sub_jobs = None

    def set_status(self, task: Task, status: TaskStatus) -> None:
        before = task.status
        if before is status:
            return
        self.revision += 1
        task.status = status
        self.status_index.move(task, before)
        self._count(task, before, -1)
        self._count(task, status, 1)
        if IS_HOLDING[before] != IS_HOLDING[status]:
            if IS_HOLDING[status]:
                self.allocated.add(task.resreq)
            else:
                self.allocated.sub_unchecked(task.resreq)
        if self._sub_jobs is not None and (sub := self._sub_job_of.get(task.uid)) is not None:
            sub.status_index.move(task, before)

    def _count(self, task: Task, status: TaskStatus, by: int) -> None:
        counts = self.roles.get(task.role)
        if counts is None:
            counts = self.roles[task.role] = [0] * len(TaskStatus)
        counts[status] += by
        if task.best_effort and status is TaskStatus.PENDING:
            self.role_best_effort[task.role] = self.role_best_effort.get(task.role, 0) + by

    # Sub-jobs

    @property
    def sub_jobs(self) -> dict[str, SubJob]:
        if self._sub_jobs is None:
            self._sub_jobs = self._create_sub_jobs()
        return self._sub_jobs

    @property
    def default_sub_job(self) -> SubJob | None:
        return self.sub_jobs.get(self.uid)

    def sub_job_of(self, task: Task) -> SubJob | None:
        subs = self.sub_jobs
        return self._sub_job_of.get(task.uid) or subs.get(self.uid)

    @property
    def has_sub_job_policy(self) -> bool:
        return bool(self.pod_group.spec.sub_group_policy)

    def _create_sub_jobs(self) -> dict[str, SubJob]:
        self._sub_job_of = {}
        sub_jobs: dict[str, SubJob] = {}
        if not self.has_sub_job_policy:
            if self.tasks:
                sub_jobs[self.uid] = self._default(self.min_available)
                sub_jobs[self.uid].status_index = self.status_index  # the same tasks, so the same indexes
                sub_jobs[self.uid].priority = max(0, *(task.priority for task in self.tasks.values()))
        else:
            for task in self.tasks.values():
                sub = self._sub_job_for(task, sub_jobs)
                sub.add(task)
                self._sub_job_of[task.uid] = sub
        for uid, sub in sub_jobs.items():
            sub.allocated_hyper_node = self.sub_hyper_nodes.get(uid, "")
        return sub_jobs

    def _sub_job_for(self, task: Task, sub_jobs: dict[str, SubJob]) -> SubJob:
        for policy in self.pod_group.spec.sub_group_policy:
            values = match_values(policy, task.pod)
            if values:
                uid = sub_job_id(self.uid, policy, values)
                if uid not in sub_jobs:
                    sub_jobs[uid] = SubJob.of_policy(self.uid, policy, values)
                return sub_jobs[uid]
        if self.uid not in sub_jobs:
            sub_jobs[self.uid] = self._default(1)
        return sub_jobs[self.uid]

    def _default(self, min_available: int) -> SubJob:
        topology = ResolvedNetworkTopology.from_spec(self.pod_group.spec.network_topology)
        return SubJob(self.uid, self.uid, self.uid, min_available, topology)

    # Network topology

    @property
    def hard_tier(self) -> int | None:
        return None if self.network_topology is None else self.network_topology.hard_tier()

    def contains_hard_topology(self) -> bool:
        if not self.has_topology_specs:
            return False
        return self.hard_tier is not None or any(sub.hard_tier is not None for sub in self.sub_jobs.values())

    def contains_network_topology(self) -> bool:
        if not self.has_topology_specs:
            return False
        return self.network_topology is not None or any(
            sub.network_topology is not None for sub in self.sub_jobs.values()
        )

    # Gangs

    @property
    def valid_task_num(self) -> int:
        return self.count(*_VALID_STATUSES)

    @property
    def checks_task_min_available(self) -> bool:
        """Whether the minimum of each role is checked: only when the job's minimum is at least their sum."""
        return self.min_available >= self.task_min_available_total

    def check_task_valid(self) -> bool:
        return self._roles_meet_min_available(_VALID_STATUSES, zero_counts=False)

    def check_task_ready(self) -> bool:
        return self._roles_meet_min_available(_READY_STATUSES, best_effort=True)

    def check_task_pipelined(self) -> bool:
        return self._roles_meet_min_available(_READY_OR_PIPELINED_STATUSES, best_effort=True)

    def _roles_meet_min_available(
        self, statuses: tuple[TaskStatus, ...], *, best_effort: bool = False, zero_counts: bool = True
    ) -> bool:
        if not self.task_min_available or not self.checks_task_min_available:
            return True
        for role, least in self.task_min_available.items():
            if least == 0 and not zero_counts:
                continue
            if self.role_count(role, statuses, best_effort=best_effort) < least:
                return False
        return True

    def role_count(self, role: str, statuses: tuple[TaskStatus, ...], *, best_effort: bool = False) -> int:
        counts = self.roles.get(role)
        found = 0 if counts is None else sum(counts[status] for status in statuses)
        return found + (self.role_best_effort.get(role, 0) if best_effort else 0)

    def check_sub_job_valid(self) -> bool:
        return self._groups_meet_min_sub_jobs(lambda _: True)

    def check_sub_job_ready(self) -> bool:
        return self._groups_meet_min_sub_jobs(SubJob.is_ready)

    def check_sub_job_pipelined(self) -> bool:
        return self._groups_meet_min_sub_jobs(SubJob.is_pipelined)

    def _groups_meet_min_sub_jobs(self, counts: Callable[[SubJob], bool]) -> bool:
        if not self.min_sub_jobs:
            return True
        found = dict.fromkeys(self.min_sub_jobs, 0)
        for sub in self.sub_jobs.values():
            if sub.gid in found and counts(sub):
                found[sub.gid] += 1
        return all(found[gid] >= least for gid, least in self.min_sub_jobs.items())

    # Failures

    def record_fit_errors(self, task: Task, errors: FitErrors) -> None:
        self.nodes_fit_errors[task.uid] = errors
        sub_job = self.sub_job_of(task)
        if sub_job is not None:
            self._failed_roles.setdefault(sub_job.uid, set()).add(task.role)

    def failed_roles(self, sub_job: SubJob) -> set[str]:
        return self._failed_roles.get(sub_job.uid, set())

    def task_has_fit_errors(self, sub_job: SubJob, task: Task) -> bool:
        """Whether a task of the same role already failed, so that this one is skipped."""
        return bool(task.role) and task.role in self.failed_roles(sub_job)

    def needs_continue_allocating(self, sub_job: SubJob) -> bool:
        """Whether the gang can still become ready after one task found no node."""
        if self.min_available == len(self.tasks) or sub_job.min_available >= len(sub_job.tasks):
            return False
        if self.has_sub_job_policy:
            return True
        failed = self.failed_roles(sub_job)
        if not self.checks_task_min_available:
            left = sum(1 for task in self.pending.values() if task.role not in failed)
            return self.ready_task_num + left >= self.min_available
        return all(
            self.role_count(role, _READY_STATUSES, best_effort=True) >= least
            for role in failed
            if (least := self.task_min_available.get(role, 0))
        )

    @property
    def fit_failures(self) -> tuple[str, dict[str, FitErrors], dict[str, set[str]]]:
        """All recorded failures. Assign it to restore them after a trial."""
        return self.fit_error, self.nodes_fit_errors, self._failed_roles

    @fit_failures.setter
    def fit_failures(self, failures: tuple[str, dict[str, FitErrors], dict[str, set[str]]]) -> None:
        self.fit_error, self.nodes_fit_errors, self._failed_roles = failures

    def reset_fit_errors(self, sub_job: SubJob | None = None) -> None:
        """Forget the failures of one sub-job or of all."""
        if sub_job is None:
            self.fit_error = ""
            self.nodes_fit_errors = {}
            self._failed_roles = {}
        else:
            remaining = {uid: errors for uid, errors in self.nodes_fit_errors.items() if uid not in sub_job.tasks}
            self.nodes_fit_errors = remaining
            self._failed_roles.pop(sub_job.uid, None)

    # Amounts

    def elastic_resources(self) -> Amounts:
        """The resources that the job holds beyond its minimum."""
        return excess_amounts(self.allocated, self.min_resources())

    def gated_resources(self) -> Amounts:
        """The total request of tasks with a scheduling gate other than Volcano's own."""
        total = Amounts()
        for task in self.tasks.values() if self.gated_task_num else ():
            if task.gated and not task.has_only_queue_gate:
                total.add(task.resreq)
        return total

    def deduct_gated(self, amounts: Amounts) -> Amounts:
        """The amounts minus the requests of gated tasks, never below zero."""
        gated = self.gated_resources()
        if gated.is_empty():
            return amounts
        found = amounts.clone()
        found.milli_cpu = max(found.milli_cpu - gated.milli_cpu, 0.0)
        found.memory = max(found.memory - gated.memory, 0.0)
        gated_scalars = gated.scalars or {}
        for name, amount in (amounts.scalars or {}).items():
            if name in gated_scalars:
                found.set_scalar(name, max(amount - gated_scalars[name], 0.0))
        return found

    def __repr__(self) -> str:
        return f"Job({self.uid})"


def _group_preemptable(group: PodGroup) -> bool:
    """Whether the group declares itself preemptable. Default: no."""
    meta = group.metadata
    text = meta.annotations.get(PREEMPTABLE, meta.labels.get(PREEMPTABLE))
    return text is not None and parse_bool(text)


def _waiting_time_s(annotations: Mapping[str, str]) -> float | None:
    for key in (SLA_WAITING_TIME, OLD_SLA_WAITING_TIME):
        if key not in annotations:
            continue
        try:
            seconds = parse_duration(annotations[key]).seconds
        except DurationError:
            continue
        if seconds > 0:
            return seconds
    return None
