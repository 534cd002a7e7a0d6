"""The cluster as one attempt sees it: frozen columns of nodes and pods, and the catalog they were read with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bayplan.objects.catalog import Catalog
from bayplan.snapshot.columns import NodeColumns
from bayplan.snapshot.intern_tables import InternTables
from bayplan.snapshot.journal import ChangeJournal
from bayplan.snapshot.pods import PodColumns
from bayplan.snapshot.table import NodeTable, RowVector


class Snapshot:
    """Columns that only `Cache.refresh` changes, and never during an attempt."""

    def __init__(self, vocabulary: InternTables, catalog: Catalog) -> None:
        self.vocabulary = vocabulary
        self.catalog = catalog
        self.nodes = NodeColumns(vocabulary)
        self.pods = PodColumns(vocabulary)
        self.order: RowVector = np.zeros(0, dtype=np.intp)  # rows, zones taking turns: the order of sampling
        self.touched = ChangeJournal()  # rows in the order they were refreshed: their pods or their node changed
        self.renewed = ChangeJournal()  # those of them that show another version of their node, or another node
        self.follower: object = None  # the cache's own note about how far this snapshot has come
        self.generation = 0
        self.layout = 0  # changes when rows were added, dropped or moved

    @property
    def table(self) -> NodeTable:
        """All nodes."""
        return NodeTable(self.nodes)

    def rows_named(self, names: Iterable[str]) -> RowVector:
        """The rows of nodes of these names, as far as they are there, in order."""
        return np.flatnonzero(self.table.where_named(names))

    @property
    def nodes_version(self) -> int:
        """Another one whenever a node has come, gone or changed."""
        return self.renewed.end

    def __len__(self) -> int:
        return self.nodes.count
