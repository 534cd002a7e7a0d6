"""Where are pods of the same kind? Those that share a device keep apart from those with one, or two, of their own."""

from __future__ import annotations

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.plugins.gpu.gpu_columns import GpuColumns
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import MAX_GPU_MILLI, BasicGpuPolicy
from bayplan.snapshot import IntVector, NodeTable, RowVector

_STEP = 25
"""How much better each step is: strangers only, nobody, its kind among others, its kind alone."""


class GpuClustering(BasicGpuPolicy):
    """Prefers nodes whose GPU pods are of the pod's own kind, and of equal ones those with less left."""

    name = "GpuClustering"
    scores_plain_pods = False

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: GpuColumns, rows: RowVector
    ) -> IntVector:
        del cycle, nodes
        users = gpus.users[rows]
        kind = 0 if ask.shares else min(ask.count, users.shape[1] - 1)
        kinds = np.count_nonzero(users, axis=1)
        has_own = users[:, kind] > 0
        step = np.where(has_own, np.where(kinds == 1, 3, 2), np.where(kinds == 0, 1, 0))
        used = _STEP * (MAX_GPU_MILLI - gpus.total[rows]) // MAX_GPU_MILLI
        scores: IntVector = _STEP * step + used
        return scores
