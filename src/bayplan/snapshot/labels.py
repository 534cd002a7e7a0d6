"""Node labels as columns: for each label key one id for each row.

A column is built when its key is first read and then updated row by row, so only keys that selectors and topologies use
cost anything. Ids count from 0 in the order of first occurrence; a row without the key has -1. A topology domain is an
id of such a column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bayplan.objects.core import Node
from bayplan.snapshot.intern_tables import IdVector

_SLACK = 64


class LabelColumn:
    """The values of one label key on all rows."""

    __slots__ = ("ids", "index", "key", "values")

    def __init__(self, key: str, ids: IdVector, index: dict[str, int], values: list[str]) -> None:
        self.key = key
        self.ids = ids
        self.index = index
        self.values = values

    def find(self, value: str) -> int:
        """Return the id of a value, or -1 if no row has it."""
        return self.index.get(value, -1)

    def value_of(self, row: int) -> str | None:
        value_id = int(self.ids[row])
        return self.values[value_id] if value_id >= 0 else None

    def put(self, row: int, value: str | None) -> None:
        if value is None:
            self.ids[row] = -1
            return
        value_id = self.index.get(value)
        if value_id is None:
            value_id = self.index[value] = len(self.values)
            self.values.append(value)
        self.ids[row] = value_id


class LabelColumns:
    """The label columns of one table of nodes, built on demand."""

    __slots__ = ("_columns", "_nodes", "_parent", "_rows")

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._columns: dict[str, LabelColumn] = {}
        self._parent: LabelColumns | None = None
        self._rows: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def fork(self, nodes: Sequence[Node], rows: npt.NDArray[np.intp]) -> LabelColumns:
        """Return columns of some rows that share ids with these columns."""
        forked = LabelColumns(nodes)
        forked._parent, forked._rows = self, rows
        return forked

    def column(self, key: str) -> LabelColumn:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = self._derive(key) if self._parent else self._build(key)
        return column

    def put(self, row: int, node: Node) -> None:
        """Set the labels of a row from its node."""
        labels = node.metadata.labels
        for column in self._columns.values():
            if row >= len(column.ids):
                column.ids = _resize(column.ids, row + 1)
            column.put(row, labels.get(column.key))

    def forget_stale_values(self, count: int) -> None:
        """Drop columns with mostly unused values, caused by node churn. They are rebuilt on demand."""
        for key in [key for key, column in self._columns.items() if len(column.values) > 2 * count + _SLACK]:
            del self._columns[key]

    def _build(self, key: str) -> LabelColumn:
        column = LabelColumn(key, np.full(max(len(self._nodes), 1), -1, dtype=np.intp), {}, [])
        for row, node in enumerate(self._nodes):
            value = node.metadata.labels.get(key)
            if value is not None:
                column.put(row, value)
        return column

    def _derive(self, key: str) -> LabelColumn:
        assert self._parent is not None
        parent = self._parent.column(key)
        return LabelColumn(key, parent.ids[self._rows], parent.index, parent.values)


def _resize(ids: IdVector, at_least: int) -> IdVector:
    resized = np.full(max(at_least, 2 * len(ids)), -1, dtype=np.intp)
    resized[: len(ids)] = ids
    return resized
