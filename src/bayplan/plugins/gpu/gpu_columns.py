"""Free amounts of each GPU of each node, as columns that follow one snapshot.

Used by every plugin that places pods on shared GPUs. A row is built again from its pods whenever one was added or
removed, so it always agrees with the cache. Cost: a few operations for each pod of a changed row.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

import numpy as np
import numpy.typing as npt

from bayplan.objects.core import Node
from bayplan.plugins.gpu.gpu_requests import (
    DEVICE_MILLI,
    DeviceIndexes,
    GpuMilliRequest,
    assigned_devices,
    device_count,
    device_model,
    gpu_request_or_none,
)
from bayplan.plugins.node_resources.float_columns import SnapshotCursor
from bayplan.snapshot import BoolVector, IntVector, NodeColumns, NodeTable, PodInfo, RowVector, Snapshot

IntMatrix = npt.NDArray[np.int64]

_MAX_CACHED = 1024


class GpuColumns:
    """Devices by row: `remaining[row, device]` in thousandths, 0 for devices that the node does not have.

    `users[row, kind]` counts the pods with devices: kind 0 has a share of one device, kind n has n whole devices.
    """

    def __init__(self) -> None:
        self._cursor = SnapshotCursor()
        self.models: dict[str, int] = {}  # the number of each known model
        self._acceptance: dict[str, BoolVector] = {}  # by requested models: whether each model is accepted
        self._resize(0, 1)

    def _resize(self, rows: int, devices: int) -> None:
        self.remaining: IntMatrix = np.zeros((rows, devices), dtype=np.int64)
        self.users: IntMatrix = np.zeros((rows, devices + 1), dtype=np.int64)
        self.devices: IntVector = np.zeros(rows, dtype=np.int64)
        self.total: IntVector = np.zeros(rows, dtype=np.int64)
        self.free: IntVector = np.zeros(rows, dtype=np.int64)  # unused devices
        self.largest: IntVector = np.zeros(rows, dtype=np.int64)  # largest free amount of a device
        self.model_ids: npt.NDArray[np.intp] = np.zeros(rows, dtype=np.intp)
        self._nodes: list[Node | None] = [None] * rows  # the node object of each row

    def follow(self, snapshot: Snapshot) -> None:
        """Update the rows whose pods changed."""
        rows = self._cursor.changed_rows(snapshot)
        columns = snapshot.nodes
        if rows is None or self._has_outgrown(columns, rows):
            self.read(columns)
        else:
            self._build_rows(columns, rows)

    def _has_outgrown(self, columns: NodeColumns, rows: Collection[int]) -> bool:
        """Whether a node has more devices than the columns."""
        for row in rows:
            node = columns.nodes[row]
            if node is not self._nodes[row] and device_count(node) > self.remaining.shape[1]:
                return True
        return False

    def read(self, columns: NodeColumns) -> None:
        """Build all rows."""
        counts = [device_count(node) for node in columns.nodes[: columns.count]]
        self._resize(columns.count, max(counts, default=0) or 1)
        self._build_rows(columns, range(columns.count))

    def of(self, nodes: NodeTable, snapshot: Snapshot) -> tuple[Self, RowVector]:
        """Return columns with the rows of a table: these for the snapshot itself, a copy for a fork."""
        if nodes.columns is snapshot.nodes:
            self.follow(snapshot)
            return self, nodes.rows
        fork_columns = self.copy()
        fork_columns.read(nodes.columns)
        return fork_columns, nodes.rows

    def copy(self) -> Self:
        """Return an empty instance of the same class."""
        return type(self)()

    def build(self, columns: NodeColumns, rows: RowVector) -> None:
        """Called after rows were built, for subclasses with further columns."""

    def _build_rows(self, columns: NodeColumns, rows: Collection[int]) -> None:
        for row in rows:
            self._build_row(columns, row)
        if rows:
            self.build(columns, np.fromiter(rows, np.intp, len(rows)))

    def _build_row(self, columns: NodeColumns, row: int) -> None:
        node = columns.nodes[row]
        if node is not self._nodes[row]:
            self._nodes[row] = node
            self.devices[row] = device_count(node)
            self.model_ids[row] = self.models.setdefault(device_model(node), len(self.models))
        count = self.devices.item(row)
        remaining, users = [DEVICE_MILLI] * count, [0] * self.users.shape[1]
        without_indexes: list[GpuMilliRequest] = []
        for info in columns.pods[row]:
            request = info.cached(gpu_request_or_none)
            if request.count:
                users[0 if request.shares else min(request.count, len(users) - 1)] += 1
                numbers = info.cached(assigned_devices)
                if not numbers:
                    without_indexes.append(request)
                for number in numbers:
                    if number < count:
                        remaining[number] -= request.milli
        # placed by another scheduler: assumed on the devices that this policy would choose
        for request in without_indexes:
            for number in tightest_devices(remaining, request):
                remaining[number] -= request.milli
        remaining = [max(amount, 0) for amount in remaining]
        self.remaining[row, :count] = remaining
        self.remaining[row, count:] = 0
        self.users[row] = users
        self.total[row] = sum(remaining)
        self.free[row] = remaining.count(DEVICE_MILLI)
        self.largest[row] = max(remaining, default=0)

    def accepting(self, rows: RowVector, request: GpuMilliRequest) -> BoolVector:
        """Return the rows with an accepted model."""
        acceptance = self._acceptance.get(request.models)
        if acceptance is None or len(acceptance) != len(self.models):
            accepted = request.accepted
            acceptance = np.fromiter((model in accepted for model in self.models), np.bool_, len(self.models))
            if len(self._acceptance) >= _MAX_CACHED:
                self._acceptance.clear()
            self._acceptance[request.models] = acceptance
        return acceptance[self.model_ids[rows]]

    def lacking(self, rows: RowVector, request: GpuMilliRequest) -> BoolVector:
        """Return the rows with too little free, for any model."""
        too_small: BoolVector = (
            self.largest[rows] < request.milli if request.shares else self.free[rows] < request.count
        )
        return too_small

    def fitting(self, rows: RowVector, request: GpuMilliRequest) -> BoolVector:
        """Return the rows with devices for the pod."""
        fits = ~self.lacking(rows, request)
        if request.accepted:
            fits &= self.accepting(rows, request)
        return fits

    def free_of_row(self, row: int) -> list[int]:
        """Return the free amount of each device of a node."""
        remaining: list[int] = self.remaining[row, : self.devices.item(row)].tolist()
        return remaining


def tightest_devices(remaining: list[int], request: GpuMilliRequest) -> DeviceIndexes:
    """Return the smallest sufficient device, or whole devices from the lowest number on. Empty: none fits."""
    if request.shares:
        fitting = [(amount, number) for number, amount in enumerate(remaining) if amount >= request.milli]
        return (min(fitting)[1],) if fitting else ()
    free = [number for number, amount in enumerate(remaining) if amount == DEVICE_MILLI]
    return tuple(free[: request.count]) if len(free) >= request.count else ()


def set_assigned_devices(info: PodInfo, devices: DeviceIndexes) -> None:
    """Store the assigned devices in the pod until the API server shows the annotation."""
    info.set_cached(assigned_devices, devices)


def clear_assigned_devices(info: PodInfo) -> None:
    info.delete_cached(assigned_devices)
