"""What is idle, used, being released and promised on each node, as columns.

`NodeAccounts` holds a float64 matrix a question, resources by rows; its rows are the rows of the session's snapshot.
Tasks enter and leave a row by `add_task` and `remove_task`, which do what Volcano's NodeInfo does. Questions about all
nodes are a few operations on columns.

Columns do not tell "no such resource" from "none of it"; where that matters, `allocatables` has the nodes' own words.
A node that offers cpu and memory alone, not even `pods`, keeps no account of what else its tasks take: in a session
nothing of that is idle, whoever is there, until somebody goes. That is `scalarless_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bayplan.batch.model.amounts import TOLERANCE, Amounts
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.codec.quantity import QuantityText
from bayplan.objects.core import Node as NodeObject
from bayplan.objects.resources import CPU, MEMORY, PODS
from bayplan.snapshot import BoolVector, RowVector

FloatVector = npt.NDArray[np.float64]
FloatMatrix = npt.NDArray[np.float64]
RequestT = TypeVar("RequestT")
Demand = tuple[tuple[int, float], ...]
"""What a task asks for as (column, amount): cpu and memory always, every scalar it names."""

OVERSUBSCRIPTION_CPU = "volcano.sh/oversubscription-cpu"
OVERSUBSCRIPTION_MEMORY = "volcano.sh/oversubscription-memory"


PODS_COLUMN = 2
"""The first column of a scalar; those before it are cpu and memory."""

_MAX_CACHED_DEMANDS = 4096
_ACCOUNTS = ("allocatable", "idle", "used", "releasing", "pipelined")


class ResourceDimensions:
    """Which resource is which column. Only ever grows."""

    __slots__ = ("_demand_by_amounts", "_demands", "index", "names")

    def __init__(self) -> None:
        self._demands: dict[Demand, Demand] = {}  # equal demands are one object: quick to compare, and there are many
        self._demand_by_amounts: dict[
            tuple[object, ...], Demand
        ] = {}  # the same, by amounts in the order in which they came
        self.names: list[str] = [CPU, MEMORY, PODS]
        self.index: dict[str, int] = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def column_of(self, name: str) -> int:
        number = self.index.get(name)
        if number is None:
            number = self.index[name] = len(self.names)
            self.names.append(name)
        return number

    def demand(self, amounts: Amounts) -> Demand:
        scalars = amounts.scalars or {}
        written = (amounts.milli_cpu, amounts.memory, *scalars.items())
        found = self._demand_by_amounts.get(written)
        if found is None:
            asked = [(self.column_of(name), scalars[name]) for name in sorted(scalars)]
            if len(self._demand_by_amounts) >= _MAX_CACHED_DEMANDS:
                self._demand_by_amounts.clear()
                self._demands.clear()
            found = ((0, amounts.milli_cpu), (1, amounts.memory), *asked)
            found = self._demand_by_amounts[written] = self._demands.setdefault(found, found)
        return found


class NodeAccounts:
    """The accounts of all nodes."""

    def __init__(self, dimensions: ResourceDimensions) -> None:
        self.dimensions = dimensions
        self.count = 0
        self.allocatable = _empty_matrix(len(dimensions))
        self.idle = _empty_matrix(len(dimensions))
        self.used = _empty_matrix(len(dimensions))
        self.releasing = _empty_matrix(len(dimensions))
        self.pipelined = _empty_matrix(len(dimensions))
        self.max_tasks: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.allocatables: list[Amounts] = []  # in the nodes' own words, oversubscription added
        self.tasks: list[dict[str, Task]] = []  # on each row, by uid
        self.scalarless_rows: set[int] = (
            set()
        )  # rows of a session that know cpu and memory alone, and that nobody has left
        self._scalarless: set[int] = set()
        self._total: Amounts | None = None  # of all `allocatables`, until one of them changes

    def copy(self) -> NodeAccounts:
        """Accounts of a session's own. Tasks by row are shared: the session puts back what it changes."""
        twin = NodeAccounts.__new__(NodeAccounts)
        twin.dimensions, twin.count = self.dimensions, self.count
        twin.allocatable, twin.max_tasks = self.allocatable, self.max_tasks
        twin.allocatables, twin.tasks = self.allocatables, self.tasks
        twin.idle, twin.used = self.idle.copy(), self.used.copy()
        twin.releasing, twin.pipelined = self.releasing.copy(), self.pipelined.copy()
        twin.scalarless_rows, twin._scalarless = set(self._scalarless), self._scalarless
        if twin.scalarless_rows:
            twin.idle[PODS_COLUMN:, list(twin.scalarless_rows)] = 0.0
        twin._total = self.total()
        return twin

    # accounts ---------------------------------------------------------------------------------------------------

    def demand(self, task: Task) -> Demand:
        """What the task takes, as columns; computed once a task."""
        found = task.demand
        if found is None:
            found = task.demand = self.dimensions.demand(task.resreq)
        if len(self.dimensions.names) > len(self.idle):  # another room may have been the first to hear of a resource
            self.add_resource_columns()
        return found

    def add_task(self, row: int, task: Task) -> None:
        """Count a task on a row, as its status says."""
        status = task.status
        demand = self.demand(task)
        if status is TaskStatus.PIPELINED:
            self._add(self.pipelined, row, demand, 1.0)
        else:
            self._add(self.idle, row, demand[:PODS_COLUMN] if row in self.scalarless_rows else demand, -1.0)
            self._add(self.used, row, demand, 1.0)
            if status is TaskStatus.RELEASING:
                self._add(self.releasing, row, demand, 1.0)
        task.counted_status = status
        self.tasks[row][task.uid] = task

    def remove_task(self, row: int, task: Task) -> None:
        """The inverse, by the status under which the task was counted."""
        status, task.counted_status = task.counted_status, None
        if status is None or self.tasks[row].pop(task.uid, None) is None:
            return
        demand = self.demand(task)
        if status is TaskStatus.PIPELINED:
            self._add(self.pipelined, row, demand, -1.0)
            return
        self.scalarless_rows.discard(row)
        self._add(self.idle, row, demand, 1.0)
        self._add(self.used, row, demand, -1.0)
        if status is TaskStatus.RELEASING:
            self._add(self.releasing, row, demand, -1.0)

    def add_usage(self, row: int, demand: Demand) -> None:
        """Count what somebody takes of a row, whoever it is."""
        self._add(self.idle, row, demand, -1.0)
        self._add(self.used, row, demand, 1.0)

    def add_pipelined(self, row: int, amounts: Amounts) -> None:
        """Somebody else waits for so much of what is, or will be, idle on a row."""
        demand = self.dimensions.demand(amounts)
        self.add_resource_columns()
        self._add(self.pipelined, row, demand, 1.0)

    @staticmethod
    def _add(matrix: FloatMatrix, row: int, demand: Demand, sign: float) -> None:
        for column, amount in demand:
            if amount:
                matrix[column, row] = matrix.item(column, row) + sign * amount

    # questions --------------------------------------------------------------------------------------------------

    def total(self) -> Amounts:
        """What all nodes offer together, for you to change. Added up again only after a node came, went or changed."""
        if self._total is None:
            self._total = Amounts()
            for offer in self.allocatables:
                self._total.add(offer)
        return self._total.clone()

    def future_idle(self) -> FloatMatrix:
        """What will be idle once everything that goes is gone and everything promised is there."""
        return (self.idle + self.releasing) - self.pipelined

    def fits(self, matrix: FloatMatrix, demand: Demand, rows: RowVector | None = None) -> BoolVector:
        """On which rows (or which of these) there is enough of everything."""
        found: BoolVector | None = None
        for column, amount in demand:
            fits = is_sufficient(amount, matrix[column] if rows is None else matrix[column, rows])
            found = fits if found is None else found & fits
        assert found is not None, "a demand names cpu and memory at least"
        return found

    def fits_idle(self, row: int, demand: Demand) -> bool:
        return self.fits_row(row, demand)[0]

    def fits_future(self, row: int, demand: Demand) -> bool:
        return self.fits_row(row, demand)[1]

    def fits_row(self, row: int, demand: Demand) -> tuple[bool, bool]:
        """Whether a row has enough idle, and whether it will have."""
        now = soon = True
        idle_at, releasing_at, pipelined_at = self.idle.item, self.releasing.item, self.pipelined.item
        for column, amount in demand:
            idle = idle_at(column, row)
            if not amount - idle < TOLERANCE:
                now = False
            if not amount - ((idle + releasing_at(column, row)) - pipelined_at(column, row)) < TOLERANCE:
                soon = False
        return now, soon

    def insufficient_resources(self, matrix: FloatMatrix, row: int, demand: Demand) -> list[str]:
        """The resources of which a row has too little."""
        names = self.dimensions.names
        return [names[column] for column, amount in demand if not amount - matrix[column, row] < TOLERANCE]

    def amounts(self, matrix: FloatMatrix, row: int) -> Amounts:
        """A column of one row as amounts: the resources the node names, and whatever else is not zero."""
        named = self.allocatables[row].scalars or {}
        scalars: dict[str, float] = {}
        for column in range(2, matrix.shape[0]):
            name, amount = self.dimensions.names[column], float(matrix[column, row])
            if amount or name in named:
                scalars[name] = amount
        return Amounts(float(matrix[0, row]), float(matrix[1, row]), scalars)

    # rows -------------------------------------------------------------------------------------------------------

    def add_resource_columns(self) -> None:
        """Room for resources that were not known before."""
        missing = len(self.dimensions) - len(self.idle)
        if missing <= 0:
            return
        rows = np.zeros((missing, self.idle.shape[1]))
        for name in _ACCOUNTS:
            setattr(self, name, np.concatenate((getattr(self, name), rows)))

    def resize(self, count: int) -> None:
        """Exactly so many rows; new ones are empty."""
        before = self.count
        if count == before:
            return
        for name in _ACCOUNTS:
            matrix = np.zeros((len(self.dimensions), count))
            old = getattr(self, name)
            kept = min(count, before)
            matrix[: len(old), :kept] = old[:, :kept]
            setattr(self, name, matrix)
        self.max_tasks = np.resize(self.max_tasks, count) if before else np.zeros(count, dtype=np.int64)
        del self.allocatables[count:], self.tasks[count:]
        self._scalarless = {row for row in self._scalarless if row < count}
        while len(self.tasks) < count:
            self.tasks.append({})
            self.allocatables.append(Amounts())
        self.count = count
        self._total = None

    def set_rows(self, rows: Mapping[int, tuple[Amounts, Sequence[Task]]]) -> None:
        """Count rows anew: what each node offers, and who is on it. None of the tasks is pipelined.

        Tasks are counted by what they ask for, which is the same for many: one sum a kind of demand, not one a task."""
        if rows:
            self._total = None
        kinds: dict[Demand, tuple[list[int], list[int]]] = {}  # rows of all, rows of those that are going
        for row, (allocatable, tasks) in rows.items():
            self.allocatables[row] = allocatable
            self.max_tasks[row] = allocatable.max_task_num
            (self._scalarless.discard if allocatable.scalars else self._scalarless.add)(row)
            self.tasks[row] = {task.uid: task for task in tasks}
            for task in tasks:
                status = task.counted_status = task.status
                held = kinds.get(task.demand or self.demand(task))
                if held is None:
                    held = kinds[self.demand(task)] = ([], [])
                held[0].append(row)
                if status is TaskStatus.RELEASING:
                    held[1].append(row)
        offers = {id(offer): self.dimensions.demand(offer) for offer, _ in rows.values()}
        self.add_resource_columns()
        where = np.fromiter(rows, np.intp, len(rows))
        for name in _ACCOUNTS:
            getattr(self, name)[:, where] = 0.0
        for row, (offer, _) in rows.items():
            for column, amount in offers[id(offer)]:
                self.allocatable[column, row] = amount
        for demand, (everybody, going) in kinds.items():
            self._count(self.used, demand, everybody)
            self._count(self.releasing, demand, going)
        self.idle[:, where] = self.allocatable[:, where] - self.used[:, where]

    def _count(self, matrix: FloatMatrix, demand: Demand, rows: list[int]) -> None:
        if rows:
            number = np.bincount(np.array(rows, dtype=np.intp), minlength=self.count)
            for column, amount in demand:
                if amount:
                    matrix[column] += amount * number

    @contextmanager
    def batched_changes(self) -> Iterator[NodeAccountChanges]:
        """Many tasks that come and go, counted at the end of the block: one sum a kind of demand, not one a task."""
        sums = NodeAccountChanges(self)
        yield sums
        for demand, everybody, going in sums.kinds.values():
            self._shift(self.used, demand, everybody, 1.0)
            self._shift(self.idle, demand, everybody, -1.0)
            self._shift(self.releasing, demand, going, 1.0)

    def _shift(self, matrix: FloatMatrix, demand: Demand, changes: dict[int, int], sign: float) -> None:
        rows = [row for row, number in changes.items() if number]
        if not rows:
            return
        where = np.array(rows, dtype=np.intp)
        number = np.array([changes[row] for row in rows], dtype=np.float64)
        for column, amount in demand:
            if amount:
                matrix[column, where] += sign * amount * number

    def recompute_row(self, row: int, tasks: Iterable[Task]) -> None:
        """What is idle and used on a row with these tasks on it; who else is noted there stays."""
        self.idle[:, row] = self.allocatable[:, row]
        self.used[:, row] = 0.0
        for task in tasks:
            self.add_usage(row, self.demand(task))


class NodeAccountChanges:
    """Tasks that come to rows and leave them, by what they ask for. None of them is pipelined."""

    __slots__ = ("_room", "kinds")

    def __init__(self, room: NodeAccounts) -> None:
        self._room = room
        self.kinds: dict[int, tuple[Demand, dict[int, int], dict[int, int]]] = {}  # by row: all, and those that go

    def add_task(self, row: int, task: Task) -> None:
        task.counted_status = task.status
        self._count(row, task, 1)

    def remove_task(self, row: int, task: Task) -> None:
        self._count(row, task, -1)
        task.counted_status = None

    def _count(self, row: int, task: Task, by: int) -> None:
        demand = task.demand or self._room.demand(task)
        found = self.kinds.get(id(demand))  # equal demands are one object, and long to hash
        if found is None:
            found = self.kinds[id(demand)] = (self._room.demand(task), {}, {})
        rows = found[1]
        rows[row] = rows.get(row, 0) + by
        if task.counted_status is TaskStatus.RELEASING:
            found[2][row] = found[2].get(row, 0) + by


def is_sufficient(amount: float, have: FloatVector) -> BoolVector:
    """Where there is so much of one resource. What is below zero is not even enough for nothing."""
    found: BoolVector = amount - have < TOLERANCE
    return found


def first_insufficient(
    asked: Iterable[tuple[RequestT, float]], have: Callable[[RequestT], FloatVector]
) -> Iterator[tuple[RequestT, BoolVector]]:
    """The resources of which nodes have too little: each node with the first that it lacks."""
    told: BoolVector | None = None
    for resource, amount in asked:
        short = ~is_sufficient(amount, have(resource))
        if told is not None:
            short &= ~told
        if short.any():
            yield resource, short
        told = short if told is None else told | short


def _empty_matrix(dimensions: int) -> FloatMatrix:
    return np.zeros((dimensions, 0))


def offered_amounts(node: NodeObject) -> Amounts:
    """What a node offers: its allocatable, and what it says may be lent on top. Shared between equal nodes."""
    notes = node.metadata.annotations
    lent = (notes.get(OVERSUBSCRIPTION_CPU), notes.get(OVERSUBSCRIPTION_MEMORY))
    return _offered_amounts(tuple(node.status.allocatable.items()), *lent)


@lru_cache(maxsize=1024)
def _offered_amounts(allocatable: tuple[tuple[str, QuantityText], ...], cpu: str | None, memory: str | None) -> Amounts:
    return Amounts.of(dict(allocatable)).add(Amounts(_parse_number(cpu), _parse_number(memory)))


def capacity_of(node: NodeObject) -> Amounts:
    notes = node.metadata.annotations
    lent = Amounts(_parse_number(notes.get(OVERSUBSCRIPTION_CPU)), _parse_number(notes.get(OVERSUBSCRIPTION_MEMORY)))
    return Amounts.of(node.status.capacity).add(lent)


def _parse_number(text: str | None) -> float:
    try:
        return float(text) if text is not None else 0.0
    except ValueError:
        return 0.0
