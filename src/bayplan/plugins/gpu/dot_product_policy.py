"""Which node's shape is least like the pod's? The smallest dot product of what is asked and what is left wins."""

from __future__ import annotations

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import GpuAsk
from bayplan.plugins.gpu.shared_gpu_policy import (
    LARGEST_CPU_MILLI,
    LARGEST_GPU_MILLI,
    PlainGpuPolicy,
    asked_cpu,
    free_cpu,
)
from bayplan.snapshot import IntVector, NodeTable, RowVector

_GPU_SCALE = (LARGEST_CPU_MILLI // LARGEST_GPU_MILLI) ** 2
"""What brings a product of two GPU amounts to the measure of a product of two CPU amounts."""

_WHOLE_PRODUCT = 2 * LARGEST_CPU_MILLI**2 // MAX_SCORE
"""So much of both products together costs one point."""


class GpuDotProduct(PlainGpuPolicy):
    """Prefers nodes where CPU and GPU that are left have little to do with CPU and GPU that are asked for."""

    name = "GpuDotProduct"
    looks_at_cpu = True

    def worth(self, cycle: Cycle, nodes: NodeTable, ask: GpuAsk, gpus: GpuColumns, rows: RowVector) -> IntVector:
        product = free_cpu(nodes) * asked_cpu(cycle) + gpus.total[rows] * (ask.total * _GPU_SCALE)
        scores: IntVector = MAX_SCORE + (-product) // _WHOLE_PRODUCT
        return scores
