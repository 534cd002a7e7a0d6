"""Which node's shape is least like the pod's? The smallest dot product of what is asked and what is left wins."""

from __future__ import annotations

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import (
    MAX_CPU_MILLI,
    MAX_GPU_MILLI,
    BasicGpuPolicy,
    free_cpu,
    requested_cpu,
)
from bayplan.snapshot import IntVector, NodeTable, RowVector

_GPU_SCALE = (MAX_CPU_MILLI // MAX_GPU_MILLI) ** 2
"""What brings a product of two GPU amounts to the measure of a product of two CPU amounts."""

_WHOLE_PRODUCT = 2 * MAX_CPU_MILLI**2 // MAX_SCORE
"""So much of both products together costs one point."""


class GpuDotProduct(BasicGpuPolicy):
    """Prefers nodes where CPU and GPU that are left have little to do with CPU and GPU that are asked for."""

    name = "GpuDotProduct"
    reads_cpu = True

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        product = free_cpu(nodes) * requested_cpu(cycle) + gpus.total[rows] * (ask.total * _GPU_SCALE)
        scores: IntVector = MAX_SCORE + (-product) // _WHOLE_PRODUCT
        return scores
