"""Victims of reclaim for the capacity plugin.

Victims are tasks of queues that exceed their deserved amount of a resource that the task holds. A queue never falls
below its guarantee. With `ancestorReclaimLevel`, ancestors of the victim's queue must exceed theirs as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bayplan.batch.model.amounts import Amounts, common_names
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.capacity.accounts import ROOT, CapacityAccount
from bayplan.batch.session.session import Session


class ReclaimVictims:
    """One selection of victims. Each selected victim reduces what its queue holds."""

    def __init__(self, session: Session, accounts: Mapping[str, CapacityAccount], level: int) -> None:
        self._session = session
        self._accounts = accounts
        self._level = level  # number of ancestor levels that are checked
        self._remaining: dict[str, Amounts] = {}

    def victims_for_task(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        """Victims for one task, in eviction order."""
        own = self._account_of(reclaimer)
        if own is None:
            return []
        victims = []
        order = self._session.victims_queue(candidates, reclaimer)
        while order:
            task = order.pop()
            account = self._account_of(task)
            if account is None or not common_names(task.resreq, reclaimer.init_resreq, with_pods=False):
                continue
            if self._is_victim(task, account, own, reclaimer):
                victims.append(task)
        return victims

    def victims_for_gang(self, candidates: Sequence[Task]) -> list[Task]:
        """Victims for a whole gang, in the given order. Ancestors and the request of the gang are ignored."""
        victims = []
        for task in candidates:
            account = self._account_of(task)
            if account is None or not self._above_guarantee(task, account):
                continue
            if not has_deserved(account, task) or self._exceeds(account, task):
                self._deduct(task, account)
                victims.append(task)
        return victims

    def is_protected(self, task: Task, account: CapacityAccount) -> bool:
        """Whether the task is no victim, also if its queue held less."""
        if not self._above_guarantee(task, account):
            return True
        return has_deserved(account, task) and not self._exceeds(account, task)

    def _account_of(self, task: Task) -> CapacityAccount | None:
        job = self._session.jobs.get(task.job)
        return None if job is None else self._accounts.get(job.queue)

    def _is_victim(self, task: Task, account: CapacityAccount, own: CapacityAccount, reclaimer: Task) -> bool:
        if not self._above_guarantee(task, account):
            return False
        if not has_deserved(account, task):
            # Neither queue deserves any of it and both are below one ancestor: neither has a claim to it.
            if self._share_ancestor(account, own) and not has_deserved(own, reclaimer):
                return False
        elif not self._exceeds(account, task):
            return False
        checked = []
        for ancestor in self._ancestors_apart(account, own):
            checked.append(ancestor)
            if has_deserved(ancestor, task) and not self._exceeds(ancestor, task):
                return False
        self._deduct(task, account, *checked)
        return True

    def _held_amounts(self, account: CapacityAccount) -> Amounts:
        return self._remaining.get(account.name, account.allocated)

    def _deduct(self, task: Task, *accounts: CapacityAccount) -> None:
        for account in accounts:
            self._remaining[account.name] = self._held_amounts(account).clone().sub(task.resreq)

    def _above_guarantee(self, task: Task, account: CapacityAccount) -> bool:
        return account.guarantee.less_equal(self._held_amounts(account).clone().sub(task.resreq))

    def _exceeds(self, account: CapacityAccount, task: Task) -> bool:
        return bool(self._held_amounts(account).relevant_names_greater(account.deserved, task.resreq))

    def _share_ancestor(self, left: CapacityAccount, right: CapacityAccount) -> bool:
        ancestor_ids = {id(account) for account in self._ancestors_within_level(left)}
        return any(id(account) in ancestor_ids for account in self._ancestors_within_level(right))

    def _ancestors_within_level(self, account: CapacityAccount) -> Iterator[CapacityAccount]:
        """Ancestors within the level, without the root."""
        for level in range(1, self._level + 1):
            ancestor = account.ancestor_at(level)
            if ancestor is not None and ancestor.name != ROOT:
                yield ancestor

    def _ancestors_apart(self, account: CapacityAccount, own: CapacityAccount) -> Iterator[CapacityAccount]:
        """The victim's ancestors within the level that differ from the reclaimer's ancestor at the same level."""
        for level in range(1, self._level + 1):
            ancestor = account.ancestor_at(level)
            if ancestor is not None and ancestor.name != ROOT and ancestor is not own.ancestor_at(level):
                yield ancestor


def has_deserved(account: CapacityAccount, task: Task) -> bool:
    """Whether the queue deserves any resource that the task requests."""
    return bool(common_names(task.resreq, account.deserved))
