"""Which node would have the least left? CPU and GPU count by their share of the largest node."""

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

_GPU_SCALE = LARGEST_CPU_MILLI // LARGEST_GPU_MILLI
_A_POINT = 2 * LARGEST_CPU_MILLI // MAX_SCORE
"""So much that is left of both together costs one point."""


class GpuBestFit(PlainGpuPolicy):
    """Prefers nodes that the pod fills up."""

    name = "GpuBestFit"
    looks_at_cpu = True

    def worth(self, cycle: Cycle, nodes: NodeTable, ask: GpuAsk, gpus: GpuColumns, rows: RowVector) -> IntVector:
        left = free_cpu(nodes) - asked_cpu(cycle) + (gpus.total[rows] - ask.total) * _GPU_SCALE
        scores: IntVector = MAX_SCORE + (-left) // _A_POINT
        return scores
