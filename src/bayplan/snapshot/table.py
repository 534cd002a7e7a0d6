"""What a plugin sees of the nodes: all rows at once (`NodeTable`), or one of them (`NodeInfo`).

A table is a view of columns, complete or restricted to some rows. Everything that it returns has one entry for each row
of the table, in its order, so a plugin need not know which kind it has. Complete columns are returned without a copy
and are read-only: a plugin that changes one must copy it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from bayplan.objects.core import Node, Taint
from bayplan.objects.ports import ANY_ADDRESS, HostPort
from bayplan.snapshot.columns import ImageState, NodeColumns
from bayplan.snapshot.intern_tables import BoolVector, IdVector, IntVector
from bayplan.snapshot.interner import Interner
from bayplan.snapshot.labels import LabelColumn
from bayplan.snapshot.pod_info import PodInfo

if TYPE_CHECKING:
    from bayplan.snapshot.snapshot import Snapshot

RowVector = npt.NDArray[np.intp]
V = TypeVar("V", bound=Any)


class NodeInfo:
    """One node with its pods, ports and images."""

    __slots__ = ("columns", "row")

    def __init__(self, columns: NodeColumns, row: int) -> None:
        self.columns = columns
        self.row = row

    @property
    def name(self) -> str:
        return self.columns.names[self.row]

    @property
    def node(self) -> Node:
        return self.columns.nodes[self.row]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.node.spec.taints

    @property
    def pods(self) -> list[PodInfo]:
        return self.columns.pods[self.row]

    @property
    def ports(self) -> set[HostPort]:
        return self.columns.ports[self.row]

    @property
    def images(self) -> Mapping[str, ImageState]:
        return self.columns.images[self.row]

    @property
    def single_row_table(self) -> NodeTable:
        """This node as a table of one row."""
        return NodeTable(self.columns, np.array([self.row], dtype=np.intp))

    def allocatable(self, resource: str) -> int:
        """Return milli-CPUs, bytes or a count; 0 if the node does not have the resource."""
        return self._amount(self.columns.allocatable, resource)

    def requested(self, resource: str) -> int:
        """Return the sum of the requests of the pods on the node."""
        return self._amount(self.columns.requested, resource)

    def free(self, resource: str) -> int:
        return self.allocatable(resource) - self.requested(resource)

    def _amount(self, matrix: npt.NDArray[np.int64], resource: str) -> int:
        index = self.columns.vocabulary.resources.find(resource)
        return int(matrix[index, self.row]) if 0 <= index < matrix.shape[0] else 0


class NodeTable:
    """Rows of nodes. Everything that it returns has one entry for each row."""

    __slots__ = ("_rows", "columns")

    def __init__(self, columns: NodeColumns, rows: RowVector | None = None) -> None:
        self.columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self.columns.count if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[NodeInfo]:
        """Iterate over single nodes, for plugins that cannot process all rows at once."""
        return (NodeInfo(self.columns, row) for row in self.rows.tolist())

    def __getitem__(self, position: int) -> NodeInfo:
        return NodeInfo(self.columns, position if self._rows is None else int(self._rows[position]))

    @property
    def is_whole(self) -> bool:
        return self._rows is None

    def is_all_of(self, snapshot: Snapshot) -> bool:
        """Whether this is every row of a snapshot, in its order."""
        return self._rows is None and self.columns is snapshot.nodes

    @property
    def no_rows_mask(self) -> BoolVector:
        """A mask without any entry set. Tables of equal length share one object."""
        return _empty_mask(len(self))

    @property
    def rows(self) -> RowVector:
        """The row of each entry in the underlying columns."""
        return np.arange(self.columns.count) if self._rows is None else self._rows

    @property
    def names(self) -> list[str]:
        names = self.columns.names
        return names if self._rows is None else [names[row] for row in self._rows.tolist()]

    def restricted_to(self, keep: BoolVector) -> NodeTable:
        """Return the entries where `keep` is true; the table itself if these are all."""
        return self if keep.all() else NodeTable(self.columns, self.rows[keep])

    def column_at_rows(self, column: npt.NDArray[V]) -> npt.NDArray[V]:
        """Return the entries of this table in a column over all rows. A complete column is a read-only view."""
        if self._rows is not None:
            return column[self._rows]
        view = column[: self.columns.count]
        view.flags.writeable = False
        return view

    def allocatable(self, resource: str) -> IntVector:
        return self._resource(self.columns.allocatable, resource)

    def requested(self, resource: str) -> IntVector:
        return self._resource(self.columns.requested, resource)

    @property
    def nonzero_cpu(self) -> IntVector:
        """Milli-CPU requests, with kube-scheduler's default for containers without a request."""
        return self.column_at_rows(self.columns.nonzero[0])

    @property
    def nonzero_memory(self) -> IntVector:
        return self.column_at_rows(self.columns.nonzero[1])

    @property
    def pod_count(self) -> IntVector:
        return self.column_at_rows(self.columns.pod_count)

    @property
    def unschedulable(self) -> BoolVector:
        return self.column_at_rows(self.columns.unschedulable)

    def label(self, key: str) -> LabelColumn:
        """Return the column of a label key over all rows; `label_ids` restricts it to this table."""
        return self.columns.labels.column(key)

    def label_ids(self, key: str) -> IdVector:
        """Return the id of the label's value for each entry, -1 if the node lacks the key."""
        return self.column_at_rows(self.label(key).ids)

    def where_label(self, key: str, accepts: Callable[[str], bool]) -> BoolVector:
        """Return the entries that have the key with an accepted value. Evaluated once for each distinct value."""
        column = self.label(key)
        answers = np.fromiter((accepts(value) for value in column.values), dtype=np.bool_, count=len(column.values))
        return _answers_by_id(answers, self.label_ids(key))

    def where_label_in(self, key: str, values: Iterable[str]) -> BoolVector:
        """Return the entries whose label has one of the values. The cost does not depend on the values of the nodes."""
        column = self.label(key)
        answers = np.zeros(len(column.values), dtype=np.bool_)
        for value in values:
            index = column.find(value)
            if index >= 0:
                answers[index] = True
        return _answers_by_id(answers, self.label_ids(key))

    def where_named(self, names: Iterable[str]) -> BoolVector:
        mask = np.zeros(self.columns.count, dtype=np.bool_)
        for name in names:
            row = self.columns.index.get(name)
            if row is not None:
                mask[row] = True
        return self.column_at_rows(mask)

    def where_taints(self, accepts: Callable[[tuple[Taint, ...]], bool]) -> BoolVector:
        """Return the entries whose taints satisfy the predicate. Evaluated once for each distinct list of taints."""
        return self._matches(self.columns.vocabulary.taints, self.columns.taint_ids, accepts)

    def count_taints(self, count: Callable[[tuple[Taint, ...]], int]) -> IntVector:
        """Return a number for each entry from its taints, computed once for each distinct list."""
        taints = self.columns.vocabulary.taints
        answers = np.zeros(len(taints), dtype=np.int64)
        for index, value in taints.items():
            answers[index] = count(value)
        return answers[self.column_at_rows(self.columns.taint_ids)]

    def where_features(self, accepts: Callable[[frozenset[str]], bool]) -> BoolVector:
        return self._matches(self.columns.vocabulary.features, self.columns.feature_ids, accepts)

    def where_port_taken(self, port: HostPort) -> BoolVector:
        """Return the entries where a pod holds a host port that conflicts with this one."""
        mask = np.zeros(self.columns.count, dtype=np.bool_)
        ports_by_row = self.columns.port_rows.get((port.protocol, port.port), {})
        if port.address == ANY_ADDRESS:
            mask[list(ports_by_row)] = True
        else:
            mask[
                [
                    row
                    for row, addresses in ports_by_row.items()
                    if port.address in addresses or ANY_ADDRESS in addresses
                ]
            ] = True
        return self.column_at_rows(mask)

    def image(self, name: str) -> tuple[IntVector, IntVector]:
        """Return the size of an image and its number of nodes for each entry; zeros if the node lacks it."""
        column = self.columns.image_column(name)
        if column is None:
            zeros = np.zeros(len(self), dtype=np.int64)
            return zeros, zeros
        return self.column_at_rows(column[0]), self.column_at_rows(column[1])

    def _matches(self, interner: Interner[Any], ids: IdVector, accepts: Callable[[Any], bool]) -> BoolVector:
        answers = np.zeros(len(interner), dtype=np.bool_)
        for index, value in interner.items():
            answers[index] = accepts(value)
        return answers[self.column_at_rows(ids)]

    def _resource(self, matrix: npt.NDArray[np.int64], resource: str) -> IntVector:
        index = self.columns.vocabulary.resources.find(resource)
        if index < 0 or index >= matrix.shape[0]:
            return np.zeros(len(self), dtype=np.int64)
        return self.column_at_rows(matrix[index])


@lru_cache(maxsize=64)
def _empty_mask(length: int) -> BoolVector:
    mask = np.zeros(length, dtype=np.bool_)
    mask.flags.writeable = False
    return mask


def _answers_by_id(answers: BoolVector, ids: IdVector) -> BoolVector:
    """Return the result for each id; False for id -1."""
    return np.append(answers, False)[ids]
