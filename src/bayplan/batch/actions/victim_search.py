"""On which nodes could evicting make room for a task, at the very most?

Asked by preempt and reclaim, so that they look at few nodes one by one. `Evictable` holds, as columns, what the running
tasks of some jobs take on each row. `Prey` adds that to what will be idle anyway, and leaves out rows on which plugins
spare everybody: whoever they name as victims later is among those tasks.

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
from bayplan.batch.model.node_accounts import Demand, FloatMatrix, Room
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.extension_points import Point
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import is_final, is_foreseeable
from bayplan.snapshot import BoolVector

IntVector = npt.NDArray[np.int64]

_ENOUGH = TOLERANCE + 1.0  # sums of floats in another order; a byte or a thousandth of a core looks at a row too many
_FEW_ROWS = 100  # so few are asked about again for every task


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks of one job that ask for as much."""

    sample: Task
    rows: list[int]  # where they were when they were counted
    going: list[int]  # where some were leaving, who may yet stay after all


class Evictable:
    """What tasks of some jobs take on each row, as far as they may be evicted: those in the given statuses."""

    def __init__(self, session: Session, jobs: Iterable[Job], statuses: Sequence[TaskStatus]) -> None:
        self._session = session
        self._room = session.nodes.room
        self.jobs = {job.uid: job for job in jobs}
        self._statuses = tuple(statuses)
        self._cursor = 0
        self._amounts: FloatMatrix | None = None
        self._count: IntVector = np.zeros(self._room.count, dtype=np.int64)
        self._groups: dict[tuple[str, int], Group] = {}  # by job and demand
        self._shuffled: set[int] = set()

    def on(self, row: int) -> list[Task]:
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
        journal, amounts = self._session.touched, self._amounts
        touched = journal.since(self._cursor)
        if amounts is None or touched is None or len(amounts) < len(self._room.idle):
            amounts = self._amounts = self._counted()
        else:
            for row in touched:
                self._count[row] = count_on(self._room, row, self.on(row), amounts)
        self._cursor = journal.end
        return amounts, self._count

    def groups(self) -> Iterable[Group]:
        """Tasks of one job that ask for as much, and where they may be."""
        if self._amounts is None:
            self.columns()
        return self._groups.values()

    def _counted(self) -> FloatMatrix:
        row_of, groups = self._session.snapshot.nodes.index.get, self._groups
        groups.clear()
        demand_of = self._room.demand
        for uid, job in self.jobs.items():
            by_status = job.ranks.by_status
            for status in self._statuses:
                for task in by_status[status].values():
                    row = row_of(task.node_name)
                    if row is None or not task.preemptable:
                        continue
                    key = uid, id(task.demand or demand_of(task))  # equal demands are one object
                    group = groups.get(key)
                    if group is None:
                        group = groups[key] = Group(task, [], [])
                    group.rows.append(row)
            for task in by_status[TaskStatus.RELEASING].values():
                row = row_of(task.node_name)
                if row is not None and task.preemptable:
                    groups.setdefault((uid, id(demand_of(task))), Group(task, [], [])).going.append(row)
        return self._summed(groups.values())

    def _summed(self, groups: Iterable[Group]) -> FloatMatrix:
        amounts = np.zeros_like(self._room.idle)
        self._count[:] = 0
        for group in groups:
            number = np.bincount(np.array(group.rows, dtype=np.intp), minlength=self._room.count)
            self._count += number
            for column, amount in self._room.demand(group.sample):
                amounts[column] += amount * number
        return amounts


class InVain:
    """Rows on which all who may be evicted take too little for a demand, whatever plugins say: found out once, for
    every job that may look at the same tasks, and good until the row changes."""

    def __init__(self, session: Session) -> None:
        self._journal = session.touched
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


def count_on(room: Room, row: int, tasks: list[Task], amounts: FloatMatrix) -> int:
    """Write down what these take on a row; how many they are."""
    amounts[:, row] = 0.0
    for task in tasks:
        for column, amount in room.demand(task):
            amounts[column, row] += amount
    return len(tasks)


class Accepts(Enum):
    """What a search takes besides rows where somebody has to go."""

    VICTIMS_ONLY = 0
    ROOM_BESIDE_PREY = 1  # rows that have room anyway, if there is also somebody who could have gone
    ROOM = 2  # any row that has room anyway


class Prey:
    """The tasks that one job may look at while one statement lasts: all of `of`, except those of jobs in `less`."""

    def __init__(
        self,
        session: Session,
        job: Job,
        point: Point[list[Task]],
        of: Evictable,
        *,
        less: Evictable | None = None,
        accepts: Accepts,
        in_vain: InVain | None = None,
    ) -> None:
        self._session = session
        self._room = session.nodes.room
        self._job = job
        self._point = point
        self._of = of
        self._less = less
        self._accepts = accepts
        self._in_vain = in_vain if in_vain is not None else InVain(session)
        self._cursor = session.touched.end
        self._columns: tuple[FloatMatrix, IntVector, BoolVector] | None = None
        self._foresight = session.foresight(point)
        self._may_set_aside = is_foreseeable(self._foresight)
        self._is_final = is_final(self._foresight)
        self._asker: tuple[object, ...] = ()  # what plugins know of the task that asked last
        self._demand: Demand = ()
        self._hopeful: BoolVector = np.zeros(0, dtype=np.bool_)  # for that task
        self._aside: dict[str, set[int]] = {}  # rows on which plugins left too few, by the jobs that are there

    def on(self, row: int) -> list[Task]:
        """The tasks on one row."""
        found = self._of.on(row)
        if self._less is None:
            return found
        spared = self._less.jobs
        return [task for task in found if task.job not in spared]

    # which rows -------------------------------------------------------------------------------------------------

    def rows(self, task: Task) -> BoolVector:
        """Rows that may do for the task, as far as that is known. Not to be written."""
        self._catch_up()
        demand = self._room.demand(task)
        asker = (self._session.templates.of(task), task.priority, task.preemptable, task.revocable_zone)
        if demand is not self._demand or asker != self._asker:
            self._demand, self._asker = demand, asker
            self._aside.clear()
            self._hopeful = self._unruled() if self._columns is None else self._narrowed()
        return self._hopeful

    def rule_out(self, row: int) -> None:
        """The row was looked at for the last task, and all who are on it take too little: it is not looked at again
        before it changes."""
        self._hopeful[row] = False
        self._in_vain.rows(self._demand).add(row)

    def set_aside(self, row: int, tasks: Iterable[Task]) -> None:
        """The row was looked at for the last task, and plugins left too few of these who are on it."""
        if self._room.count <= _FEW_ROWS:
            self._of.shuffle(row)
        elif self._may_set_aside:
            self._hopeful[row] = False
            for uid in {task.job for task in tasks}:
                self._aside.setdefault(uid, set()).add(row)

    def note_gone(self, tasks: Iterable[Task]) -> None:
        """These are evicted, for better or worse: what plugins say of others may be another thing now."""
        for uid in {task.job for task in tasks} if self._is_final else list(self._aside):
            for row in self._aside.pop(uid, ()):
                self._hopeful[row] = self._columns is None or self._recounted(row)

    def narrow(self, task: Task) -> BoolVector:
        """The rows once more, after working out for all of them what is there to evict."""
        if self._columns is None or len(self._columns[0]) < len(self._room.idle):
            self._count()
        return self.rows(task)

    def _catch_up(self) -> None:
        journal = self._session.touched
        touched = journal.since(self._cursor)
        self._cursor = journal.end
        if touched is None:
            self._columns, self._demand = None, ()
        for row in touched if touched and self._demand else ():
            self._hopeful[row] = True if self._columns is None else self._recounted(row)

    def _recounted(self, row: int) -> bool:
        assert self._columns is not None
        room, (amounts, count, unspared) = self._room, self._columns
        count[row] = count_on(room, row, self.on(row), amounts)
        free = [
            amount - ((room.idle[column, row] + room.releasing[column, row]) - room.pipelined[column, row])
            for column, amount in self._demand
        ]
        if self._accepts is not Accepts.ROOM and not count[row]:
            return False
        if self._accepts is not Accepts.VICTIMS_ONLY and all(lack < _ENOUGH for lack in free):
            return True
        if not unspared[row]:
            return False
        return all(lack - amounts[column, row] < _ENOUGH for lack, (column, _) in zip(free, self._demand, strict=True))

    def _unruled(self) -> BoolVector:
        """All rows but those that somebody has looked at in vain."""
        found: BoolVector = np.ones(self._room.count, dtype=np.bool_)
        rows = self._in_vain.rows(self._demand)
        found[np.fromiter(rows, np.intp, len(rows))] = False
        return found

    def _narrowed(self) -> BoolVector:
        assert self._columns is not None
        room, (amounts, count, unspared) = self._room, self._columns
        found = unspared.copy()
        free: BoolVector = np.full(room.count, self._accepts is not Accepts.VICTIMS_ONLY)
        for column, amount in self._demand:
            lack = amount - ((room.idle[column] + room.releasing[column]) - room.pipelined[column])
            free &= lack < _ENOUGH
            found &= lack - amounts[column] < _ENOUGH
        found |= free
        if self._accepts is not Accepts.ROOM:
            found &= count > 0
        return found

    # what is there ----------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self._cursor, self._demand = self._session.touched.end, ()
        amounts, count = self._of.columns()
        if self._less is None:
            self._columns = amounts.copy(), count.copy(), self._unspared()
        else:
            own, own_count = self._less.columns()
            self._columns = amounts - own, count - own_count, self._unspared()

    def _unspared(self) -> BoolVector:
        """Rows on which no plugin rules everybody out beforehand. A plugin that does vetoes its tier; the next tier
        is asked all the same."""
        count, less = self._room.count, self._less.jobs if self._less is not None else {}
        groups = [group for group in self._of.groups() if group.sample.job not in less]
        found: BoolVector = np.zeros(count, dtype=np.bool_)
        for tier in self._foresight:
            left: BoolVector = np.ones(count, dtype=np.bool_)
            for spares in [each.spares for each in tier if each.spares is not None]:
                left &= self._rows_of(group for group in groups if not spares(self._job, group.sample))
            found |= left
        return found

    def _rows_of(self, groups: Iterable[Group]) -> BoolVector:
        found: BoolVector = np.zeros(self._room.count, dtype=np.bool_)
        rows = [row for group in groups for row in (*group.rows, *group.going)]
        found[np.array(rows, dtype=np.intp)] = True
        return found


def has_room_without(task: Task, node: Node, victims: Sequence[Task]) -> bool:
    """Whether the task fits the node once everybody who goes is gone, and these too. They may be none."""
    room, row = node.nodes.room, node.row
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
