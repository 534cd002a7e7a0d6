"""What a session commits, and whether the cluster of that moment still has room for it.

Asked by the session at each commit. While nobody else changes the cache a check costs next to nothing; when somebody
does, the accounts of the rows that changed are made anew, and the whole statement is held against them in one step.
What the filters of `predicates` say of the cluster of the moment is asked by that plugin, on `live`.
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
    """Takes what a session commits: binds are assumed in the cache, evictions noted, both told in the outcome."""

    def __init__(
        self,
        ledger: BatchClusterState,
        outcome: SessionResult,
        nominations: Nominator,
        *,
        promised: set[str],
        gone: Set[str],
    ) -> None:
        self._ledger = ledger
        self._outcome = outcome
        self._nominations = nominations
        self._nominated_uids = promised
        self._gone = gone  # uids of pods that nobody needs to place or to evict any more
        self._bound_by_row: dict[
            int, Amounts
        ] = {}  # by row: what this session has bound and the ledger does not count yet

    def bind(self, task: Task) -> Status | None:
        room, cache = self._ledger.node_accounts, self._ledger.cache
        row = self._ledger.snapshot.nodes.index.get(task.node_name)
        if row is None:
            return error(f"failed to bind Task {task.uid} to host {task.node_name}, host does not exist")
        demand = room.demand(task)
        if not self._fits(row, demand):
            idle = room.amounts(room.idle, row).sub_unchecked(self._bound_by_row.get(row) or Amounts())
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
        self._ledger.mark_cache_seen()
        self._outcome.binds[task.key] = task.node_name
        self._outcome.started.add(task.job)
        return None

    def _fits(self, row: int, demand: Demand) -> bool:
        taken = self._bound_by_row.get(row)
        if taken is None:
            return self._ledger.node_accounts.fits_idle(row, demand)
        names, idle = self._ledger.node_accounts.dimensions.names, self._ledger.node_accounts.idle.item
        return all(amount - (idle(column, row) - taken.get(names[column])) < TOLERANCE for column, amount in demand)

    def evict(self, task: Task, reason: str) -> bool:
        if task.node_name not in self._ledger.snapshot.nodes.index:
            return False
        if task.uid in self._gone:
            return True  # which is all that was wanted of it
        if task.uid in self._nominations.refused:
            return False  # the API server refused to delete it a short time ago
        self._ledger.record_eviction(task)
        self._outcome.evicts[task.key] = reason
        return True

    def admit(self, task: Task) -> None:
        if task.uid not in self._gone:
            self._outcome.admitted[task.key] = task.uid

    def nominate(self, task: Task) -> None:
        """Victims may be gone before the session is over, and others must not take their room then."""
        self._nominated_uids.add(task.uid)
        self._nominations.nominate(task.info, task.node_name)

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """One step for the whole statement: if one task no longer fits, nothing of it is assumed."""
        ledger = self._ledger
        if ledger.apply_cache_changes():
            self._bound_by_row.clear()  # what was bound is among what the ledger has followed
            ledger.node_accounts.add_resource_columns()
        if self._gone and any(task.uid in self._gone for task in tasks):
            return False
        if not ledger.is_shared and not self._nominations.nodes():
            return True
        if not all(ledger.has_node(task.node_name) for task in tasks):
            return False
        if ledger.is_shared and not all(ledger.can_still_place(task) for task in tasks):
            return False
        room, index = ledger.node_accounts, ledger.snapshot.nodes.index
        asked: dict[int, Amounts] = {}
        for task in tasks:
            if task.status is TaskStatus.ALLOCATED:
                asked.setdefault(index[task.node_name], Amounts()).add(task.resreq)
        # Nobody else was here: what has no room until victims are gone is refused bind by bind, as upstream refuses it.
        return all(
            (not ledger.is_shared or self._fits(row, room.dimensions.demand(amounts)))
            and self._respects_nominations(row, amounts)
            for row, amounts in asked.items()
        ) and all(self._will_fit_after_evictions(task) for task in tasks if task.status is TaskStatus.PIPELINED)

    @property
    def live(self) -> LiveSnapshot | None:
        return self._ledger.live

    def _will_fit_after_evictions(self, task: Task) -> bool:
        """Whether the room that is being made for a task will be there: others may have taken some, or evicted for it.

        Else victims would go for nothing."""
        if not self._ledger.is_shared:
            return True
        left = self._ledger.future_idle_of(task.node_name)
        for info in self._nominations.on_node(task.node_name):
            if self._ledger.task(info.uid) is None:
                left.sub_unchecked(pod_amounts(info.pod))
        return not any(left.get(name) <= -TOLERANCE for name in (CPU, MEMORY, *(task.resreq.scalars or ())))

    def _respects_nominations(self, row: int, asked: Amounts) -> bool:
        """Whether the room that others have evicted for, maybe since the session opened, stays theirs."""
        ledger, room = self._ledger, self._ledger.node_accounts
        waiting = self._nominations.on_node(ledger.snapshot.nodes.names[row])
        promised = [pod_amounts(info.pod) for info in waiting if ledger.task(info.uid) is None]
        if not promised:
            return True
        total = asked.clone()
        for amounts in (*promised, self._bound_by_row.get(row) or Amounts()):
            total.add(amounts)
        demand = room.dimensions.demand(total)
        room.add_resource_columns()
        return room.fits_future(row, demand)
