"""Scores nodes by the dot product of requested and free amounts; the smallest wins."""

from __future__ import annotations

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import MAX_CPU_MILLI, MAX_GPU_MILLI, BasicGpuPolicy, free_cpu, requested_cpu
from bayplan.snapshot import IntVector, NodeTable, RowVector

_GPU_SCALE = (MAX_CPU_MILLI // MAX_GPU_MILLI) ** 2
"""Converts a product of two GPU amounts to the scale of a product of two CPU amounts."""

_WHOLE_PRODUCT = 2 * MAX_CPU_MILLI**2 // MAX_SCORE
"""The sum of both products that costs one point."""


class GpuDotProduct(BasicGpuPolicy):
    """Prefers nodes whose free CPU and GPU match the requested CPU and GPU least."""

    name = "GpuDotProduct"
    reads_cpu = True

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        product = free_cpu(nodes) * requested_cpu(cycle) + gpus.total[rows] * (request.total * _GPU_SCALE)
        scores: IntVector = MAX_SCORE + (-product) // _WHOLE_PRODUCT
        return scores
