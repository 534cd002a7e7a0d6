"""Commits of a session, checked against the current state of the cluster.

Called by the session at each commit. While no other engine changes the cache, a check costs almost nothing. After a
change, the accounts of changed rows are recomputed, and the whole statement is checked in one step. The plugin
`predicates` checks its filters itself, on `live`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from bayplan.batch.cluster_state import BatchClusterState
from bayplan.batch.model.amounts import TOLERANCE, Amounts
from bayplan.batch.model.node_accounts import Demand
from bayplan.batch.model.pod_amounts import pod_amounts
from bayplan.batch.model.snapshot_changes import LiveSnapshot
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.outcome import SessionResult
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.nominator import Nominator
from bayplan.objects.resources import CPU, MEMORY


class SessionCommit:
    """Executes commits: assumes binds in the cache, records evictions, and stores both in the session result."""

    def __init__(
        self,
        cluster_state: BatchClusterState,
        outcome: SessionResult,
        nominations: Nominator,
        *,
        nominated_uids: set[str],
        removed_uids: Set[str],
    ) -> None:
        self._cluster_state = cluster_state
        self._outcome = outcome
        self._nominations = nominations
        self._nominated_uids = nominated_uids
        self._removed_uids = removed_uids  # uids of pods that are deleted, finished or terminating
        # by row: bound by this session and not yet counted in the cluster state
        self._bound_by_row: dict[int, Amounts] = {}

    def bind(self, task: Task) -> Status | None:
        accounts, cache = self._cluster_state.node_accounts, self._cluster_state.cache
        row = self._cluster_state.snapshot.nodes.index.get(task.node_name)
        if row is None:
            return error(f"failed to bind Task {task.uid} to host {task.node_name}, host does not exist")
        demand = accounts.demand(task)
        if not self._fits(row, demand):
            idle = accounts.amounts(accounts.idle, row).sub_unchecked(self._bound_by_row.get(row) or Amounts())
            names = " ".join(task.resreq.names_above(idle))
            return error(
                f"node {task.node_name} resources [{names}] are not enough to put task <{task.key}>, "
                f"idle: {idle}, req: {task.resreq}"
            )
        taken = self._bound_by_row.get(row)
        if taken is None:
            taken = self._bound_by_row[row] = Amounts(scalars={})
        taken.add(task.resreq)
        cache.assume(task.info.bound_to(task.node_name))
        self._cluster_state.mark_cache_seen()
        self._outcome.binds[task.key] = task.node_name
        self._outcome.started.add(task.job)
        return None

    def _fits(self, row: int, demand: Demand) -> bool:
        taken = self._bound_by_row.get(row)
        if taken is None:
            return self._cluster_state.node_accounts.fits_idle(row, demand)
        names, idle = self._cluster_state.node_accounts.dimensions.names, self._cluster_state.node_accounts.idle.item
        return all(amount - (idle(column, row) - taken.get(names[column])) < TOLERANCE for column, amount in demand)

    def evict(self, task: Task, reason: str) -> bool:
        if task.node_name not in self._cluster_state.snapshot.nodes.index:
            return False
        if task.uid in self._removed_uids:
            return True  # the pod is already terminating, so the goal is reached
        if task.uid in self._nominations.refused:
            return False  # a recent attempt to delete it was refused by the API server
        self._cluster_state.record_eviction(task)
        self._outcome.evicts[task.key] = reason
        return True

    def admit(self, task: Task) -> None:
        if task.uid not in self._removed_uids:
            self._outcome.admitted[task.key] = task.uid

    def nominate(self, task: Task) -> None:
        """Nominate the task. Its victims can be gone before the session ends; their resources must stay reserved."""
        self._nominated_uids.add(task.uid)
        self._nominations.nominate(task.info, task.node_name)

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Check the whole statement: if one task no longer fits, none is assumed."""
        state = self._cluster_state
        if state.apply_cache_changes():
            self._bound_by_row.clear()  # the cluster state now counts these binds
            state.node_accounts.add_resource_columns()
        if self._removed_uids and any(task.uid in self._removed_uids for task in tasks):
            return False
        if not state.is_shared and not self._nominations.nodes():
            return True
        if not all(state.has_node(task.node_name) for task in tasks):
            return False
        if state.is_shared and not all(state.can_still_place(task) for task in tasks):
            return False
        accounts, index = state.node_accounts, state.snapshot.nodes.index
        requests: dict[int, Amounts] = {}
        for task in tasks:
            if task.status is TaskStatus.ALLOCATED:
                requests.setdefault(index[task.node_name], Amounts()).add(task.resreq)
        # Without changes by another engine, a task that does not fit before victims are gone is refused at its bind, as
        # in Volcano.
        return all(
            (not state.is_shared or self._fits(row, accounts.dimensions.demand(amounts)))
            and self._respects_nominations(row, amounts)
            for row, amounts in requests.items()
        ) and all(self._will_fit_after_evictions(task) for task in tasks if task.status is TaskStatus.PIPELINED)

    @property
    def live(self) -> LiveSnapshot | None:
        return self._cluster_state.live

    def _will_fit_after_evictions(self, task: Task) -> bool:
        """Whether the resources being released for a task will suffice. Another engine can have used some, or evicted
        for them.

        Otherwise the victims would be evicted in vain.
        """
        if not self._cluster_state.is_shared:
            return True
        remaining = self._cluster_state.future_idle_of(task.node_name)
        for info in self._nominations.on_node(task.node_name):
            if self._cluster_state.task(info.uid) is None:
                remaining.sub_unchecked(pod_amounts(info.pod))
        return not any(remaining.get(name) <= -TOLERANCE for name in (CPU, MEMORY, *(task.resreq.scalars or ())))

    def _respects_nominations(self, row: int, requested: Amounts) -> bool:
        """Whether the resources that another engine evicted for, perhaps since the session opened, remain reserved."""
        state, accounts = self._cluster_state, self._cluster_state.node_accounts
        nominated = self._nominations.on_node(state.snapshot.nodes.names[row])
        nominated_amounts = [pod_amounts(info.pod) for info in nominated if state.task(info.uid) is None]
        if not nominated_amounts:
            return True
        total = requested.clone()
        for amounts in (*nominated_amounts, self._bound_by_row.get(row) or Amounts()):
            total.add(amounts)
        demand = accounts.dimensions.demand(total)
        accounts.add_resource_columns()
        return accounts.fits_future(row, demand)
