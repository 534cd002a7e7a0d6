"""Fragmentation gradient descent: prefers nodes that lose the least capacity for typical pods.

Shared GPUs fill up with remainders that no pod can use. This policy knows the typical pods, and places each pod where
the remainders grow least. Scores are coarse on purpose: nodes with nearly equal scores count as equal, and are filled
one after another.
"""

from __future__ import annotations

import numpy as np

from bayplan.codec.field_errors import FieldPath, aggregate
from bayplan.errors import ConfigError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.handle import Handle
from bayplan.plugins.gpu import fragmentation_args
from bayplan.plugins.gpu.fragment_columns import FragmentColumns
from bayplan.plugins.gpu.fragmentation_args import GpuFragmentationArgs, typical_pods
from bayplan.plugins.gpu.gpu_columns import tightest_devices
from bayplan.plugins.gpu.gpu_requests import DeviceIndexes, GpuMilliRequest
from bayplan.plugins.gpu.shared_gpu_policy import SharedGpuPolicy, free_cpu, requested_cpu
from bayplan.plugins.gpu.typical_pods import TypicalGroups
from bayplan.snapshot import IntVector, NodeTable, RowVector


class GpuFragmentation(SharedGpuPolicy[FragmentColumns]):
    """Prefers nodes, and devices, on which typical pods can use the most afterwards."""

    name = "GpuFragmentation"
    reads_cpu = True
    ARGS = fragmentation_args.ARGS

    @classmethod
    def factory(cls, args: GpuFragmentationArgs, handle: Handle) -> GpuFragmentation:
        errors = cls.ARGS.validate(args, FieldPath())
        if errors:
            raise ConfigError(aggregate(errors), stage="profile")
        return cls(handle, FragmentColumns(TypicalGroups(typical_pods(args))))

    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: FragmentColumns, rows: RowVector
    ) -> IntVector:
        cpu = free_cpu(nodes) - requested_cpu(cycle)
        fits = cpu >= 0
        if request.count:
            fits &= gpus.fitting(rows, request)
        scores = np.zeros(len(rows), dtype=np.int64)
        (positions,) = fits.nonzero()
        if len(positions) == len(rows):
            scores = gpus.score_gains(gpus.gains(rows, cpu, request).max(axis=1))
        elif len(positions):
            scores[positions] = gpus.score_gains(gpus.gains(rows[positions], cpu[positions], request).max(axis=1))
        return scores

    def devices_for(self, cycle: Cycle, request: GpuMilliRequest, row: int) -> DeviceIndexes:
        """Return the first device that gives the node its score."""
        if not request.shares or self.gpus.largest.item(row) < request.milli:
            return tightest_devices(self.gpus.free_of_row(row), request)
        rows = np.array([row], dtype=np.intp)
        cpu = free_cpu(NodeTable(cycle.snapshot.nodes, rows)) - requested_cpu(cycle)
        scores = self.gpus.score_gains(self.gpus.gains(rows, cpu, request)[0])
        return (int(scores.argmax()),)
