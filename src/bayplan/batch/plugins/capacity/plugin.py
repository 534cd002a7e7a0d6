"""The `capacity` plugin: limits queues to their capability and lets them reclaim what they deserve.

The queues specify both. With `enableHierarchy` they form a tree, in which the limits of a parent bind all descendants.
The plugin builds the accounts (`capacity.accounts`) at open. Cost: each event updates one account and its ancestors;
each check compares amounts along the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.devices.claimed_devices import ClaimedDeviceRequests
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import HOLDING
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.capacity.accounts import (
    CapacityAccount,
    QueueTreeError,
    common_depth,
    flat_accounts,
    tree_accounts,
)
from bayplan.batch.plugins.capacity.admitted_pods import AdmittedPods
from bayplan.batch.plugins.capacity.device_quotas import EXCEEDED, DeviceQuota
from bayplan.batch.plugins.capacity.victims import ReclaimVictims
from bayplan.batch.queue_accounts.queue_limits import (
    insufficient_resources,
    is_within_limit,
    record_quota_event,
    set_queue_gauges,
    total_request,
)
from bayplan.batch.queue_accounts.queue_usage import usage_by_queue
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.registration import EvictionContext, EvictionKind
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.batch.session.victim_hints import VictimHints
from bayplan.framework.api.status import Status, error
from bayplan.objects.resource import ResourceClaim

ANCESTOR_RECLAIM_LEVEL = "ancestorReclaimLevel"
DEVICES_ENABLED = "capacity.DynamicResourceAllocationEnable"
CONSUMABLE_ENABLED = "capacity.DRAConsumableCapacityEnable"


class CapacityPlugin:
    """Enforces the capability, deserved and guarantee amounts of queues."""

    name = "capacity"
    also_at: ClassVar[tuple[str, ...]] = ("victim_queue_order",)  # with enableHierarchy
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument(ANCESTOR_RECLAIM_LEVEL, int, 0),
        Argument(DEVICES_ENABLED, bool, True),
        Argument(CONSUMABLE_ENABLED, bool, False),
    )

    def __init__(self, arguments: Arguments, handle: BatchHandle) -> None:
        self.arguments = arguments
        self._handle = handle
        self._devices_enabled = arguments.get_bool(DEVICES_ENABLED, True)
        self._consumable = arguments.get_bool(CONSUMABLE_ENABLED, False)

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> Self:
        return cls(arguments, handle)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._level = self._reclaim_level()
        self._is_hierarchical = session.hierarchy_enabled(self.name)
        self._ready = True
        self._accounts: dict[str, CapacityAccount] = {}
        self._open_accounts()
        self._open_devices()
        self._admitted_pods = AdmittedPods(session.jobs.values()) if self._handle.queue_admission else None
        name = self.name
        session.add_reclaimable_fn(name, self._reclaimable, VictimHints(never_evicts=self._never_reclaims))
        session.add_unified_evictable_fn(name, self._unified_evictable)
        session.add_preemptive_fn(name, self._preemptive)
        session.add_allocatable_fn(name, self._allocatable)
        session.add_job_enqueueable_fn(name, self._enqueueable)
        session.add_simulate_add_task_fn(name, self._simulate_add)
        session.add_simulate_remove_task_fn(name, self._simulate_remove)
        session.add_simulate_allocatable_fn(name, self._simulate_allocatable)
        session.add_event_handler(name, allocate=self._allocate, deallocate=self._deallocate)

    def on_session_close(self, session: Session) -> None:
        """Export gauges: allocated amounts after the session, and whether the queue exceeds what it deserves."""
        for name, account in self._accounts.items():
            set_queue_gauges(session, name, "allocated", account.allocated)
            session.set_queue_gauge(name, "share", account.share)
            session.set_queue_gauge(name, "overused", float(account.share > 1))

    def _reclaim_level(self) -> int:
        level = self.arguments.get_int(ANCESTOR_RECLAIM_LEVEL, 0)
        if level < 0:
            self.arguments.warn(f"{ANCESTOR_RECLAIM_LEVEL} should be non-negative, got {level}; 0 is used")
        return max(level, 0)

    def _open_accounts(self) -> None:
        session = self._session
        sums = usage_by_queue(self._handle, session)
        if not self._is_hierarchical:
            self._level = 0
            self._accounts = flat_accounts(session, sums)
            session.add_queue_order_fn(self.name, self._order)
            return
        try:
            self._accounts = tree_accounts(session, sums)
        except QueueTreeError as fault:
            self._ready = False
            for each in fault.standstills:
                session.stall_queues(each)
            return
        session.add_queue_order_fn(self.name, self._tree_order)
        session.add_victim_queue_order_fn(self.name, self._victim_order)

    # Devices

    def _open_devices(self) -> None:
        """Count the devices of running tasks, if a queue limits devices."""
        self._device_requests: ClaimedDeviceRequests | None = None
        if not self._devices_enabled or all(account.devices is None for account in self._accounts.values()):
            return
        claims = self._session.catalog.table(ResourceClaim)
        self._device_requests = ClaimedDeviceRequests(claims, consumable=self._consumable)
        for job in self._session.jobs.values():
            account = self._accounts.get(job.queue)
            if account is not None:
                for task in job.with_status(*HOLDING):
                    self._hold_devices(account, task)

    def _hold_devices(self, account: CapacityAccount, task: Task) -> None:
        if self._device_requests is not None and (claims := self._device_requests.of_task(task)):
            for each in account.path:
                if each.devices is not None:
                    each.devices.allocate(claims)

    def _free_devices(self, account: CapacityAccount, task: Task) -> None:
        if self._device_requests is not None and (claims := self._device_requests.of_task(task)):
            for each in account.path:
                if each.devices is not None:
                    each.devices.deallocate(claims)

    def _devices_fit(self, quota: DeviceQuota | None, task: Task) -> bool:
        if quota is None or self._device_requests is None:
            return True
        return quota.has_room(self._device_requests.of_task(task), consumable=self._consumable)

    # Orders

    def _order(self, left: Queue, right: Queue) -> int:
        if left.priority != right.priority:
            return right.priority - left.priority
        return _compare_accounts(self._accounts.get(left.name), self._accounts.get(right.name))

    def _tree_order(self, left: Queue, right: Queue) -> int:
        if left.priority != right.priority:
            return right.priority - left.priority
        one, other = self._accounts.get(left.name), self._accounts.get(right.name)
        if one is None or other is None:
            return 0
        if one.children or other.children:
            return bool(one.children) - bool(other.children) or _compare_accounts(one, other)
        depth = common_depth(one, other) + 1
        return _compare_accounts(
            one.ancestors[depth] if depth < len(one.ancestors) else one,
            other.ancestors[depth] if depth < len(other.ancestors) else other,
        )

    def _victim_order(self, left: Queue, right: Queue, preemptor: Queue) -> int:
        """The queue with the closer common ancestor to the preemptor's queue loses tasks first."""
        left_account, right_account = self._accounts.get(left.name), self._accounts.get(right.name)
        own = self._accounts.get(preemptor.name)
        if left_account is None or right_account is None or own is None:
            return 0
        return common_depth(right_account, own) - common_depth(left_account, own)

    # Victims

    def _reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        if not self._ready:
            return []
        return ReclaimVictims(self._session, self._accounts, self._level).victims_for_task(reclaimer, candidates)

    def _never_reclaims(self, evictor: Job, task: Task) -> bool:
        """Whether the task is protected, however much less its queue holds later in the session.

        An ancestor of the evictor's queue may hold more later, so its tasks are not protected.
        """
        account, own = self._accounts.get(self._session.jobs[task.job].queue), self._accounts.get(evictor.queue)
        if not self._ready or account is None or own is None:
            return True
        if account in own.path:
            return False
        return ReclaimVictims(self._session, self._accounts, self._level).is_protected(task, account)

    def _unified_evictable(self, context: EvictionContext, candidates: Sequence[Task]) -> Sequence[Task]:
        if context.kind is EvictionKind.GANG_PREEMPT:
            return candidates
        if not self._ready:
            return []
        return ReclaimVictims(self._session, self._accounts, self._level).victims_for_gang(candidates)

    def _preemptive(self, queue: Queue, tasks: Sequence[Task]) -> bool:
        """Whether the queue, or an ancestor within the level, stays within its deserved amount of a resource."""
        account = self._accounts.get(queue.name)
        if account is None or not queue.is_open:
            return False
        requested = total_request(tasks)
        if not is_within_limit(account.limit, account.allocated, requested):
            return False
        candidates = [account, *(account.ancestor_at(level) for level in range(1, self._level + 1))]
        return any(
            each.allocated.clone().add(requested).used_names_within(each.deserved, requested)
            for each in candidates
            if each is not None and (each is account or each.ancestors)
        )

    # Limits

    def _allocatable(self, queue: Queue, task: Task) -> bool:
        account = self._accounts.get(queue.name)
        if account is None or account.children or not queue.is_open:
            return False
        fits = all(
            self._devices_fit(each.devices, task) and is_within_limit(each.limit, each.allocated, task.resreq)
            for each in account.path
        )
        if not fits or self._admitted_pods is None:
            return fits
        # As in Volcano, reservations count only in the queue itself, not in its ancestors.
        total = self._admitted_pods.added_to(account.allocated, account.name, task)
        if not is_within_limit(account.limit, total, task.resreq):
            return False
        self._admitted_pods.add(account.name, task)
        return True

    def _enqueueable(self, job: Job) -> Vote:
        account = self._accounts.get(job.queue)
        if account is None or account.children or not account.queue.is_open:
            return Vote.REJECT
        devices = self._device_requests.of_job_minimum(job) if self._device_requests is not None else {}
        if job.min_resources_given is None and not (account.devices is not None and devices):
            return Vote.PERMIT
        wanted = job.min_resources()
        for each in account.path:
            names = insufficient_resources(each.limit, wanted, each.allocated, each.inqueue, each.elastic)
            if not names and each.devices is not None and devices:
                fits = each.devices.would_admit(devices, consumable=self._consumable)
                names = [] if fits else [EXCEEDED]
            if names:
                record_quota_event(self._session, job, names)
                return Vote.REJECT
        reserved = job.deduct_gated(wanted)
        for each in account.path:
            each.inqueue.add(reserved)
            if each.devices is not None:
                each.devices.admit(devices)
        return Vote.PERMIT

    # Events

    def _account_of(self, task: Task) -> CapacityAccount | None:
        job = self._session.jobs.get(task.job)
        return None if job is None else self._accounts.get(job.queue)

    def _allocate(self, task: Task) -> None:
        account = self._account_of(task)
        if account is not None:
            account.allocate(task.resreq)
            self._hold_devices(account, task)
            if self._admitted_pods is not None:
                self._admitted_pods.remove(task)

    def _deallocate(self, task: Task) -> None:
        account = self._account_of(task)
        if account is not None:
            account.deallocate(task.resreq)
            self._free_devices(account, task)
            if self._admitted_pods is not None:
                self._admitted_pods.add(account.name, task)

    # Simulation

    def _simulated_queue(self, simulation: Simulation, account: CapacityAccount) -> _SimulatedQueue:
        """The simulated account of a queue, created on first use."""
        copies: dict[str, _SimulatedQueue] = simulation.state.setdefault(self.name, {})
        copy = copies.get(account.name)
        if copy is None:
            copy = copies[account.name] = _SimulatedQueue(account)
        return copy

    def _simulate_add(self, simulation: Simulation, task: Task) -> Status | None:
        account = self._account_of(task)
        if account is None:
            return error(f"[{self.name}] job {task.job} not found in session (orphaned task from deleted PodGroup)")
        claims = self._device_requests.of_task(task) if self._device_requests is not None else {}
        for each in account.path:
            copy = self._simulated_queue(simulation, each)
            copy.allocated.add(task.resreq)
            if copy.devices is not None:
                copy.devices.allocate(claims)
        return None

    def _simulate_remove(self, simulation: Simulation, task: Task) -> Status | None:
        account = self._account_of(task)
        if account is None:
            return error(f"[{self.name}] job {task.job} not found in session (orphaned task from deleted PodGroup)")
        claims = self._device_requests.of_task(task) if self._device_requests is not None else {}
        for each in account.path:
            copy = self._simulated_queue(simulation, each)
            copy.allocated.sub_unchecked(task.resreq)
            if copy.devices is not None:
                copy.devices.deallocate(claims)
        return None

    def _simulate_allocatable(self, simulation: Simulation, queue: Queue) -> bool:
        account = self._accounts.get(queue.name)
        if account is None or account.children:
            return False
        task = simulation.task
        for each in account.path:
            copy = self._simulated_queue(simulation, each)
            if not self._devices_fit(copy.devices, task) or not is_within_limit(
                each.limit, copy.allocated, task.resreq
            ):
                return False
        return True


class _SimulatedQueue:
    """A copy of the allocated amounts of an account, for one simulation."""

    __slots__ = ("allocated", "devices")

    def __init__(self, account: CapacityAccount) -> None:
        self.allocated = account.allocated.clone()
        self.devices = None if account.devices is None else account.devices.clone()


def _compare_accounts(left: CapacityAccount | None, right: CapacityAccount | None) -> int:
    """Smaller share first; among equal shares, a queue that deserves something first."""
    if left is None or right is None:
        return 0
    if left.share != right.share:
        return -1 if left.share < right.share else 1
    return right.has_deserved - left.has_deserved
