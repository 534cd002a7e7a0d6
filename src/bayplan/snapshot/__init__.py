"""Frozen columns: the cluster as an attempt, a session or a simulation sees it."""

from bayplan.objects.catalog import Catalog
from bayplan.snapshot.columns import ImageState, NodeColumns
from bayplan.snapshot.intern_tables import BoolVector, IdVector, InternTables, IntVector, NamespacedLabels
from bayplan.snapshot.labels import LabelColumn
from bayplan.snapshot.pod_info import FLOAT_EXACT_LIMIT, PodInfo
from bayplan.snapshot.pods import PodChange, PodColumns
from bayplan.snapshot.snapshot import Snapshot
from bayplan.snapshot.table import NodeInfo, NodeTable, RowVector

__all__ = [
    "FLOAT_EXACT_LIMIT",
    "BoolVector",
    "Catalog",
    "IdVector",
    "ImageState",
    "IntVector",
    "InternTables",
    "LabelColumn",
    "NamespacedLabels",
    "NodeColumns",
    "NodeInfo",
    "NodeTable",
    "PodChange",
    "PodColumns",
    "PodInfo",
    "RowVector",
    "Snapshot",
]
