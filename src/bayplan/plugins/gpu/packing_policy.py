"""Where do GPUs that are in use have room? Untouched nodes are kept for pods that need all of one."""

from __future__ import annotations

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import DEVICE_MILLI, GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import BasicGpuPolicy
from bayplan.snapshot import IntVector, NodeTable, RowVector

_NODE_IN_USE = MAX_SCORE // 2
_FRESH_DEVICE = _NODE_IN_USE - 1
_FRESH_NODE = MAX_SCORE // 3
_UNITS_PER_POINT = DEVICE_MILLI // 10


class GpuPacking(BasicGpuPolicy):
    """Prefers the fullest device that has room, then a free device of a node in use, then the smallest free node."""

    name = "GpuPacking"
    scores_plain_pods = False

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        del cycle, nodes
        devices = gpus.devices[rows]
        if ask.shares:
            left = gpus.left[rows]
            least = np.where(left >= ask.milli, left, DEVICE_MILLI).min(axis=1)
            in_use: IntVector = np.where(least < DEVICE_MILLI, MAX_SCORE - least // _UNITS_PER_POINT, _FRESH_DEVICE)
        else:
            in_use = np.full(len(rows), _NODE_IN_USE - ask.count, dtype=np.int64)
        return np.where(gpus.free[rows] == devices, _FRESH_NODE - devices, in_use)
