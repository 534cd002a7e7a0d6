"""Idle, used, releasing and pipelined amounts of each node, as columns.

`NodeAccounts` holds one float64 matrix per account, resources by rows of the session's snapshot. `add_task` and
`remove_task` follow Volcano's NodeInfo. Queries over all nodes are a few column operations.

Columns do not distinguish "no such resource" from "zero of it"; `allocatables` does. A node that offers only cpu and
memory, not even `pods`, has no account of other resources. In a session their idle amount is zero until a task leaves
the node: see `scalarless_rows`.
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
"""A request as (column, amount) pairs: cpu and memory always, and every scalar it names."""

OVERSUBSCRIPTION_CPU = "volcano.sh/oversubscription-cpu"
OVERSUBSCRIPTION_MEMORY = "volcano.sh/oversubscription-memory"


PODS_COLUMN = 2
"""The first column of a scalar, after cpu and memory."""

_MAX_CACHED_DEMANDS = 4096
_ACCOUNTS = ("allocatable", "idle", "used", "releasing", "pipelined")


class ResourceDimensions:
    """Column of each resource. Only grows."""

    __slots__ = ("_demand_by_amounts", "_demands", "index", "names")

    def __init__(self) -> None:
        self._demands: dict[Demand, Demand] = {}  # equal demands are one object, so that comparisons are quick
        # by the amounts in their original order
        self._demand_by_amounts: dict[tuple[object, ...], Demand] = {}
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
        key = (amounts.milli_cpu, amounts.memory, *scalars.items())
        found = self._demand_by_amounts.get(key)
        if found is None:
            scalar_columns = [(self.column_of(name), scalars[name]) for name in sorted(scalars)]
            if len(self._demand_by_amounts) >= _MAX_CACHED_DEMANDS:
                self._demand_by_amounts.clear()
                self._demands.clear()
            found = ((0, amounts.milli_cpu), (1, amounts.memory), *scalar_columns)
            found = self._demand_by_amounts[key] = self._demands.setdefault(found, found)
        return found


class NodeAccounts:
    def __init__(self, dimensions: ResourceDimensions) -> None:
        self.dimensions = dimensions
        self.count = 0
        self.allocatable = _empty_matrix(len(dimensions))
        self.idle = _empty_matrix(len(dimensions))
        self.used = _empty_matrix(len(dimensions))
        self.releasing = _empty_matrix(len(dimensions))
        self.pipelined = _empty_matrix(len(dimensions))
        self.max_tasks: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.allocatables: list[Amounts] = []  # as the nodes report them, oversubscription added
        self.tasks: list[dict[str, Task]] = []  # by row and uid
        # rows with only cpu and memory that no task of this session has left
        self.scalarless_rows: set[int] = set()
        self._scalarless: set[int] = set()
        self._total: Amounts | None = None  # sum of `allocatables`; None after a change

    def copy(self) -> NodeAccounts:
        """A session's own copy. Tasks by row are shared: the session restores what it changes."""
        copied = NodeAccounts.__new__(NodeAccounts)
        copied.dimensions, copied.count = self.dimensions, self.count
        copied.allocatable, copied.max_tasks = self.allocatable, self.max_tasks
        copied.allocatables, copied.tasks = self.allocatables, self.tasks
        copied.idle, copied.used = self.idle.copy(), self.used.copy()
        copied.releasing, copied.pipelined = self.releasing.copy(), self.pipelined.copy()
        copied.scalarless_rows, copied._scalarless = set(self._scalarless), self._scalarless
        if copied.scalarless_rows:
            copied.idle[PODS_COLUMN:, list(copied.scalarless_rows)] = 0.0
        copied._total = self.total()
        return copied

    # Accounts

    def demand(self, task: Task) -> Demand:
        """The task's request as columns; computed once per task."""
        found = task.demand
        if found is None:
            found = task.demand = self.dimensions.demand(task.resreq)
        if len(self.dimensions.names) > len(self.idle):  # another object can have added a resource to `dimensions`
            self.add_resource_columns()
        return found

    def add_task(self, row: int, task: Task) -> None:
        """Count a task on a row, according to its status."""
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
        """The inverse of `add_task`, by the status under which the task was counted."""
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
        """Count a request on a row that belongs to no task of the row."""
        self._add(self.idle, row, demand, -1.0)
        self._add(self.used, row, demand, 1.0)

    def add_pipelined(self, row: int, amounts: Amounts) -> None:
        """Count a pipelined request of a pod outside the session on a row."""
        demand = self.dimensions.demand(amounts)
        self.add_resource_columns()
        self._add(self.pipelined, row, demand, 1.0)

    @staticmethod
    def _add(matrix: FloatMatrix, row: int, demand: Demand, sign: float) -> None:
        for column, amount in demand:
            if amount:
                matrix[column, row] = matrix.item(column, row) + sign * amount

    # Queries

    def total(self) -> Amounts:
        """A copy of the total allocatable amounts. Summed again only after a node changed."""
        if self._total is None:
            self._total = Amounts()
            for offer in self.allocatables:
                self._total.add(offer)
        return self._total.clone()

    def future_idle(self) -> FloatMatrix:
        """Idle amounts after all releasing tasks are gone and all pipelined tasks are placed."""
        return (self.idle + self.releasing) - self.pipelined

    def fits(self, matrix: FloatMatrix, demand: Demand, rows: RowVector | None = None) -> BoolVector:
        """The rows (or those of `rows`) with enough of every resource."""
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
        """Whether a row has enough idle now, and whether it will have."""
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
        names = self.dimensions.names
        return [names[column] for column, amount in demand if not amount - matrix[column, row] < TOLERANCE]

    def amounts(self, matrix: FloatMatrix, row: int) -> Amounts:
        """One row of a matrix as amounts: the resources that the node names, and all that are not zero."""
        named = self.allocatables[row].scalars or {}
        scalars: dict[str, float] = {}
        for column in range(2, matrix.shape[0]):
            name, amount = self.dimensions.names[column], float(matrix[column, row])
            if amount or name in named:
                scalars[name] = amount
        return Amounts(float(matrix[0, row]), float(matrix[1, row]), scalars)

    # Rows

    def add_resource_columns(self) -> None:
        missing = len(self.dimensions) - len(self.idle)
        if missing <= 0:
            return
        rows = np.zeros((missing, self.idle.shape[1]))
        for name in _ACCOUNTS:
            setattr(self, name, np.concatenate((getattr(self, name), rows)))

    def resize(self, count: int) -> None:
        """Set the number of rows; new rows are empty."""
        before = self.count
        if count == before:
            return
        for name in _ACCOUNTS:
            matrix = np.zeros((len(self.dimensions), count))
            old = getattr(self, name)
            common = min(count, before)
            matrix[: len(old), :common] = old[:, :common]
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
        """Recompute rows from each node's allocatable amounts and tasks. None of the tasks is pipelined.

        Tasks with equal requests are summed together: one operation per distinct demand, not per task.
        """
        if rows:
            self._total = None
        rows_by_demand: dict[Demand, tuple[list[int], list[int]]] = {}  # all rows, releasing rows
        for row, (allocatable, tasks) in rows.items():
            self.allocatables[row] = allocatable
            self.max_tasks[row] = allocatable.max_task_num
            (self._scalarless.discard if allocatable.scalars else self._scalarless.add)(row)
            self.tasks[row] = {task.uid: task for task in tasks}
            for task in tasks:
                status = task.counted_status = task.status
                lists = rows_by_demand.get(task.demand or self.demand(task))
                if lists is None:
                    lists = rows_by_demand[self.demand(task)] = ([], [])
                lists[0].append(row)
                if status is TaskStatus.RELEASING:
                    lists[1].append(row)
        offers = {id(offer): self.dimensions.demand(offer) for offer, _ in rows.values()}
        self.add_resource_columns()
        where = np.fromiter(rows, np.intp, len(rows))
        for name in _ACCOUNTS:
            getattr(self, name)[:, where] = 0.0
        for row, (offer, _) in rows.items():
            for column, amount in offers[id(offer)]:
                self.allocatable[column, row] = amount
        for demand, (all_rows, releasing_rows) in rows_by_demand.items():
            self._count(self.used, demand, all_rows)
            self._count(self.releasing, demand, releasing_rows)
        self.idle[:, where] = self.allocatable[:, where] - self.used[:, where]

    def _count(self, matrix: FloatMatrix, demand: Demand, rows: list[int]) -> None:
        if rows:
            number = np.bincount(np.array(rows, dtype=np.intp), minlength=self.count)
            for column, amount in demand:
                if amount:
                    matrix[column] += amount * number

    @contextmanager
    def batched_changes(self) -> Iterator[NodeAccountChanges]:
        """Collect task changes and apply them at the end of the block: one operation per distinct demand."""
        sums = NodeAccountChanges(self)
        yield sums
        for demand, all_changes, releasing_changes in sums.by_demand.values():
            self._shift(self.used, demand, all_changes, 1.0)
            self._shift(self.idle, demand, all_changes, -1.0)
            self._shift(self.releasing, demand, releasing_changes, 1.0)

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
        """Recompute idle and used of a row from these tasks. Its other accounts stay."""
        self.idle[:, row] = self.allocatable[:, row]
        self.used[:, row] = 0.0
        for task in tasks:
            self.add_usage(row, self.demand(task))


class NodeAccountChanges:
    """Tasks added to and removed from rows, grouped by demand. None of them is pipelined."""

    __slots__ = ("_accounts", "by_demand")

    def __init__(self, accounts: NodeAccounts) -> None:
        self._accounts = accounts
        self.by_demand: dict[int, tuple[Demand, dict[int, int], dict[int, int]]] = {}  # changes of all and of releasing

    def add_task(self, row: int, task: Task) -> None:
        task.counted_status = task.status
        self._count(row, task, 1)

    def remove_task(self, row: int, task: Task) -> None:
        self._count(row, task, -1)
        task.counted_status = None

    def _count(self, row: int, task: Task, by: int) -> None:
        demand = task.demand or self._accounts.demand(task)
        found = self.by_demand.get(id(demand))  # equal demands are one object, and slow to hash
        if found is None:
            found = self.by_demand[id(demand)] = (self._accounts.demand(task), {}, {})
        rows = found[1]
        rows[row] = rows.get(row, 0) + by
        if task.counted_status is TaskStatus.RELEASING:
            found[2][row] = found[2].get(row, 0) + by


def is_sufficient(amount: float, have: FloatVector) -> BoolVector:
    """Where the amount fits. A negative column does not even fit a zero amount."""
    found: BoolVector = amount - have < TOLERANCE
    return found


def first_insufficient(
    requests: Iterable[tuple[RequestT, float]], have: Callable[[RequestT], FloatVector]
) -> Iterator[tuple[RequestT, BoolVector]]:
    """The resources that nodes lack: each node once, with the first that it lacks."""
    reported: BoolVector | None = None
    for resource, amount in requests:
        short = ~is_sufficient(amount, have(resource))
        if reported is not None:
            short &= ~reported
        if short.any():
            yield resource, short
        reported = short if reported is None else reported | short


def _empty_matrix(dimensions: int) -> FloatMatrix:
    return np.zeros((dimensions, 0))


def offered_amounts(node: NodeObject) -> Amounts:
    """A node's allocatable amounts plus its oversubscription annotations. Shared between equal nodes."""
    annotations = node.metadata.annotations
    oversubscription = (annotations.get(OVERSUBSCRIPTION_CPU), annotations.get(OVERSUBSCRIPTION_MEMORY))
    return _offered_amounts(tuple(node.status.allocatable.items()), *oversubscription)


@lru_cache(maxsize=1024)
def _offered_amounts(allocatable: tuple[tuple[str, QuantityText], ...], cpu: str | None, memory: str | None) -> Amounts:
    return Amounts.of(dict(allocatable)).add(Amounts(_parse_number(cpu), _parse_number(memory)))


def capacity_of(node: NodeObject) -> Amounts:
    annotations = node.metadata.annotations
    oversubscription = Amounts(
        _parse_number(annotations.get(OVERSUBSCRIPTION_CPU)), _parse_number(annotations.get(OVERSUBSCRIPTION_MEMORY))
    )
    return Amounts.of(node.status.capacity).add(oversubscription)


def _parse_number(text: str | None) -> float:
    try:
        return float(text) if text is not None else 0.0
    except ValueError:
        return 0.0
