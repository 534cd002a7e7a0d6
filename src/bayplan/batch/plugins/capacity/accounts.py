"""Accounts of queues for the capacity plugin: limit, guarantee, deserved and allocated amounts, flat or as a tree.

The plugin builds them when a session opens. In a tree every queue has an account, and the account of a parent holds the
sums of its descendants. Without a tree only queues with jobs have an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.batch.model.amounts import Amounts, DimensionDefault, excess_amounts, max_amounts
from bayplan.batch.model.queues import Queue
from bayplan.batch.plugins.capacity.device_quotas import DeviceQuota
from bayplan.batch.queue_accounts.queue_limits import capability_of, real_capability, set_queue_gauges, total_guarantee
from bayplan.batch.queue_accounts.queue_usage import QueueUsage
from bayplan.batch.session.outcome import StalledQueue
from bayplan.batch.session.session import Session
from bayplan.errors import BayplanError

ROOT = "root"
_MAX_SCALAR = float(2**63 - 1)


class QueueTreeError(BayplanError):
    """The queues do not form a valid tree. As upstream, no task is then scheduled.

    The error names every faulty queue, so that the user can fix all of them at once.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.standstills = [
            StalledQueue(f"capacity: {problem}; no queue gets anything until this is fixed", (queue,))
            for queue, problem in problems.items()
        ]
        super().__init__(" ".join(each.message for each in self.standstills))


class CapacityAccount:
    """Limits and usage of one queue."""

    __slots__ = (
        "_deserved_items",
        "_share",
        "allocated",
        "ancestors",
        "capability",
        "children",
        "deserved",
        "devices",
        "elastic",
        "guarantee",
        "has_deserved",
        "inqueue",
        "limit",
        "name",
        "path",
        "queue",
        "request",
    )

    def __init__(self, queue: Queue, sums: QueueUsage | None = None) -> None:
        sums = sums or QueueUsage()
        self.queue = queue
        self.name = queue.name
        self.ancestors: tuple[CapacityAccount, ...] = ()  # from the root down
        self.path: tuple[CapacityAccount, ...] = (self,)  # from this queue up to the root
        self.children: list[CapacityAccount] = []
        self.capability = queue.capability.clone()
        self.limit = Amounts()
        self.guarantee = queue.guarantee
        self.allocated = sums.allocated.clone()
        self.request = sums.request.clone()
        self.inqueue = sums.inqueue.clone()
        self.elastic = sums.elastic.clone()
        self.devices = DeviceQuota.of(queue.queue.spec)
        self.set_deserved(queue.deserved)

    def set_deserved(self, deserved: Amounts) -> None:
        self.deserved = deserved
        self.has_deserved = not deserved.is_empty()
        self._deserved_items = [(name, deserved.get(name)) for name in deserved.names()]
        self._share: float | None = None

    @property
    def share(self) -> float:
        """The largest ratio of allocated to deserved over all resources; 1 if the queue deserves nothing."""
        if self._share is None:
            if self.has_deserved:
                self._share = max([0.0, *(self.allocated.get(name) / whole for name, whole in self._deserved_items)])
            else:
                self._share = 1.0
        return self._share

    def allocate(self, amounts: Amounts) -> None:
        """Add to this account and its ancestors. As upstream, the shares of ancestors keep their value from open."""
        self._share = None
        for account in self.path:
            account.allocated.add(amounts)

    def deallocate(self, amounts: Amounts) -> None:
        self._share = None
        for account in self.path:
            account.allocated.sub_unchecked(amounts)

    def ancestor_at(self, level: int) -> CapacityAccount | None:
        """The ancestor `level` steps up; None above the root."""
        return self.ancestors[-level] if 0 < level <= len(self.ancestors) else None


def common_depth(left: CapacityAccount, right: CapacityAccount) -> int:
    """Position of the last common ancestor of two queues in their `ancestors`; 0 without a common one."""
    depth = 0
    for position, (left_ancestor, right_ancestor) in enumerate(zip(left.ancestors, right.ancestors, strict=False)):
        if left_ancestor is not right_ancestor:
            break
        depth = position
    return depth


# Flat queues


def flat_accounts(session: Session, sums: Mapping[str, QueueUsage]) -> dict[str, CapacityAccount]:
    """Build the accounts of the queues that have jobs."""
    spare = excess_amounts(session.total_resource, total_guarantee(session.queues.values()))
    accounts = {}
    for name, usage in sums.items():
        queue = session.queues[name]
        account = accounts[name] = CapacityAccount(queue, usage)
        if queue.queue.spec.capability:
            account.capability = capability_of(queue)
        account.limit = real_capability(queue, spare)
        deserved = queue.deserved.clone().min_dimension(account.limit, DimensionDefault.INFINITY)
        account.set_deserved(max_amounts(deserved, queue.guarantee))
    for name, queue in session.queues.items():
        if name in accounts:
            export_gauges(session, accounts[name])
        else:
            _export_idle_gauges(session, queue, spare)
    return accounts


def export_gauges(session: Session, account: CapacityAccount) -> None:
    for gauge, amounts in (
        ("deserved", account.deserved),
        ("allocated", account.allocated),
        ("request", account.request),
        ("capacity", account.capability),
        ("real_capacity", account.limit),
    ):
        set_queue_gauges(session, account.name, gauge, amounts)
    session.set_queue_gauge(account.name, "share", account.share)


def _export_idle_gauges(session: Session, queue: Queue, spare: Amounts) -> None:
    """Gauges of a queue without jobs. A capability without cpu or memory counts as 0 of it here."""
    limit = spare.clone().add(queue.guarantee)
    if queue.queue.spec.capability:
        limit.min_dimension(queue.capability, DimensionDefault.INFINITY)
        set_queue_gauges(session, queue.name, "capacity", queue.capability)
    set_queue_gauges(session, queue.name, "deserved", queue.deserved)
    set_queue_gauges(session, queue.name, "allocated", Amounts())
    set_queue_gauges(session, queue.name, "request", Amounts())
    set_queue_gauges(session, queue.name, "real_capacity", limit)


# Tree of queues


def tree_accounts(session: Session, sums: Mapping[str, QueueUsage]) -> dict[str, CapacityAccount]:
    """Build the accounts of all queues below the root; raises `QueueTreeError`."""
    accounts = {name: CapacityAccount(queue, sums.get(name)) for name, queue in session.queues.items()}
    root = accounts.get(ROOT)
    if root is None:
        raise QueueTreeError({ROOT: f"there is no queue named {ROOT}; create it"})
    _check_parents_exist(accounts)
    for account in accounts.values():
        if account is not root:
            accounts[_parent_name(account)].children.append(account)
    found = {account.name: account for account in _sum_descendants(root)}
    for name in sorted(accounts.keys() - found.keys()):
        message = f"capacity: queue {name} is its own ancestor, or below one that is; it gets nothing"
        session.stall_queues(StalledQueue(message, (name,), queue=name))
    _check_jobs_in_leaf_queues([found[name] for name in sums if name in found])
    _limit_root(root, session.total_resource)
    _limit_children(root, session)
    for account in found.values():
        export_gauges(session, account)
    return found


def _parent_name(account: CapacityAccount) -> str:
    return account.queue.parent or ROOT


def _check_parents_exist(accounts: Mapping[str, CapacityAccount]) -> None:
    orphans = {
        name: f"the parent {parent} of queue {name} does not exist; create it, or give {name} another parent"
        for name, account in accounts.items()
        if name != ROOT and (parent := _parent_name(account)) not in accounts
    }
    if orphans:
        raise QueueTreeError(orphans)


def _check_jobs_in_leaf_queues(used: Iterable[CapacityAccount]) -> None:
    problems = {
        account.name: f"queue {account.name} has jobs and is the parent of {child}; "
        f"move the jobs to a queue without children, or give {child} another parent"
        for account in used
        if account.children and (child := account.children[0].name)
    }
    if problems:
        raise QueueTreeError(problems)


def _sum_descendants(root: CapacityAccount) -> list[CapacityAccount]:
    """Add the sums of children to their parents; return the queues below the root, each after its parent."""
    found = [root]
    for account in found:
        for child in account.children:
            child.ancestors = (*account.ancestors, account)
            child.path = (child, *account.path)
            found.append(child)
    for account in reversed(found[1:]):
        parent = account.ancestors[-1]
        parent.allocated.add(account.allocated)
        parent.request.add(account.request)
        parent.inqueue.add(account.inqueue)
        parent.elastic.add(account.elastic)
    return found


def _limit_root(root: CapacityAccount, total: Amounts) -> None:
    """Without a capability of its own the root is unlimited, so that jobs larger than the cluster can be Inqueue."""
    if root.capability.is_empty():
        root.capability = Amounts.unlimited()
        for name in total.scalars or {}:
            root.capability.set_scalar(name, _MAX_SCALAR)
    root.limit = root.capability


def _limit_children(parent: CapacityAccount, session: Session) -> None:
    for child in parent.children:
        child.set_deserved(max_amounts(child.deserved, child.guarantee))
        _inherit_capability(child.capability, parent.capability)
    guaranteed, deserved = Amounts(), Amounts()
    for child in parent.children:
        guaranteed.add(child.guarantee)
        deserved.add(child.deserved)
    if parent.name == ROOT:
        parent.guarantee = guaranteed
        parent.set_deserved(deserved)
    _report_overcommitted_parent(parent, guaranteed, deserved, session)
    spare = excess_amounts(parent.limit, guaranteed)
    for child in parent.children:
        child.limit = spare.clone().add(child.guarantee).min_dimension(child.capability, DimensionDefault.INFINITY)
        _limit_children(child, session)


def _inherit_capability(capability: Amounts, parent_capability: Amounts) -> None:
    """Fill the child's capability with the parent's for resources that the child does not name."""
    if capability.milli_cpu <= 0:
        capability.milli_cpu = parent_capability.milli_cpu
    if capability.memory <= 0:
        capability.memory = parent_capability.memory
    if parent_capability.scalars is not None:
        capability.scalars = {**parent_capability.scalars, **(capability.scalars or {})}


def _report_overcommitted_parent(
    parent: CapacityAccount, guaranteed: Amounts, deserved: Amounts, session: Session
) -> None:
    """Warn about parents that have less than their children; scheduling does not change."""
    for child in parent.children:
        names = child.capability.names_above(parent.capability, DimensionDefault.INFINITY)
        if names:
            session.log_plugin_message(
                "capacity", f"queue {child.name} has more capability than its parent {parent.name} for {names}"
            )
    if parent.deserved.less_partly(deserved):
        session.log_plugin_message("capacity", f"the children of queue {parent.name} deserve more than itself")
    if parent.guarantee.less_partly(guaranteed):
        session.log_plugin_message("capacity", f"the guarantees of the children of queue {parent.name} exceed its own")
