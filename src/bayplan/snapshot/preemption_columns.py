"""Priority, start time and requests of the pods of a snapshot, as columns by slot.

Used by preemption, which removes and reprieves pods of hundreds of rows at once. Follows one snapshot. A slot is read
on its first use, and again after its row was touched and the slot shows another pod. So a cluster without preemption
costs nothing, and otherwise each pod is read once. Cost: about a microsecond for each new pod.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bayplan.snapshot.columns import IntMatrix
from bayplan.snapshot.intern_tables import BoolVector, IntVector
from bayplan.snapshot.pod_info import PodInfo
from bayplan.snapshot.snapshot import Snapshot
from bayplan.snapshot.table import RowVector

NOT_STARTED = int(np.iinfo(np.int64).min)

V = TypeVar("V", bound=Any)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_microseconds(time: datetime) -> int:
    """Convert a time to a number with the same order."""
    return (time - _EPOCH) // _MICROSECOND


class _SlotReader:
    """The slots of some columns that were read, with their pods."""

    __slots__ = ("_infos", "is_read")

    def __init__(self) -> None:
        self.is_read: BoolVector = np.zeros(0, dtype=np.bool_)
        self._infos: list[PodInfo | None] = []

    def reserve(self, slots: int) -> None:
        self.is_read = _resize(self.is_read, slots)
        self._infos += [None] * (slots - len(self._infos))

    def unread(self, slots: RowVector, infos: list[PodInfo | None]) -> tuple[list[int], list[PodInfo]]:
        """Return the slots that must be read now, with their pods."""
        unread_slots = slots[~self.is_read[slots]]
        if not len(unread_slots):
            return [], []
        self.is_read[unread_slots] = True
        read_infos = self._infos
        slots_to_read = [slot for slot in unread_slots.tolist() if read_infos[slot] is not infos[slot]]
        unread_infos = [info for slot in slots_to_read if (info := infos[slot]) is not None]
        for slot, info in zip(slots_to_read, unread_infos, strict=True):
            read_infos[slot] = info
        return slots_to_read, unread_infos


class PreemptionColumns:
    """Columns over the slots of the current snapshot."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._cursor = 0
        self._start_over()

    def update(self, snapshot: Snapshot) -> None:
        """Follow a snapshot and invalidate the slots that may have changed. Must be called before any read."""
        pods, touched = snapshot.pods, snapshot.touched.since(self._cursor)
        self._cursor = snapshot.touched.end
        if snapshot is not self._snapshot or touched is None:
            self._snapshot, touched = snapshot, set()
            self._start_over()
        self._reserve(len(snapshot.vocabulary.resources), len(pods.rows))
        if touched:
            rows = np.zeros(max(*touched, len(snapshot)) + 1, dtype=np.bool_)
            rows[list(touched)] = True
            stale = rows[pods.rows]
            for is_read in (
                self._priority_slots.is_read,
                self._start_time_slots.is_read,
                self._request_slots.is_read,
                self._has_position,
            ):
                is_read[stale] = False

    def on_rows(self, place: npt.NDArray[np.int16]) -> RowVector:
        """Return the slots of all pods on rows with a place (`place`: one entry for each row of the snapshot, -1 for
        none).
        """
        pods = self._current_snapshot.pods
        rows = pods.rows[: pods.slots]
        return np.flatnonzero((rows >= 0) & (place[rows] >= 0))

    def priorities(self, slots: RowVector) -> IntVector:
        slots_to_read, infos_to_read = self._priority_slots.unread(slots, self._current_snapshot.pods.infos)
        if slots_to_read:
            self._priorities[slots_to_read] = [info.priority for info in infos_to_read]
        return self._priorities[slots]

    def started(self, slots: RowVector) -> IntVector:
        """Return microseconds since 1970; `NOT_STARTED` for a pod without a start time."""
        slots_to_read, infos_to_read = self._start_time_slots.unread(slots, self._current_snapshot.pods.infos)
        if slots_to_read:
            times = [info.pod.status.start_time for info in infos_to_read]
            self._started[slots_to_read] = [NOT_STARTED if each is None else to_microseconds(each) for each in times]
        return self._started[slots]

    def list_positions(self, slots: RowVector) -> IntVector:
        """Return the position of each pod in the list of its row."""
        unread = slots[~self._has_position[slots]]
        if len(unread):
            pods, lists = self._current_snapshot.pods, self._current_snapshot.nodes.pods
            rows = np.unique(pods.rows[unread]).tolist()
            positions = {id(info): position for row in rows for position, info in enumerate(lists[row])}
            self._positions[unread] = [positions[id(pods.infos[slot])] for slot in unread.tolist()]
            self._has_position[unread] = True
        return self._positions[slots]

    def requests(self, slots: RowVector) -> IntMatrix:
        """Return the requests of each pod; resources are rows, as in `NodeColumns`."""
        self._read_slots(slots)
        return self._requests[:, slots]

    def nonzero(self, slots: RowVector) -> IntMatrix:
        """Return CPU and memory requests, with kube-scheduler's defaults for containers without requests."""
        self._read_slots(slots)
        return self._nonzero[:, slots]

    def with_ports(self, slots: RowVector) -> BoolVector:
        """Return whether each pod has host ports."""
        self._read_slots(slots)
        return self._with_ports[slots]

    @property
    def _current_snapshot(self) -> Snapshot:
        assert self._snapshot is not None, "`update` must be called before columns are read"
        return self._snapshot

    def _start_over(self) -> None:
        self._priority_slots, self._start_time_slots, self._request_slots = _SlotReader(), _SlotReader(), _SlotReader()
        self._has_position: BoolVector = np.zeros(0, dtype=np.bool_)
        self._positions: IntVector = np.zeros(0, dtype=np.int64)
        self._priorities: IntVector = np.zeros(0, dtype=np.int64)
        self._started: IntVector = np.zeros(0, dtype=np.int64)
        self._requests: IntMatrix = np.zeros((0, 0), dtype=np.int64)
        self._nonzero: IntMatrix = np.zeros((2, 0), dtype=np.int64)
        self._with_ports: BoolVector = np.zeros(0, dtype=np.bool_)

    def _reserve(self, resources: int, slots: int) -> None:
        if slots > len(self._has_position):
            for reading in (self._priority_slots, self._start_time_slots, self._request_slots):
                reading.reserve(slots)
            self._has_position, self._with_ports = _resize(self._has_position, slots), _resize(self._with_ports, slots)
            self._positions, self._priorities = _resize(self._positions, slots), _resize(self._priorities, slots)
            self._started, self._nonzero = _resize(self._started, slots), _resize(self._nonzero, slots)
            self._requests = _resize(self._requests, slots)
        if resources > len(self._requests):
            self._requests = np.pad(self._requests, ((0, resources - len(self._requests)), (0, 0)))

    def _read_slots(self, slots: RowVector) -> None:
        slots_to_read, infos_to_read = self._request_slots.unread(slots, self._current_snapshot.pods.infos)
        if not slots_to_read:
            return
        self._with_ports[slots_to_read] = [bool(info.host_ports) for info in infos_to_read]
        nonzero = [info.nonzero for info in infos_to_read]
        self._nonzero[0, slots_to_read] = [cpu for cpu, _ in nonzero]
        self._nonzero[1, slots_to_read] = [memory for _, memory in nonzero]
        requests = [info.requests for info in infos_to_read]
        names = self._current_snapshot.vocabulary.resources
        columns = [(names.index(name), name) for name in set().union(*requests)]
        self._reserve(len(names), len(self._has_position))
        self._requests[:, slots_to_read] = 0
        for column, name in columns:
            self._requests[column, slots_to_read] = [amounts.get(name, 0) for amounts in requests]


def _resize(column: npt.NDArray[V], slots: int) -> npt.NDArray[V]:
    """Extend the last dimension with zeros to this number of slots."""
    return np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, slots - column.shape[-1])])
