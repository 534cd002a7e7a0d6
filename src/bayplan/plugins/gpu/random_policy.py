"""No opinion at all: the yardstick that every policy for shared GPUs is measured against."""

from __future__ import annotations

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.plugins.gpu.gpu_columns import GpuColumns, tightest_devices
from bayplan.plugins.gpu.gpu_requests import DeviceIndexes, GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import BasicGpuPolicy
from bayplan.snapshot import IntVector, NodeTable, RowVector


class GpuRandom(BasicGpuPolicy):
    """Any node that has room, and any device of it. Equal scores are left to the scheduler's own tie break."""

    name = "GpuRandom"

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        del cycle, nodes, ask, gpus
        return np.zeros(len(rows), dtype=np.int64)

    def devices_for(self, cycle: Cycle, ask: GpuMilliRequest, row: int) -> DeviceIndexes:
        del cycle
        left = self.gpus.row_left(row)
        if not ask.shares:
            return tightest_devices(left, ask)
        fitting = [number for number, amount in enumerate(left) if amount >= ask.milli]
        return (self._handle.random.choice(fitting),) if fitting else ()
