"""Scores all nodes equally: the baseline for the other policies."""

from __future__ import annotations

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.plugins.gpu.gpu_columns import GpuColumns, tightest_devices
from bayplan.plugins.gpu.gpu_requests import DeviceIndexes, GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import BasicGpuPolicy
from bayplan.snapshot import IntVector, NodeTable, RowVector


class GpuRandom(BasicGpuPolicy):
    """Any node with room, and any device of it. The scheduler breaks the tie."""

    name = "GpuRandom"

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        del cycle, nodes, request, gpus
        return np.zeros(len(rows), dtype=np.int64)

    def devices_for(self, cycle: Cycle, request: GpuMilliRequest, row: int) -> DeviceIndexes:
        del cycle
        remaining = self.gpus.free_of_row(row)
        if not request.shares:
            return tightest_devices(remaining, request)
        fitting = [number for number, amount in enumerate(remaining) if amount >= request.milli]
        return (self._handle.random.choice(fitting),) if fitting else ()
