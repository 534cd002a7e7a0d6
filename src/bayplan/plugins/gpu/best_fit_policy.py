"""Scores nodes by the amount left after the placement, relative to the largest node; the smallest wins."""

from __future__ import annotations

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import MAX_CPU_MILLI, MAX_GPU_MILLI, BasicGpuPolicy, free_cpu, requested_cpu
from bayplan.snapshot import IntVector, NodeTable, RowVector

_GPU_SCALE = MAX_CPU_MILLI // MAX_GPU_MILLI
_UNITS_PER_POINT = 2 * MAX_CPU_MILLI // MAX_SCORE
"""The sum of remaining CPU and GPU that costs one point."""


class GpuBestFit(BasicGpuPolicy):
    """Prefers nodes that the pod fills up."""

    name = "GpuBestFit"
    reads_cpu = True

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        remaining = free_cpu(nodes) - requested_cpu(cycle) + (gpus.total[rows] - request.total) * _GPU_SCALE
        scores: IntVector = MAX_SCORE + (-remaining) // _UNITS_PER_POINT
        return scores
