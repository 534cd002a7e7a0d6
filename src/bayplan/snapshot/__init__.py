"""Frozen columns: the cluster as an attempt, a session or a simulation sees it."""

from bayplan.objects.catalog import Catalog
from bayplan.snapshot.columns import ImageState, NodeColumns
from bayplan.snapshot.intern_tables import (
    BoolVector,
    IdVector,
    IntVector,
    PodKind,
    Vocabulary,
)
from bayplan.snapshot.labels import LabelColumn
from bayplan.snapshot.pod_info import SMALL, PodInfo
from bayplan.snapshot.pods import PodChange, PodColumns
from bayplan.snapshot.snapshot import Snapshot
from bayplan.snapshot.table import NodeTable, NodeView, RowVector

__all__ = [
    "SMALL",
    "BoolVector",
    "Catalog",
    "IdVector",
    "ImageState",
    "IntVector",
    "LabelColumn",
    "NodeColumns",
    "NodeTable",
    "NodeView",
    "PodChange",
    "PodColumns",
    "PodInfo",
    "PodKind",
    "RowVector",
    "Snapshot",
    "Vocabulary",
]
