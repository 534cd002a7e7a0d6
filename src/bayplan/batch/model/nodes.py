"""The nodes of a session: a single node as an object, or many as columns.

Both are views of the accounts (`accounts`) and of the snapshot that the framework's plugins read. Creating one costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.node_accounts import FloatMatrix, FloatVector, NodeAccounts, capacity_of
from bayplan.batch.model.tasks import Task
from bayplan.objects.core import Node as NodeObject
from bayplan.snapshot import BoolVector, NodeInfo, NodeTable, RowVector, Snapshot

__all__ = ["REVOCABLE_ZONE", "FloatVector", "Node", "NodeUsage", "Nodes"]

REVOCABLE_ZONE = "volcano.sh/revocable-zone"


@dataclass(slots=True)
class NodeUsage:
    """Measured load of a node in percent, averaged over each period; `age_s` is its age."""

    age_s: float
    cpu: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)


class Node:
    __slots__ = ("nodes", "row")

    def __init__(self, nodes: Nodes, row: int) -> None:
        self.nodes = nodes
        self.row = row

    @property
    def name(self) -> str:
        return self.nodes.snapshot.nodes.names[self.row]

    @property
    def node(self) -> NodeObject:
        return self.nodes.snapshot.nodes.nodes[self.row]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels

    @property
    def view(self) -> NodeInfo:
        """The node as the framework's plugins see it."""
        return NodeInfo(self.nodes.snapshot.nodes, self.row)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks on it by uid: running, releasing, and those allocated or pipelined in this session."""
        return self.nodes.accounts.tasks[self.row]

    @property
    def allocatable(self) -> Amounts:
        """Shared: clone before changing it."""
        return self.nodes.accounts.allocatables[self.row]

    @property
    def capacity(self) -> Amounts:
        return capacity_of(self.node)

    @property
    def idle(self) -> Amounts:
        return self._amounts(self.nodes.accounts.idle)

    @property
    def used(self) -> Amounts:
        return self._amounts(self.nodes.accounts.used)

    @property
    def releasing(self) -> Amounts:
        return self._amounts(self.nodes.accounts.releasing)

    @property
    def pipelined(self) -> Amounts:
        return self._amounts(self.nodes.accounts.pipelined)

    @property
    def future_idle(self) -> Amounts:
        return self.idle.add(self.releasing).sub_unchecked(self.pipelined)

    @property
    def revocable_zone(self) -> str:
        return self.labels.get(REVOCABLE_ZONE, "")

    @property
    def usage(self) -> NodeUsage | None:
        return self.nodes.usage.get(self.name)

    def fits_idle(self, task: Task) -> bool:
        """Whether the task can start now."""
        return self.nodes.accounts.fits_idle(self.row, self.nodes.accounts.demand(task))

    def fits_future(self, task: Task) -> bool:
        """Whether the task can start once all releasing tasks are gone."""
        return self.nodes.accounts.fits_future(self.row, self.nodes.accounts.demand(task))

    def _amounts(self, matrix: FloatMatrix) -> Amounts:
        return self.nodes.accounts.amounts(matrix, self.row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.row == self.row and other.nodes.snapshot is self.nodes.snapshot

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Node({self.name})"


class Nodes(Sequence[Node]):
    """All nodes of a session, or a selection: by name, by row, or as columns with one entry per node."""

    __slots__ = ("_rows", "accounts", "snapshot", "usage")

    def __init__(
        self,
        snapshot: Snapshot,
        accounts: NodeAccounts,
        rows: RowVector | None = None,
        usage: Mapping[str, NodeUsage] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.accounts = accounts
        self.usage: Mapping[str, NodeUsage] = usage if usage is not None else {}
        self._rows = rows

    def __len__(self) -> int:
        return self.accounts.count if self._rows is None else len(self._rows)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return Nodes(self.snapshot, self.accounts, self.rows[position], self.usage)
        return Node(self, int(self.rows[position]))

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, row) for row in self.rows.tolist())

    def __contains__(self, name: object) -> bool:
        return name in self.snapshot.nodes.index

    def get(self, name: str) -> Node | None:
        """The node of this name, whether it is in the selection or not."""
        row = self.snapshot.nodes.index.get(name)
        return None if row is None else Node(self, row)

    def at_row(self, row: int) -> Node:
        return Node(self, row)

    def select_rows(self, rows: RowVector) -> Nodes:
        return Nodes(self.snapshot, self.accounts, rows, self.usage)

    @property
    def is_whole(self) -> bool:
        return self._rows is None

    @property
    def rows(self) -> RowVector:
        return np.arange(self.accounts.count, dtype=np.intp) if self._rows is None else self._rows

    @property
    def names(self) -> list[str]:
        names = self.snapshot.nodes.names
        return list(names) if self._rows is None else [names[row] for row in self._rows.tolist()]

    @property
    def table(self) -> NodeTable:
        """The selected nodes as the framework's plugins see them: labels, taints, pods."""
        return NodeTable(self.snapshot.nodes, self._rows)

    # Columns, one entry per node; read-only

    def idle(self, resource: str) -> FloatVector:
        return self._column(self.accounts.idle, resource)

    def used(self, resource: str) -> FloatVector:
        return self._column(self.accounts.used, resource)

    def releasing(self, resource: str) -> FloatVector:
        return self._column(self.accounts.releasing, resource)

    def pipelined(self, resource: str) -> FloatVector:
        return self._column(self.accounts.pipelined, resource)

    def allocatable(self, resource: str) -> FloatVector:
        return self._column(self.accounts.allocatable, resource)

    def future_idle(self, resource: str) -> FloatVector:
        return (self.idle(resource) + self.releasing(resource)) - self.pipelined(resource)

    def fits_idle(self, task: Task) -> BoolVector:
        return self.accounts.fits(self.accounts.idle, self.accounts.demand(task), self._rows)

    def fits_future(self, task: Task) -> BoolVector:
        return self.accounts.fits(self.accounts.future_idle(), self.accounts.demand(task), self._rows)

    def _column(self, matrix: FloatMatrix, resource: str) -> FloatVector:
        number = self.accounts.dimensions.index.get(resource)
        if number is None or number >= len(matrix):
            return np.zeros(len(self))
        column: FloatVector = matrix[number] if self._rows is None else matrix[number, self._rows]
        return column
