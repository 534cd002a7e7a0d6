"""Which node would have the least left? CPU and GPU count by their share of the largest node."""

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

_GPU_SCALE = MAX_CPU_MILLI // MAX_GPU_MILLI
_UNITS_PER_POINT = 2 * MAX_CPU_MILLI // MAX_SCORE
"""So much that is left of both together costs one point."""


class GpuBestFit(BasicGpuPolicy):
    """Prefers nodes that the pod fills up."""

    name = "GpuBestFit"
    reads_cpu = True

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        left = free_cpu(nodes) - requested_cpu(cycle) + (gpus.total[rows] - ask.total) * _GPU_SCALE
        scores: IntVector = MAX_SCORE + (-left) // _UNITS_PER_POINT
        return scores
