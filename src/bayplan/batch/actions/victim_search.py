"""On which nodes could evicting make room for a task, at the very most?

Asked by preempt and reclaim, so that they look at few nodes one by one. `EvictableTasks` holds, as columns, what the
running tasks of some jobs take on each row. `VictimSearch` adds that to what will be idle anyway, and leaves out rows
on which plugins spare everybody: whoever they name as victims later is among those tasks.

Cost: a search that soon finds a node needs no columns; rows that were looked at in vain are remembered until they
change. For the first long search one pass over the tasks of the jobs, from then on what changed.
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

_SLACK = TOLERANCE + 1.0  # sums of floats in another order; a byte or a thousandth of a core looks at a row too many
_SMALL_CLUSTER_ROWS = 100  # so few are asked about again for every task


@dataclass(frozen=True, slots=True)
class EvictableGroup:
    """Tasks of one job that ask for as much."""

    sample: Task
    rows: list[int]  # where they were when they were counted
    going: list[int]  # where some were leaving, who may yet stay after all


class EvictableTasks:
    """What tasks of some jobs take on each row, as far as they may be evicted: those in the given statuses."""

    def __init__(self, session: Session, jobs: Iterable[Job], statuses: Sequence[TaskStatus]) -> None:
        self._session = session
        self._room = session.nodes.accounts
        self.jobs = {job.uid: job for job in jobs}
        self._statuses = tuple(statuses)
        self._cursor = 0
        self._amounts: FloatMatrix | None = None
        self._count: IntVector = np.zeros(self._room.count, dtype=np.int64)
        self._groups: dict[tuple[str, int], EvictableGroup] = {}  # by job and demand
        self._shuffled: set[int] = set()

    def tasks_on_row(self, row: int) -> list[Task]:
        """The tasks themselves, on one row."""
        jobs, statuses = self.jobs, self._statuses
        found = [
            task
            for task in self._room.tasks[row].values()
            if task.job in jobs and task.status in statuses and task.preemptable
        ]
        if row in self._shuffled:
            self._session.chance.shuffle(found)
        return found

    def shuffle(self, row: int) -> None:
        """Tell the tasks of a row in another order from now on, each time. Plugins that count name the first ones, and
        upstream's order is a matter of chance: who comes later may be luckier."""
        self._shuffled.add(row)

    def columns(self) -> tuple[FloatMatrix, IntVector]:
        """What they take of each resource, and how many they are, by row. Not to be written."""
        journal, amounts = self._session.changed_rows, self._amounts
        touched = journal.since(self._cursor)
        if amounts is None or touched is None or len(amounts) < len(self._room.idle):
            amounts = self._amounts = self._counted()
        else:
            for row in touched:
                self._count[row] = sum_on_row(self._room, row, self.tasks_on_row(row), amounts)
        self._cursor = journal.end
        return amounts, self._count

    def groups(self) -> Iterable[EvictableGroup]:
        """Tasks of one job that ask for as much, and where they may be."""
        if self._amounts is None:
            self.columns()
        return self._groups.values()

    def _counted(self) -> FloatMatrix:
        row_of, groups = self._session.snapshot.nodes.index.get, self._groups
        groups.clear()
        demand_of = self._room.demand
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
                    groups.setdefault((uid, id(demand_of(task))), EvictableGroup(task, [], [])).going.append(row)
        return self._summed(groups.values())

    def _summed(self, groups: Iterable[EvictableGroup]) -> FloatMatrix:
        amounts = np.zeros_like(self._room.idle)
        self._count[:] = 0
        for group in groups:
            number = np.bincount(np.array(group.rows, dtype=np.intp), minlength=self._room.count)
            self._count += number
            for column, amount in self._room.demand(group.sample):
                amounts[column] += amount * number
        return amounts


class ExhaustedRows:
    """Rows on which all who may be evicted take too little for a demand, whatever plugins say: found out once, for
    every job that may look at the same tasks, and good until the row changes."""

    def __init__(self, session: Session) -> None:
        self._journal = session.changed_rows
        self._cursor = self._journal.end
        self._rows: dict[Demand, set[int]] = {}

    def rows(self, demand: Demand) -> set[int]:
        """Such rows, to be added to."""
        if self._cursor != self._journal.end:
            touched = self._journal.since(self._cursor)
            self._cursor = self._journal.end
            for rows in self._rows.values():
                if touched is None:
                    rows.clear()
                else:
                    rows -= touched
        return self._rows.setdefault(demand, set())


def sum_on_row(room: NodeAccounts, row: int, tasks: list[Task], amounts: FloatMatrix) -> int:
    """Write down what these take on a row; how many they are."""
    amounts[:, row] = 0.0
    for task in tasks:
        for column, amount in room.demand(task):
            amounts[column, row] += amount
    return len(tasks)


class SearchAccepts(Enum):
    """What a search takes besides rows where somebody has to go."""

    VICTIMS_ONLY = 0
    IDLE_WITH_VICTIMS = 1  # rows that have room anyway, if there is also somebody who could have gone
    IDLE = 2  # any row that has room anyway


class VictimSearch:
    """The tasks that one job may look at while one statement lasts: all of `of`, except those of jobs in `less`."""

    def __init__(
        self,
        session: Session,
        job: Job,
        point: SessionPoint[list[Task]],
        of: EvictableTasks,
        *,
        less: EvictableTasks | None = None,
        accepts: SearchAccepts,
        in_vain: ExhaustedRows | None = None,
    ) -> None:
        self._session = session
        self._room = session.nodes.accounts
        self._job = job
        self._point = point
        self._candidates = of
        self._excluded = less
        self._accepts = accepts
        self._exhausted = in_vain if in_vain is not None else ExhaustedRows(session)
        self._cursor = session.changed_rows.end
        self._columns: tuple[FloatMatrix, IntVector, BoolVector] | None = None
        self._hints = session.victim_hints(point)
        self._may_set_aside = is_cacheable(self._hints)
        self._is_final = is_final(self._hints)
        self._preemptor_key: tuple[object, ...] = ()  # what plugins know of the task that asked last
        self._demand: Demand = ()
        self._possible_rows: BoolVector = np.zeros(0, dtype=np.bool_)  # for that task
        self._set_aside_rows: dict[str, set[int]] = {}  # rows on which plugins left too few, by the jobs that are there

    def tasks_on_row(self, row: int) -> list[Task]:
        """The tasks on one row."""
        found = self._candidates.tasks_on_row(row)
        if self._excluded is None:
            return found
        spared = self._excluded.jobs
        return [task for task in found if task.job not in spared]

    # which rows -------------------------------------------------------------------------------------------------

    def rows(self, task: Task) -> BoolVector:
        """Rows that may do for the task, as far as that is known. Not to be written."""
        self._catch_up()
        demand = self._room.demand(task)
        asker = (self._session.templates.template_number(task), task.priority, task.preemptable, task.revocable_zone)
        if demand is not self._demand or asker != self._preemptor_key:
            self._demand, self._preemptor_key = demand, asker
            self._set_aside_rows.clear()
            self._possible_rows = self._rows_not_exhausted() if self._columns is None else self._narrow_rows()
        return self._possible_rows

    def mark_exhausted(self, row: int) -> None:
        """The row was looked at for the last task, and all who are on it take too little: it is not looked at again
        before it changes."""
        self._possible_rows[row] = False
        self._exhausted.rows(self._demand).add(row)

    def set_aside(self, row: int, tasks: Iterable[Task]) -> None:
        """The row was looked at for the last task, and plugins left too few of these who are on it."""
        if self._room.count <= _SMALL_CLUSTER_ROWS:
            self._candidates.shuffle(row)
        elif self._may_set_aside:
            self._possible_rows[row] = False
            for uid in {task.job for task in tasks}:
                self._set_aside_rows.setdefault(uid, set()).add(row)

    def note_evicted(self, tasks: Iterable[Task]) -> None:
        """These are evicted, for better or worse: what plugins say of others may be another thing now."""
        for uid in {task.job for task in tasks} if self._is_final else list(self._set_aside_rows):
            for row in self._set_aside_rows.pop(uid, ()):
                self._possible_rows[row] = self._columns is None or self._recount_row(row)

    def narrow(self, task: Task) -> BoolVector:
        """The rows once more, after working out for all of them what is there to evict."""
        if self._columns is None or len(self._columns[0]) < len(self._room.idle):
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
        room, (amounts, count, unspared) = self._room, self._columns
        count[row] = sum_on_row(room, row, self.tasks_on_row(row), amounts)
        free = [
            amount - ((room.idle[column, row] + room.releasing[column, row]) - room.pipelined[column, row])
            for column, amount in self._demand
        ]
        if self._accepts is not SearchAccepts.IDLE and not count[row]:
            return False
        if self._accepts is not SearchAccepts.VICTIMS_ONLY and all(lack < _SLACK for lack in free):
            return True
        if not unspared[row]:
            return False
        return all(lack - amounts[column, row] < _SLACK for lack, (column, _) in zip(free, self._demand, strict=True))

    def _rows_not_exhausted(self) -> BoolVector:
        """All rows but those that somebody has looked at in vain."""
        found: BoolVector = np.ones(self._room.count, dtype=np.bool_)
        rows = self._exhausted.rows(self._demand)
        found[np.fromiter(rows, np.intp, len(rows))] = False
        return found

    def _narrow_rows(self) -> BoolVector:
        assert self._columns is not None
        room, (amounts, count, unspared) = self._room, self._columns
        found = unspared.copy()
        free: BoolVector = np.full(room.count, self._accepts is not SearchAccepts.VICTIMS_ONLY)
        for column, amount in self._demand:
            lack = amount - ((room.idle[column] + room.releasing[column]) - room.pipelined[column])
            free &= lack < _SLACK
            found &= lack - amounts[column] < _SLACK
        found |= free
        if self._accepts is not SearchAccepts.IDLE:
            found &= count > 0
        return found

    # what is there ----------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self._cursor, self._demand = self._session.changed_rows.end, ()
        amounts, count = self._candidates.columns()
        if self._excluded is None:
            self._columns = amounts.copy(), count.copy(), self._rows_with_victims()
        else:
            own, own_count = self._excluded.columns()
            self._columns = amounts - own, count - own_count, self._rows_with_victims()

    def _rows_with_victims(self) -> BoolVector:
        """Rows on which no plugin rules everybody out beforehand. A plugin that does vetoes its tier; the next tier
        is asked all the same."""
        count, less = self._room.count, self._excluded.jobs if self._excluded is not None else {}
        groups = [group for group in self._candidates.groups() if group.sample.job not in less]
        found: BoolVector = np.zeros(count, dtype=np.bool_)
        for tier in self._hints:
            left: BoolVector = np.ones(count, dtype=np.bool_)
            for spares in [each.never_evicts for each in tier if each.never_evicts is not None]:
                left &= self._rows_of(group for group in groups if not spares(self._job, group.sample))
            found |= left
        return found

    def _rows_of(self, groups: Iterable[EvictableGroup]) -> BoolVector:
        found: BoolVector = np.zeros(self._room.count, dtype=np.bool_)
        rows = [row for group in groups for row in (*group.rows, *group.going)]
        found[np.array(rows, dtype=np.intp)] = True
        return found


def fits_without(task: Task, node: Node, victims: Sequence[Task]) -> bool:
    """Whether the task fits the node once everybody who goes is gone, and these too. They may be none."""
    room, row = node.nodes.accounts, node.row
    freed: dict[int, float] = {}
    for victim in victims:
        for column, amount in room.demand(victim):
            freed[column] = freed.get(column, 0.0) + amount
    idle, releasing, pipelined = room.idle, room.releasing, room.pipelined
    return all(
        amount - ((idle[column, row] + releasing[column, row]) - pipelined[column, row] + freed.get(column, 0.0))
        < TOLERANCE
        for column, amount in room.demand(task)
    )
