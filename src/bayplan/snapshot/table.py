"""What a plugin sees of the nodes: all rows at once (`NodeTable`), or one of them (`NodeInfo`).

A table is a view of columns, whole or narrowed to some rows; everything it returns has one entry a row of the table,
in its order, so a plugin need not know which of the two it was given. Whole columns are returned without copying, and
refuse to be written: whoever wants to change one copies it.
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
    """One node with what is on it."""

    __slots__ = ("columns", "row")

    def __init__(self, columns: NodeColumns, row: int) -> None:
        self.columns = columns
        self.row = row

    @property
    def name(self) -> str:
        return self.columns.names[self.row]

    @property
    def node(self) -> Node:
        """The API object."""
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
        """Milli-CPUs, bytes or a count; 0 for what the node does not have."""
        return self._amount(self.columns.allocatable, resource)

    def requested(self, resource: str) -> int:
        """What the pods on the node ask for."""
        return self._amount(self.columns.requested, resource)

    def free(self, resource: str) -> int:
        return self.allocatable(resource) - self.requested(resource)

    def _amount(self, matrix: npt.NDArray[np.int64], resource: str) -> int:
        number = self.columns.vocabulary.resources.find(resource)
        return int(matrix[number, self.row]) if 0 <= number < matrix.shape[0] else 0


class NodeTable:
    """Rows of nodes, one entry a row in everything it returns."""

    __slots__ = ("_rows", "columns")

    def __init__(self, columns: NodeColumns, rows: RowVector | None = None) -> None:
        self.columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self.columns.count if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[NodeInfo]:
        """Node by node: for what cannot be said of all rows at once."""
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
        """A mask of no entry at all; the same one for equally long tables."""
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
        """The entries where `keep` is true; the table itself where that is all of them."""
        return self if keep.all() else NodeTable(self.columns, self.rows[keep])

    # columns ----------------------------------------------------------------------------------------------------

    def column_at_rows(self, column: npt.NDArray[V]) -> npt.NDArray[V]:
        """A column over all rows, as this table sees it. A whole one is the column itself, and cannot be written."""
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
        """Milli-CPUs asked for, with a guess for containers that ask for none."""
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

    # questions --------------------------------------------------------------------------------------------------

    def label(self, key: str) -> LabelColumn:
        """The column of a label key over all rows; `label_ids` narrows it to this table."""
        return self.columns.labels.column(key)

    def label_ids(self, key: str) -> IdVector:
        """For each entry the id of the label's value, -1 where the node lacks the key."""
        return self.column_at_rows(self.label(key).ids)

    def where_label(self, key: str, accepts: Callable[[str], bool]) -> BoolVector:
        """Entries that have the key with an accepted value. Asked once a distinct value."""
        column = self.label(key)
        answers = np.fromiter((accepts(value) for value in column.values), dtype=np.bool_, count=len(column.values))
        return _answers_by_id(answers, self.label_ids(key))

    def where_label_in(self, key: str, values: Iterable[str]) -> BoolVector:
        """Entries whose label has one of the values. Cost does not depend on how many values the nodes have."""
        column = self.label(key)
        answers = np.zeros(len(column.values), dtype=np.bool_)
        for value in values:
            number = column.find(value)
            if number >= 0:
                answers[number] = True
        return _answers_by_id(answers, self.label_ids(key))

    def where_named(self, names: Iterable[str]) -> BoolVector:
        """Entries of these names."""
        mask = np.zeros(self.columns.count, dtype=np.bool_)
        for name in names:
            row = self.columns.index.get(name)
            if row is not None:
                mask[row] = True
        return self.column_at_rows(mask)

    def where_taints(self, accepts: Callable[[tuple[Taint, ...]], bool]) -> BoolVector:
        """Entries whose taints satisfy the predicate. Asked once a distinct list of taints."""
        return self._where(self.columns.vocabulary.taints, self.columns.taint_ids, accepts)

    def count_taints(self, count: Callable[[tuple[Taint, ...]], int]) -> IntVector:
        """A number for each entry from its taints, computed once a distinct list."""
        taints = self.columns.vocabulary.taints
        answers = np.zeros(len(taints), dtype=np.int64)
        for number, value in taints.items():
            answers[number] = count(value)
        return answers[self.column_at_rows(self.columns.taint_ids)]

    def where_features(self, accepts: Callable[[frozenset[str]], bool]) -> BoolVector:
        """Entries whose declared features satisfy the predicate."""
        return self._where(self.columns.vocabulary.features, self.columns.feature_ids, accepts)

    def where_port_taken(self, port: HostPort) -> BoolVector:
        """Entries where some pod holds a host port that conflicts with this one."""
        mask = np.zeros(self.columns.count, dtype=np.bool_)
        holders = self.columns.port_rows.get((port.protocol, port.port), {})
        if port.address == ANY_ADDRESS:
            mask[list(holders)] = True
        else:
            mask[[row for row, taken in holders.items() if port.address in taken or ANY_ADDRESS in taken]] = True
        return self.column_at_rows(mask)

    def image(self, name: str) -> tuple[IntVector, IntVector]:
        """For each entry the size of an image and on how many nodes it is; zeros where the node lacks it."""
        column = self.columns.image_column(name)
        if column is None:
            nothing = np.zeros(len(self), dtype=np.int64)
            return nothing, nothing
        return self.column_at_rows(column[0]), self.column_at_rows(column[1])

    def _where(self, interner: Interner[Any], ids: IdVector, accepts: Callable[[Any], bool]) -> BoolVector:
        answers = np.zeros(len(interner), dtype=np.bool_)
        for number, value in interner.items():
            answers[number] = accepts(value)
        return answers[self.column_at_rows(ids)]

    def _resource(self, matrix: npt.NDArray[np.int64], resource: str) -> IntVector:
        number = self.columns.vocabulary.resources.find(resource)
        if number < 0 or number >= matrix.shape[0]:
            return np.zeros(len(self), dtype=np.int64)
        return self.column_at_rows(matrix[number])


@lru_cache(maxsize=64)
def _empty_mask(length: int) -> BoolVector:
    mask = np.zeros(length, dtype=np.bool_)
    mask.flags.writeable = False
    return mask


def _answers_by_id(answers: BoolVector, ids: IdVector) -> BoolVector:
    """An answer for each id, with false for id -1."""
    return np.append(answers, False)[ids]
