"""No opinion at all: the yardstick that every policy for shared GPUs is measured against."""

from __future__ import annotations

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.plugins.gpu.gpu_columns import GpuColumns, tightest
from bayplan.plugins.gpu.gpu_requests import Devices, GpuAsk
from bayplan.plugins.gpu.shared_gpu_policy import PlainGpuPolicy
from bayplan.snapshot import IntVector, NodeTable, RowVector


class GpuRandom(PlainGpuPolicy):
    """Any node that has room, and any device of it. Equal scores are left to the scheduler's own tie break."""

    name = "GpuRandom"

    def worth(self, cycle: Cycle, nodes: NodeTable, ask: GpuAsk, gpus: GpuColumns, rows: RowVector) -> IntVector:
        del cycle, nodes, ask, gpus
        return np.zeros(len(rows), dtype=np.int64)

    def devices_for(self, cycle: Cycle, ask: GpuAsk, row: int) -> Devices:
        del cycle
        left = self.gpus.row_left(row)
        if not ask.shares:
            return tightest(left, ask)
        fitting = [number for number, amount in enumerate(left) if amount >= ask.milli]
        return (self._handle.chance.choice(fitting),) if fitting else ()
