"""Upper bound for victims: the nodes on which evictions could free enough resources for a task.

Called by preempt and reclaim, so that they examine few nodes one by one. `EvictableTasks` holds, as columns, what the
running tasks of some jobs take on each row. `VictimSearch` adds this to the future idle resources. It leaves out rows
on which plugins protect every task, because the victims that plugins name later are among those tasks.

Cost: a search that finds a node soon needs no columns. Rows that were examined without success are stored until they
change. The first long search makes one pass over the tasks of the jobs; later ones update the rows that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from bayplan.batch.model.amounts import TOLERANCE
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.node_accounts import Demand, FloatMatrix, NodeAccounts
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.extension_points import SessionPoint
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import is_cacheable, is_final
from bayplan.snapshot import BoolVector

IntVector = npt.NDArray[np.int64]

_SLACK = TOLERANCE + 1.0  # float sums differ by order; one byte or a thousandth of a core costs an additional row
_SMALL_CLUSTER_ROWS = 100  # with at most this many rows, every row is examined again for every task


@dataclass(frozen=True, slots=True)
class EvictableGroup:
    """Tasks of one job with equal requests."""

    sample: Task
    rows: list[int]  # rows of the tasks when they were counted
    releasing_rows: list[int]  # rows of releasing tasks, whose eviction may still be undone


class EvictableTasks:
    """What the evictable tasks of some jobs, in the given statuses, take on each row."""

    def __init__(self, session: Session, jobs: Iterable[Job], statuses: Sequence[TaskStatus]) -> None:
        self._session = session
        self._accounts = session.nodes.accounts
        self.jobs = {job.uid: job for job in jobs}
        self._statuses = tuple(statuses)
        self._cursor = 0
        self._amounts: FloatMatrix | None = None
        self._count: IntVector = np.zeros(self._accounts.count, dtype=np.int64)
        self._groups: dict[tuple[str, int], EvictableGroup] = {}  # by job and demand
        self._shuffled: set[int] = set()

    def tasks_on_row(self, row: int) -> list[Task]:
        jobs, statuses = self.jobs, self._statuses
        found = [
            task
            for task in self._accounts.tasks[row].values()
            if task.job in jobs and task.status in statuses and task.preemptable
        ]
        if row in self._shuffled:
            self._session.chance.shuffle(found)
        return found

    def shuffle(self, row: int) -> None:
        """Return the tasks of this row in random order from now on.

        Plugins that count tasks select the first ones, and upstream's order is random.
        """
        self._shuffled.add(row)

    def columns(self) -> tuple[FloatMatrix, IntVector]:
        """Amounts of each resource and number of tasks, by row. Read-only."""
        journal, amounts = self._session.changed_rows, self._amounts
        touched = journal.since(self._cursor)
        if amounts is None or touched is None or len(amounts) < len(self._accounts.idle):
            amounts = self._amounts = self._count_tasks()
        else:
            for row in touched:
                self._count[row] = sum_on_row(self._accounts, row, self.tasks_on_row(row), amounts)
        self._cursor = journal.end
        return amounts, self._count

    def groups(self) -> Iterable[EvictableGroup]:
        """Tasks of one job with equal requests, with the rows where they may be."""
        if self._amounts is None:
            self.columns()
        return self._groups.values()

    def _count_tasks(self) -> FloatMatrix:
        row_of, groups = self._session.snapshot.nodes.index.get, self._groups
        groups.clear()
        demand_of = self._accounts.demand
        for uid, job in self.jobs.items():
            by_status = job.status_index.by_status
            for status in self._statuses:
                for task in by_status[status].values():
                    row = row_of(task.node_name)
                    if row is None or not task.preemptable:
                        continue
                    key = uid, id(task.demand or demand_of(task))  # equal demands are one object
                    group = groups.get(key)
                    if group is None:
                        group = groups[key] = EvictableGroup(task, [], [])
                    group.rows.append(row)
            for task in by_status[TaskStatus.RELEASING].values():
                row = row_of(task.node_name)
                if row is not None and task.preemptable:
                    groups.setdefault((uid, id(demand_of(task))), EvictableGroup(task, [], [])).releasing_rows.append(
                        row
                    )
        return self._sum_groups(groups.values())

    def _sum_groups(self, groups: Iterable[EvictableGroup]) -> FloatMatrix:
        amounts = np.zeros_like(self._accounts.idle)
        self._count[:] = 0
        for group in groups:
            number = np.bincount(np.array(group.rows, dtype=np.intp), minlength=self._accounts.count)
            self._count += number
            for column, amount in self._accounts.demand(group.sample):
                amounts[column] += amount * number
        return amounts


class ExhaustedRows:
    """Rows whose evictable tasks take too little for a demand, whatever plugins decide.

    A row is found once for all jobs that may evict the same tasks, and is valid until the row changes.
    """

    def __init__(self, session: Session) -> None:
        self._journal = session.changed_rows
        self._cursor = self._journal.end
        self._rows: dict[Demand, set[int]] = {}

    def rows(self, demand: Demand) -> set[int]:
        """The exhausted rows of a demand; the caller may add rows."""
        if self._cursor != self._journal.end:
            touched = self._journal.since(self._cursor)
            self._cursor = self._journal.end
            for rows in self._rows.values():
                if touched is None:
                    rows.clear()
                else:
                    rows -= touched
        return self._rows.setdefault(demand, set())


def sum_on_row(accounts: NodeAccounts, row: int, tasks: list[Task], amounts: FloatMatrix) -> int:
    """Write the sum of these tasks into the column of a row; return the number of tasks."""
    amounts[:, row] = 0.0
    for task in tasks:
        for column, amount in accounts.demand(task):
            amounts[column, row] += amount
    return len(tasks)


class SearchAccepts(Enum):
    """Rows that a search accepts besides those where victims are needed."""

    VICTIMS_ONLY = 0
    IDLE_WITH_VICTIMS = 1  # rows with enough future idle, if they also have an evictable task
    IDLE = 2  # all rows with enough future idle


class VictimSearch:
    """The tasks that one job may evict during one statement: all `candidates` except those of jobs in `excluded`."""

    def __init__(
        self,
        session: Session,
        job: Job,
        point: SessionPoint[list[Task]],
        candidates: EvictableTasks,
        *,
        excluded: EvictableTasks | None = None,
        accepts: SearchAccepts,
        exhausted: ExhaustedRows | None = None,
    ) -> None:
        self._session = session
        self._accounts = session.nodes.accounts
        self._job = job
        self._point = point
        self._candidates = candidates
        self._excluded = excluded
        self._accepts = accepts
        self._exhausted = exhausted if exhausted is not None else ExhaustedRows(session)
        self._cursor = session.changed_rows.end
        self._columns: tuple[FloatMatrix, IntVector, BoolVector] | None = None
        self._hints = session.victim_hints(point)
        self._may_set_aside = is_cacheable(self._hints)
        self._is_final = is_final(self._hints)
        self._preemptor_key: tuple[object, ...] = ()  # what plugins know of the last preemptor
        self._demand: Demand = ()
        self._possible_rows: BoolVector = np.zeros(0, dtype=np.bool_)  # for the last preemptor
        self._set_aside_rows: dict[str, set[int]] = {}  # by job: rows where plugins allowed too few victims

    def tasks_on_row(self, row: int) -> list[Task]:
        found = self._candidates.tasks_on_row(row)
        if self._excluded is None:
            return found
        excluded_jobs = self._excluded.jobs
        return [task for task in found if task.job not in excluded_jobs]

    # Rows

    def rows(self, task: Task) -> BoolVector:
        """Rows that may be possible for the task, as far as known. Read-only."""
        self._catch_up()
        demand = self._accounts.demand(task)
        preemptor_key = (
            self._session.templates.template_number(task),
            task.priority,
            task.preemptable,
            task.revocable_zone,
        )
        if demand is not self._demand or preemptor_key != self._preemptor_key:
            self._demand, self._preemptor_key = demand, preemptor_key
            self._set_aside_rows.clear()
            self._possible_rows = self._rows_not_exhausted() if self._columns is None else self._narrow_rows()
        return self._possible_rows

    def mark_exhausted(self, row: int) -> None:
        """Record that all tasks on the row take too little for the last preemptor; skip the row until it changes."""
        self._possible_rows[row] = False
        self._exhausted.rows(self._demand).add(row)

    def set_aside(self, row: int, tasks: Iterable[Task]) -> None:
        """Record that plugins allowed too few of these tasks of the row as victims for the last preemptor."""
        if self._accounts.count <= _SMALL_CLUSTER_ROWS:
            self._candidates.shuffle(row)
        elif self._may_set_aside:
            self._possible_rows[row] = False
            for uid in {task.job for task in tasks}:
                self._set_aside_rows.setdefault(uid, set()).add(row)

    def note_evicted(self, tasks: Iterable[Task]) -> None:
        """Record evictions: plugins may now decide differently about the rows that were set aside."""
        for uid in {task.job for task in tasks} if self._is_final else list(self._set_aside_rows):
            for row in self._set_aside_rows.pop(uid, ()):
                self._possible_rows[row] = self._columns is None or self._recount_row(row)

    def narrow(self, task: Task) -> BoolVector:
        """Compute the evictable amounts of all rows, then return the possible rows for the task."""
        if self._columns is None or len(self._columns[0]) < len(self._accounts.idle):
            self._count()
        return self.rows(task)

    def _catch_up(self) -> None:
        journal = self._session.changed_rows
        touched = journal.since(self._cursor)
        self._cursor = journal.end
        if touched is None:
            self._columns, self._demand = None, ()
        for row in touched if touched and self._demand else ():
            self._possible_rows[row] = True if self._columns is None else self._recount_row(row)

    def _recount_row(self, row: int) -> bool:
        assert self._columns is not None
        accounts, (amounts, count, with_victims) = self._accounts, self._columns
        count[row] = sum_on_row(accounts, row, self.tasks_on_row(row), amounts)
        free = [
            amount - ((accounts.idle[column, row] + accounts.releasing[column, row]) - accounts.pipelined[column, row])
            for column, amount in self._demand
        ]
        if self._accepts is not SearchAccepts.IDLE and not count[row]:
            return False
        if self._accepts is not SearchAccepts.VICTIMS_ONLY and all(shortage < _SLACK for shortage in free):
            return True
        if not with_victims[row]:
            return False
        return all(
            shortage - amounts[column, row] < _SLACK for shortage, (column, _) in zip(free, self._demand, strict=True)
        )

    def _rows_not_exhausted(self) -> BoolVector:
        found: BoolVector = np.ones(self._accounts.count, dtype=np.bool_)
        rows = self._exhausted.rows(self._demand)
        found[np.fromiter(rows, np.intp, len(rows))] = False
        return found

    def _narrow_rows(self) -> BoolVector:
        assert self._columns is not None
        accounts, (amounts, count, with_victims) = self._accounts, self._columns
        found = with_victims.copy()
        free: BoolVector = np.full(accounts.count, self._accepts is not SearchAccepts.VICTIMS_ONLY)
        for column, amount in self._demand:
            shortage = amount - ((accounts.idle[column] + accounts.releasing[column]) - accounts.pipelined[column])
            free &= shortage < _SLACK
            found &= shortage - amounts[column] < _SLACK
        found |= free
        if self._accepts is not SearchAccepts.IDLE:
            found &= count > 0
        return found

    # Columns

    def _count(self) -> None:
        self._cursor, self._demand = self._session.changed_rows.end, ()
        amounts, count = self._candidates.columns()
        if self._excluded is None:
            self._columns = amounts.copy(), count.copy(), self._rows_with_victims()
        else:
            own, own_count = self._excluded.columns()
            self._columns = amounts - own, count - own_count, self._rows_with_victims()

    def _rows_with_victims(self) -> BoolVector:
        """Rows with a task that no plugin of some tier always protects.

        A plugin that protects all tasks vetoes only its own tier; the next tier is consulted as well.
        """
        count, excluded = self._accounts.count, self._excluded.jobs if self._excluded is not None else {}
        groups = [group for group in self._candidates.groups() if group.sample.job not in excluded]
        found: BoolVector = np.zeros(count, dtype=np.bool_)
        for tier in self._hints:
            evictable: BoolVector = np.ones(count, dtype=np.bool_)
            for never_evicts in [each.never_evicts for each in tier if each.never_evicts is not None]:
                evictable &= self._rows_of(group for group in groups if not never_evicts(self._job, group.sample))
            found |= evictable
        return found

    def _rows_of(self, groups: Iterable[EvictableGroup]) -> BoolVector:
        found: BoolVector = np.zeros(self._accounts.count, dtype=np.bool_)
        rows = [row for group in groups for row in (*group.rows, *group.releasing_rows)]
        found[np.array(rows, dtype=np.intp)] = True
        return found


def fits_without(task: Task, node: Node, victims: Sequence[Task]) -> bool:
    """Whether the task fits the node without releasing tasks and without these victims, which may be empty."""
    accounts, row = node.nodes.accounts, node.row
    freed: dict[int, float] = {}
    for victim in victims:
        for column, amount in accounts.demand(victim):
            freed[column] = freed.get(column, 0.0) + amount
    idle, releasing, pipelined = accounts.idle, accounts.releasing, accounts.pipelined
    return all(
        amount - ((idle[column, row] + releasing[column, row]) - pipelined[column, row] + freed.get(column, 0.0))
        < TOLERANCE
        for column, amount in accounts.demand(task)
    )
