"""How much of a node's GPUs could a typical pod not use, and how does that change with a pod more?

The fragment of a node is the expectation, over the pods that usually come, of what is left on devices that such a pod
could not be given. Everything is counted in whole numbers, thousandths of a device times typical pods.
Cost: for each row and each different device of it, one pass over the groups of typical pods, some two dozen of them.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from bayplan.objects.resources import CPU
from bayplan.plugins.gpu.gpu_columns import GpuColumns, IntMatrix
from bayplan.plugins.gpu.gpu_requests import DEVICE_MILLI, GpuMilliRequest
from bayplan.plugins.gpu.typical_pods import AMOUNT, TypicalGroups
from bayplan.snapshot import IntVector, NodeColumns, NodeTable, RowVector

_NEVER = np.iinfo(np.int64).min


class FragmentColumns(GpuColumns):
    """Devices by row, with what typical pods could use of them.

    Of each row and group two numbers are kept in one (`typical_pods.DEVICE`): how many devices would do for a pod of
    the group, and how much is left on them together. What a device adds to both is looked up by what is left of it.
    """

    def __init__(self, groups: TypicalGroups) -> None:
        self._groups = groups
        self._tables: npt.NDArray[np.int64] = np.zeros((0, len(groups.cpus) + 1, len(groups)), dtype=np.int64)
        super().__init__()

    def copy(self) -> Self:
        return type(self)(self._groups)

    def _resize(self, rows: int, devices: int) -> None:
        super()._resize(rows, devices)
        self._offers: IntMatrix = np.zeros((rows, len(self._groups)), dtype=np.int64)
        self._new: npt.NDArray[np.bool_] = np.zeros((rows, devices), dtype=np.bool_)  # no earlier device has as much
        self._earlier = np.tri(devices, devices, -1, dtype=np.bool_)  # which devices come before each
        self._usable: IntVector = np.zeros(rows, dtype=np.int64)  # what typical pods could use, all of them together

    def build(self, columns: NodeColumns, rows: RowVector) -> None:
        if len(self._tables) != len(self.models):
            self._tables = np.array([self._groups.table(model) for model in self.models], dtype=np.int64)
        left = self.left[rows]
        self._offers[rows] = offers = self._groups.offers[left].sum(axis=1)
        self._new[rows] = ~((left[:, :, None] == left[:, None, :]) & self._earlier).any(axis=2)
        nodes = NodeTable(columns, rows)
        cpu = nodes.allocatable(CPU) - nodes.requested(CPU)
        self._usable[rows] = self._use(offers, self.model_ids[rows], cpu)

    def fragment(self, row: int) -> float:
        """The fragment of a row as things are, in thousandths of a device."""
        return self.total.item(row) - self._usable.item(row) / self._groups.covered

    def gains(self, rows: RowVector, cpu: IntVector, ask: GpuMilliRequest) -> IntMatrix:
        """By row and device how much smaller the fragment gets, times typical pods; `cpu` is what would be left.

        One column where the device is no matter. Of a device without room, or one like an earlier one, it says never.
        """
        if ask.shares:
            return self._share_gains(rows, cpu, ask)
        after = self._offers[rows]
        after -= ask.count * self._groups.offers[DEVICE_MILLI]
        usable = self._use(after, self.model_ids[rows], cpu)
        gains: IntMatrix = (ask.total * self._groups.covered - self._usable[rows] + usable)[:, None]
        return gains

    def _share_gains(self, rows: RowVector, cpu: IntVector, ask: GpuMilliRequest) -> IntMatrix:
        left = self.left[rows]
        places, devices = np.nonzero(self._new[rows] & (left >= ask.milli))
        before = left[places, devices]
        where = rows[places]
        offers = self._groups.offers
        after = self._offers[where]
        after -= offers[before]
        after += offers[before - ask.milli]
        usable = self._use(after, self.model_ids[where], cpu[places])
        gains = np.full(left.shape, _NEVER, dtype=np.int64)
        gains[places, devices] = ask.milli * self._groups.covered - self._usable[where] + usable
        return gains

    def scored(self, gains: IntVector) -> IntVector:
        """100 / (1 + e^-gain), a gain being counted in devices, cut off at the point."""
        return np.searchsorted(self._groups.thresholds, gains, side="right")

    def _use(self, offers: IntMatrix, models: npt.NDArray[np.intp], cpu: IntVector) -> IntVector:
        """What typical pods could use of rows with these offers, models and CPU."""
        pods = self._tables[models, np.searchsorted(self._groups.cpus, cpu, side="right")]
        pods *= offers >= self._groups.needed
        pods *= offers & AMOUNT
        usable: IntVector = pods.sum(axis=1)
        return usable
