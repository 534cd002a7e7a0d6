"""Scores nodes so that used GPUs are filled first; unused nodes stay free for pods that need all of one."""

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
    """Prefers the fullest device with room, then a free device of a used node, then the smallest unused node."""

    name = "GpuPacking"
    scores_plain_pods = False

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        del cycle, nodes
        devices = gpus.devices[rows]
        if request.shares:
            remaining = gpus.remaining[rows]
            smallest = np.where(remaining >= request.milli, remaining, DEVICE_MILLI).min(axis=1)
            in_use: IntVector = np.where(
                smallest < DEVICE_MILLI, MAX_SCORE - smallest // _UNITS_PER_POINT, _FRESH_DEVICE
            )
        else:
            in_use = np.full(len(rows), _NODE_IN_USE - request.count, dtype=np.int64)
        return np.where(gpus.free[rows] == devices, _FRESH_NODE - devices, in_use)
