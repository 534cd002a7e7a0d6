"""Snapshot: the cluster during one attempt, as frozen columns of nodes and pods plus the catalog."""

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
    """Columns that only `Cache.refresh` changes, never during an attempt."""

    def __init__(self, vocabulary: InternTables, catalog: Catalog) -> None:
        self.vocabulary = vocabulary
        self.catalog = catalog
        self.nodes = NodeColumns(vocabulary)
        self.pods = PodColumns(vocabulary)
        # rows alternating between zones: the order in which nodes are visited
        self.order: RowVector = np.zeros(0, dtype=np.intp)
        self.touched = ChangeJournal()  # rows in the order of their updates: their pods or their node changed
        self.renewed = ChangeJournal()  # the subset with another node object
        self.cache_progress: object = None  # the progress record of the cache for this snapshot
        self.generation = 0
        self.layout = 0  # changes when rows are added, removed or moved

    @property
    def table(self) -> NodeTable:
        return NodeTable(self.nodes)

    def rows_named(self, names: Iterable[str]) -> RowVector:
        """Return the rows of the existing nodes with these names, in order."""
        return np.flatnonzero(self.table.where_named(names))

    @property
    def nodes_version(self) -> int:
        """Changes whenever a node is added, removed or changed."""
        return self.renewed.end

    def __len__(self) -> int:
        return self.nodes.count
