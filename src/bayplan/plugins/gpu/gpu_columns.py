"""How much is left of each GPU of each node: columns that follow one snapshot.

Kept by every plugin that places pods on shared GPUs. A row is made anew from the pods that are on it whenever one came
or went, so what is here never drifts from what the cache counts. Cost: a few operations a pod of the row that changed.
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
    """Devices by row: `left[row, device]` in thousandths, 0 past the last device of the node.

    `users[row, kind]` counts the pods with devices: kind 0 has a part of one, kind n has n whole ones.
    """

    def __init__(self) -> None:
        self._follower = SnapshotCursor()
        self.models: dict[str, int] = {}  # the number of each model that was ever seen
        self._answers: dict[str, BoolVector] = {}  # by what pods accept, for each model whether it is that
        self._resize(0, 1)

    def _resize(self, rows: int, devices: int) -> None:
        self.left: IntMatrix = np.zeros((rows, devices), dtype=np.int64)
        self.users: IntMatrix = np.zeros((rows, devices + 1), dtype=np.int64)
        self.devices: IntVector = np.zeros(rows, dtype=np.int64)
        self.total: IntVector = np.zeros(rows, dtype=np.int64)
        self.free: IntVector = np.zeros(rows, dtype=np.int64)  # devices that nobody has a part of
        self.most: IntVector = np.zeros(rows, dtype=np.int64)  # left of the device that has most left
        self.model_ids: npt.NDArray[np.intp] = np.zeros(rows, dtype=np.intp)
        self._nodes: list[Node | None] = [None] * rows  # whose devices and model are here

    def follow(self, snapshot: Snapshot) -> None:
        """Catch up with pods that came and went."""
        rows = self._follower.changed(snapshot)
        columns = snapshot.nodes
        if rows is None or self._outgrown(columns, rows):
            self.read(columns)
        else:
            self._make(columns, rows)

    def _outgrown(self, columns: NodeColumns, rows: Collection[int]) -> bool:
        """Whether a node has more devices than there are columns for."""
        for row in rows:
            node = columns.nodes[row]
            if node is not self._nodes[row] and device_count(node) > self.left.shape[1]:
                return True
        return False

    def read(self, columns: NodeColumns) -> None:
        """Make all rows anew."""
        counts = [device_count(node) for node in columns.nodes[: columns.count]]
        self._resize(columns.count, max(counts, default=0) or 1)
        self._make(columns, range(columns.count))

    def of(self, nodes: NodeTable, snapshot: Snapshot) -> tuple[Self, RowVector]:
        """Columns with the rows of a table in them: these for the snapshot's own, others where a change is tried."""
        if nodes.columns is snapshot.nodes:
            self.follow(snapshot)
            return self, nodes.rows
        tried = self.copy()
        tried.read(nodes.columns)
        return tried, nodes.rows

    def copy(self) -> Self:
        """Others of the same kind, which know nothing yet."""
        return type(self)()

    def build(self, columns: NodeColumns, rows: RowVector) -> None:
        """Rows were made anew: for who keeps more of each row."""

    def _make(self, columns: NodeColumns, rows: Collection[int]) -> None:
        for row in rows:
            self._make_row(columns, row)
        if rows:
            self.build(columns, np.fromiter(rows, np.intp, len(rows)))

    def _make_row(self, columns: NodeColumns, row: int) -> None:
        node = columns.nodes[row]
        if node is not self._nodes[row]:
            self._nodes[row] = node
            self.devices[row] = device_count(node)
            self.model_ids[row] = self.models.setdefault(device_model(node), len(self.models))
        count = self.devices.item(row)
        left, users = [DEVICE_MILLI] * count, [0] * self.users.shape[1]
        unnumbered: list[GpuMilliRequest] = []
        for info in columns.pods[row]:
            ask = info.cached(gpu_request_or_none)
            if ask.count:
                users[0 if ask.shares else min(ask.count, len(users) - 1)] += 1
                numbers = info.cached(assigned_devices)
                if not numbers:
                    unnumbered.append(ask)
                for number in numbers:
                    if number < count:
                        left[number] -= ask.milli
        for ask in unnumbered:  # somebody else placed them: they sit where we would have put them
            for number in tightest_devices(left, ask):
                left[number] -= ask.milli
        left = [max(amount, 0) for amount in left]
        self.left[row, :count] = left
        self.left[row, count:] = 0
        self.users[row] = users
        self.total[row] = sum(left)
        self.free[row] = left.count(DEVICE_MILLI)
        self.most[row] = max(left, default=0)

    def accepting(self, rows: RowVector, ask: GpuMilliRequest) -> BoolVector:
        """Which rows have devices of a model that will do."""
        answers = self._answers.get(ask.models)
        if answers is None or len(answers) != len(self.models):
            accepted = ask.accepted
            answers = np.fromiter((model in accepted for model in self.models), np.bool_, len(self.models))
            if len(self._answers) >= _MAX_CACHED:
                self._answers.clear()
            self._answers[ask.models] = answers
        return answers[self.model_ids[rows]]

    def lacking(self, rows: RowVector, ask: GpuMilliRequest) -> BoolVector:
        """Which rows have too little left, whatever their model."""
        short: BoolVector = self.most[rows] < ask.milli if ask.shares else self.free[rows] < ask.count
        return short

    def fitting(self, rows: RowVector, ask: GpuMilliRequest) -> BoolVector:
        """Which rows have devices for the pod."""
        fits = ~self.lacking(rows, ask)
        if ask.accepted:
            fits &= self.accepting(rows, ask)
        return fits

    def row_left(self, row: int) -> list[int]:
        """What is left of each device of a node."""
        left: list[int] = self.left[row, : self.devices.item(row)].tolist()
        return left


def tightest_devices(left: list[int], ask: GpuMilliRequest) -> DeviceIndexes:
    """The device with the least left that is enough; whole ones from the lowest number on. Empty: there is no room."""
    if ask.shares:
        fitting = [(amount, number) for number, amount in enumerate(left) if amount >= ask.milli]
        return (min(fitting)[1],) if fitting else ()
    free = [number for number, amount in enumerate(left) if amount == DEVICE_MILLI]
    return tuple(free[: ask.count]) if len(free) >= ask.count else ()


def set_assigned_devices(info: PodInfo, devices: DeviceIndexes) -> None:
    """Until the API server shows the annotation, the pod itself tells everybody what it was given."""
    info.set_cached(assigned_devices, devices)


def clear_assigned_devices(info: PodInfo) -> None:
    info.delete_cached(assigned_devices)
