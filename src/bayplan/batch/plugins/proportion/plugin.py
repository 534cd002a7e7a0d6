"""The `proportion` plugin: divides the cluster among queues by weight.

What a queue deserves is computed once, at open (`water_filling`). Cost: afterwards each event is one addition, and each
check is one comparison. Queues without jobs are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.amounts import Amounts, excess_amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.proportion.water_filling import QueueShareRequest, divide_by_weight
from bayplan.batch.queue_accounts.queue_limits import (
    insufficient_resources,
    is_within_limit,
    real_capability,
    record_quota_event,
    set_queue_gauges,
    total_guarantee,
    total_request,
)
from bayplan.batch.queue_accounts.queue_usage import QueueUsage, usage_by_queue
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints
from bayplan.framework.api.status import Status, error


class ProportionAccount:
    """Share request, deserved and allocated amounts of a queue."""

    __slots__ = ("_deserved_items", "_share", "allocated", "deserved", "elastic", "inqueue", "share_request")

    def __init__(self, share_request: QueueShareRequest, sums: QueueUsage) -> None:
        self.share_request = share_request
        self.allocated = sums.allocated.clone()
        self.inqueue = sums.inqueue.clone()
        self.elastic = sums.elastic
        self.set_deserved(Amounts())

    def set_deserved(self, deserved: Amounts) -> None:
        self.deserved = deserved
        self._deserved_items = [(name, deserved.get(name)) for name in deserved.names()]
        self._share: float | None = None

    @property
    def share(self) -> float:
        """The largest ratio of allocated to deserved over all resources."""
        if self._share is None:
            self._share = max([0.0, *(self.allocated.get(name) / whole for name, whole in self._deserved_items)])
        return self._share

    def allocate(self, amounts: Amounts) -> None:
        self.allocated.add(amounts)
        self._share = None

    def deallocate(self, amounts: Amounts) -> None:
        self.allocated.sub_unchecked(amounts)
        self._share = None


class ProportionPlugin:
    """Weighted fair sharing between queues."""

    name = "proportion"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments, handle: BatchHandle) -> None:
        self.arguments = arguments
        self._handle = handle

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> Self:
        return cls(arguments, handle)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        sums = usage_by_queue(self._handle, session)
        self._accounts = _make_accounts(session, sums)
        self._divide()
        self._export_gauges(sums)
        name = self.name
        session.add_queue_order_fn(name, self._order)
        session.add_reclaimable_fn(
            name, self._reclaimable, VictimHints(VictimDependence.SHRINKING, self._is_within_deserved)
        )
        session.add_overused_fn(name, self._overused)
        session.add_allocatable_fn(name, lambda queue, task: self._allocatable(queue, task.resreq))
        session.add_preemptive_fn(name, lambda queue, tasks: self._allocatable(queue, total_request(tasks)))
        session.add_job_enqueueable_fn(name, self._enqueueable)
        session.add_simulate_add_task_fn(name, self._simulate_add)
        session.add_simulate_remove_task_fn(name, self._simulate_remove)
        session.add_simulate_allocatable_fn(name, self._simulate_allocatable)
        session.add_event_handler(name, allocate=self._allocate, deallocate=self._deallocate)

    def on_session_close(self, session: Session) -> None:
        """Export gauges of what queues hold after the session."""
        for queue, account in self._accounts.items():
            set_queue_gauges(session, queue, "allocated", account.allocated)
            session.set_queue_gauge(queue, "share", account.share)

    def _divide(self) -> None:
        accounts = self._accounts.values()
        for account, deserved in zip(
            accounts,
            divide_by_weight(self._session.total_resource, [each.share_request for each in accounts]),
            strict=True,
        ):
            account.set_deserved(deserved)

    def _export_gauges(self, sums: Mapping[str, QueueUsage]) -> None:
        session, has_weights = self._session, any(account.share_request.weight for account in self._accounts.values())
        for queue in session.queues:
            usage = sums.get(queue) or QueueUsage()
            set_queue_gauges(session, queue, "allocated", usage.allocated)
            set_queue_gauges(session, queue, "request", usage.request)
            account = self._accounts.get(queue)
            if account is None:
                continue
            session.set_queue_gauge(queue, "weight", account.share_request.weight)
            if has_weights:
                set_queue_gauges(session, queue, "deserved", account.deserved)
                session.set_queue_gauge(queue, "share", account.share)

    # Orders and limits

    def _order(self, left: Queue, right: Queue) -> int:
        if left.priority != right.priority:
            return right.priority - left.priority
        left_account, right_account = self._accounts.get(left.name), self._accounts.get(right.name)
        if left_account is None or right_account is None:
            return 0
        return (left_account.share > right_account.share) - (left_account.share < right_account.share)

    def _overused(self, queue: Queue) -> bool:
        account = self._accounts.get(queue.name)
        if account is None:
            return False
        overused = account.deserved.less_equal(account.allocated)
        self._session.set_queue_gauge(queue.name, "overused", float(overused))
        return overused

    def _allocatable(self, queue: Queue, requested: Amounts) -> bool:
        account = self._accounts.get(queue.name)
        return account is not None and queue.is_open and is_within_limit(account.deserved, account.allocated, requested)

    def _reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        """Tasks of queues that exceed their deserved amount of a resource, until their queue no longer does."""
        remaining: dict[str, Amounts] = {}
        victims = []
        for task in candidates:
            job = self._session.jobs.get(task.job)
            account = self._accounts.get(job.queue) if job is not None else None
            if job is None or account is None:
                continue
            allocated = remaining.setdefault(job.queue, account.allocated)
            if not allocated.less_equal(account.deserved):
                remaining[job.queue] = allocated.clone().sub(task.resreq)
                victims.append(task)
        return victims

    def _is_within_deserved(self, evictor: Job, task: Task) -> bool:  # noqa: ARG002
        """Whether the task's queue is within its deserved amount; what it holds only shrinks during reclaim."""
        account = self._account_of(task)
        return account is None or account.allocated.less_equal(account.deserved)

    def _enqueueable(self, job: Job) -> Vote:
        account = self._accounts[job.queue]
        if not self._session.queues[job.queue].is_open:
            return Vote.REJECT
        if job.min_resources_given is None:
            return Vote.PERMIT
        wanted = job.min_resources()
        names = insufficient_resources(
            account.share_request.limit, wanted, account.allocated, account.inqueue, account.elastic
        )
        if not names:
            account.inqueue.add(job.deduct_gated(wanted))
            return Vote.PERMIT
        record_quota_event(self._session, job, names)
        return Vote.REJECT

    # Events

    def _account_of(self, task: Task) -> ProportionAccount | None:
        job = self._session.jobs.get(task.job)
        return None if job is None else self._accounts.get(job.queue)

    def _allocate(self, task: Task) -> None:
        account = self._account_of(task)
        if account is not None:
            account.allocate(task.resreq)

    def _deallocate(self, task: Task) -> None:
        account = self._account_of(task)
        if account is not None:
            account.deallocate(task.resreq)

    # Simulation

    def _simulated_amounts(self, simulation: Simulation, queue: str) -> Amounts:
        """The simulated allocated amounts of a queue, created on first use."""
        usage: dict[str, Amounts] = simulation.state.setdefault(self.name, {})
        if queue not in usage:
            usage[queue] = self._accounts[queue].allocated.clone()
        return usage[queue]

    def _simulate_add(self, simulation: Simulation, task: Task) -> Status | None:
        if self._account_of(task) is None:
            return error(f"[{self.name}] job {task.job} not found in session (orphaned task from deleted PodGroup)")
        self._simulated_amounts(simulation, self._session.jobs[task.job].queue).add(task.resreq)
        return None

    def _simulate_remove(self, simulation: Simulation, task: Task) -> Status | None:
        if self._account_of(task) is None:
            return error(f"[{self.name}] job {task.job} not found in session (orphaned task from deleted PodGroup)")
        self._simulated_amounts(simulation, self._session.jobs[task.job].queue).sub_unchecked(task.resreq)
        return None

    def _simulate_allocatable(self, simulation: Simulation, queue: Queue) -> bool:
        account = self._accounts.get(queue.name)
        if account is None:
            return False
        return is_within_limit(
            account.deserved, self._simulated_amounts(simulation, queue.name), simulation.task.resreq
        )


def _make_accounts(session: Session, sums: Mapping[str, QueueUsage]) -> dict[str, ProportionAccount]:
    spare = excess_amounts(session.total_resource, total_guarantee(session.queues.values()))
    accounts = {}
    for name, usage in sums.items():
        queue = session.queues[name]
        share_request = QueueShareRequest(queue.weight, usage.request, real_capability(queue, spare), queue.guarantee)
        accounts[name] = ProportionAccount(share_request, usage)
    return accounts
