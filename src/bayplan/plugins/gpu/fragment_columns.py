"""Columns of GPU fragmentation: the amount that a typical pod cannot use, and its change with one more pod.

The fragment of a node is the expected free amount, over the typical pods, on devices that such a pod cannot use. All
amounts are whole numbers: thousandths of a device times typical pods. Cost: for each row and each distinct device, one
pass over about two dozen groups of typical pods.
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
    """Devices by row, with the amounts that typical pods can use.

    For each row and group, one number contains both the number of usable devices and their free amount
    (`typical_pods.DEVICE`). The contribution of a device is looked up by its free amount.
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
        # no earlier device has the same free amount
        self._is_distinct: npt.NDArray[np.bool_] = np.zeros((rows, devices), dtype=np.bool_)
        self._earlier = np.tri(devices, devices, -1, dtype=np.bool_)  # the devices before each device
        # amount that typical pods can use, summed over all of them
        self._usable: IntVector = np.zeros(rows, dtype=np.int64)

    def build(self, columns: NodeColumns, rows: RowVector) -> None:
        if len(self._tables) != len(self.models):
            self._tables = np.array([self._groups.table(model) for model in self.models], dtype=np.int64)
        remaining = self.remaining[rows]
        self._offers[rows] = offers = self._groups.offers[remaining].sum(axis=1)
        self._is_distinct[rows] = ~((remaining[:, :, None] == remaining[:, None, :]) & self._earlier).any(axis=2)
        nodes = NodeTable(columns, rows)
        cpu = nodes.allocatable(CPU) - nodes.requested(CPU)
        self._usable[rows] = self._compute_usable(offers, self.model_ids[rows], cpu)

    def fragment(self, row: int) -> float:
        """Return the current fragment of a row, in thousandths of a device."""
        return self.total.item(row) - self._usable.item(row) / self._groups.covered

    def gains(self, rows: RowVector, cpu: IntVector, request: GpuMilliRequest) -> IntMatrix:
        """Return by row and device how much the fragment shrinks, times typical pods. `cpu`: CPU left after the
        placement.

        One column if the device does not matter. A device without room, or equal to an earlier one, gets the minimum.
        """
        if request.shares:
            return self._share_gains(rows, cpu, request)
        after = self._offers[rows]
        after -= request.count * self._groups.offers[DEVICE_MILLI]
        usable = self._compute_usable(after, self.model_ids[rows], cpu)
        gains: IntMatrix = (request.total * self._groups.covered - self._usable[rows] + usable)[:, None]
        return gains

    def _share_gains(self, rows: RowVector, cpu: IntVector, request: GpuMilliRequest) -> IntMatrix:
        remaining = self.remaining[rows]
        positions, devices = np.nonzero(self._is_distinct[rows] & (remaining >= request.milli))
        before = remaining[positions, devices]
        device_rows = rows[positions]
        offers = self._groups.offers
        after = self._offers[device_rows]
        after -= offers[before]
        after += offers[before - request.milli]
        usable = self._compute_usable(after, self.model_ids[device_rows], cpu[positions])
        gains = np.full(remaining.shape, _NEVER, dtype=np.int64)
        gains[positions, devices] = request.milli * self._groups.covered - self._usable[device_rows] + usable
        return gains

    def score_gains(self, gains: IntVector) -> IntVector:
        """Return 100 / (1 + e^-gain), truncated; a gain is a number of devices."""
        return np.searchsorted(self._groups.thresholds, gains, side="right")

    def _compute_usable(self, offers: IntMatrix, models: npt.NDArray[np.intp], cpu: IntVector) -> IntVector:
        """Return the amount that typical pods can use on rows with these offers, models and CPU."""
        pods = self._tables[models, np.searchsorted(self._groups.cpus, cpu, side="right")]
        pods *= offers >= self._groups.needed
        pods *= offers & AMOUNT
        usable: IntVector = pods.sum(axis=1)
        return usable
