"""Scores nodes by the kinds of their GPU pods: pods with a share, with one, or with several whole devices."""

from __future__ import annotations

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import MAX_GPU_MILLI, BasicGpuPolicy
from bayplan.snapshot import IntVector, NodeTable, RowVector

_STEP = 25
"""Points for each step: only other kinds, no GPU pods, the pod's kind among other kinds, only the pod's kind."""


class GpuClustering(BasicGpuPolicy):
    """Prefers nodes whose GPU pods are of the pod's kind, and among equal ones those with less free."""

    name = "GpuClustering"
    scores_plain_pods = False

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        del cycle, nodes
        users = gpus.users[rows]
        kind = 0 if request.shares else min(request.count, users.shape[1] - 1)
        kinds = np.count_nonzero(users, axis=1)
        has_own = users[:, kind] > 0
        step = np.where(has_own, np.where(kinds == 1, 3, 2), np.where(kinds == 0, 1, 0))
        used = _STEP * (MAX_GPU_MILLI - gpus.total[rows]) // MAX_GPU_MILLI
        scores: IntVector = _STEP * step + used
        return scores
