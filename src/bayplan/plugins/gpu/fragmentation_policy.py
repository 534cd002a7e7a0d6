"""Which node loses least of what typical pods could use? Fragmentation gradient descent.

A cluster of shared GPUs fills up with remainders that nobody can use. This policy knows which pods usually come, and
puts each pod where the remainders grow least, or shrink most. The scores are coarse on purpose: nodes that are nearly
as good count as equal, and are filled one after another.
"""

from __future__ import annotations

import numpy as np

from bayplan.config.field_errors import FieldPath, aggregate
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
    """Prefers nodes, and devices, where typical pods can still use the most afterwards."""

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
        self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: FragmentColumns, rows: RowVector
    ) -> IntVector:
        cpu = free_cpu(nodes) - requested_cpu(cycle)
        fits = cpu >= 0
        if ask.count:
            fits &= gpus.fitting(rows, ask)
        scores = np.zeros(len(rows), dtype=np.int64)
        (places,) = fits.nonzero()
        if len(places) == len(rows):
            scores = gpus.scored(gpus.gains(rows, cpu, ask).max(axis=1))
        elif len(places):
            scores[places] = gpus.scored(gpus.gains(rows[places], cpu[places], ask).max(axis=1))
        return scores

    def devices_for(self, cycle: Cycle, ask: GpuMilliRequest, row: int) -> DeviceIndexes:
        """The first of those that gave the node its score."""
        if not ask.shares or self.gpus.most.item(row) < ask.milli:
            return tightest_devices(self.gpus.row_left(row), ask)
        rows = np.array([row], dtype=np.intp)
        cpu = free_cpu(NodeTable(cycle.snapshot.nodes, rows)) - requested_cpu(cycle)
        scores = self.gpus.scored(self.gpus.gains(rows, cpu, ask)[0])
        return (int(scores.argmax()),)
