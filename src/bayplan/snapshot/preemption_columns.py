"""How important are pods of a snapshot, since when do they run, and what do they ask for, as columns by slot?

Asked by preemption, which adds up and puts back the pods of hundreds of rows at once. Follows one snapshot: a slot is
read when it is first asked about, and again once its row was touched and shows another pod there. So clusters that
never preempt pay nothing, and those that do pay for each pod once. Cost: a microsecond or so for each pod that is new.
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


def to_microseconds(moment: datetime) -> int:
    """A moment as a number that compares as the moment does."""
    return (moment - _EPOCH) // _MICROSECOND


class _SlotReader:
    """Which slots of some columns are read, and about whom."""

    __slots__ = ("_infos", "known")

    def __init__(self) -> None:
        self.known: BoolVector = np.zeros(0, dtype=np.bool_)
        self._infos: list[PodInfo | None] = []

    def reserve(self, slots: int) -> None:
        self.known = _grown(self.known, slots)
        self._infos += [None] * (slots - len(self._infos))

    def unread(self, slots: RowVector, infos: list[PodInfo | None]) -> tuple[list[int], list[PodInfo]]:
        """Those of the slots that must be read now, and whom they hold."""
        asked = slots[~self.known[slots]]
        if not len(asked):
            return [], []
        self.known[asked] = True
        seen = self._infos
        fresh = [slot for slot in asked.tolist() if seen[slot] is not infos[slot]]
        told = [info for slot in fresh if (info := infos[slot]) is not None]
        for slot, info in zip(fresh, told, strict=True):
            seen[slot] = info
        return fresh, told


class PreemptionColumns:
    """Columns over the slots of the snapshot that was followed last."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._cursor = 0
        self._start_over()

    def update(self, snapshot: Snapshot) -> None:
        """Doubt what may have changed since the last time. To be called before anything is asked."""
        pods, touched = snapshot.pods, snapshot.touched.since(self._cursor)
        self._cursor = snapshot.touched.end
        if snapshot is not self._snapshot or touched is None:
            self._snapshot, touched = snapshot, set()
            self._start_over()
        self._reserve(len(snapshot.vocabulary.resources), len(pods.rows))
        if touched:
            rows = np.zeros(max(*touched, len(snapshot)) + 1, dtype=np.bool_)
            rows[list(touched)] = True
            doubted = rows[pods.rows]
            for known in (self._ranked.known, self._dated.known, self._weighed.known, self._placed):
                known[doubted] = False

    def on_rows(self, place: npt.NDArray[np.int16]) -> RowVector:
        """The slots of all pods on rows that have a place (one entry a row of the snapshot, -1 for none)."""
        pods = self._check_updated.pods
        rows = pods.rows[: pods.slots]
        return np.flatnonzero((rows >= 0) & (place[rows] >= 0))

    def priorities(self, slots: RowVector) -> IntVector:
        fresh, told = self._ranked.unread(slots, self._check_updated.pods.infos)
        if fresh:
            self._priorities[fresh] = [info.priority for info in told]
        return self._priorities[slots]

    def started(self, slots: RowVector) -> IntVector:
        """Microseconds since 1970; `NOT_STARTED` for a pod that has no start time yet."""
        fresh, told = self._dated.unread(slots, self._check_updated.pods.infos)
        if fresh:
            moments = [info.pod.status.start_time for info in told]
            self._started[fresh] = [NOT_STARTED if each is None else to_microseconds(each) for each in moments]
        return self._started[slots]

    def list_positions(self, slots: RowVector) -> IntVector:
        """Where each pod stands in the list of its row."""
        unknown = slots[~self._placed[slots]]
        if len(unknown):
            pods, lists = self._check_updated.pods, self._check_updated.nodes.pods
            rows = np.unique(pods.rows[unknown]).tolist()
            places = {id(info): place for row in rows for place, info in enumerate(lists[row])}
            self._listed[unknown] = [places[id(pods.infos[slot])] for slot in unknown.tolist()]
            self._placed[unknown] = True
        return self._listed[slots]

    def requests(self, slots: RowVector) -> IntMatrix:
        """What each pod asks for; resources are rows, as in `NodeColumns`."""
        self._read_slots(slots)
        return self._requests[:, slots]

    def nonzero(self, slots: RowVector) -> IntMatrix:
        """CPU and memory, with a guess for containers that ask for nothing."""
        self._read_slots(slots)
        return self._nonzero[:, slots]

    def with_ports(self, slots: RowVector) -> BoolVector:
        """Whether each pod holds host ports."""
        self._read_slots(slots)
        return self._with_ports[slots]

    @property
    def _check_updated(self) -> Snapshot:
        assert self._snapshot is not None, "there is a snapshot to ask about once one is followed"
        return self._snapshot

    def _start_over(self) -> None:
        self._ranked, self._dated, self._weighed = _SlotReader(), _SlotReader(), _SlotReader()
        self._placed: BoolVector = np.zeros(0, dtype=np.bool_)
        self._listed: IntVector = np.zeros(0, dtype=np.int64)
        self._priorities: IntVector = np.zeros(0, dtype=np.int64)
        self._started: IntVector = np.zeros(0, dtype=np.int64)
        self._requests: IntMatrix = np.zeros((0, 0), dtype=np.int64)
        self._nonzero: IntMatrix = np.zeros((2, 0), dtype=np.int64)
        self._with_ports: BoolVector = np.zeros(0, dtype=np.bool_)

    def _reserve(self, resources: int, slots: int) -> None:
        if slots > len(self._placed):
            for reading in (self._ranked, self._dated, self._weighed):
                reading.reserve(slots)
            self._placed, self._with_ports = _grown(self._placed, slots), _grown(self._with_ports, slots)
            self._listed, self._priorities = _grown(self._listed, slots), _grown(self._priorities, slots)
            self._started, self._nonzero = _grown(self._started, slots), _grown(self._nonzero, slots)
            self._requests = _grown(self._requests, slots)
        if resources > len(self._requests):
            self._requests = np.pad(self._requests, ((0, resources - len(self._requests)), (0, 0)))

    def _read_slots(self, slots: RowVector) -> None:
        fresh, told = self._weighed.unread(slots, self._check_updated.pods.infos)
        if not fresh:
            return
        self._with_ports[fresh] = [bool(info.host_ports) for info in told]
        nonzero = [info.nonzero for info in told]
        self._nonzero[0, fresh] = [cpu for cpu, _ in nonzero]
        self._nonzero[1, fresh] = [memory for _, memory in nonzero]
        requests = [info.requests for info in told]
        names = self._check_updated.vocabulary.resources
        columns = [(names.index(name), name) for name in set().union(*requests)]
        self._reserve(len(names), len(self._placed))
        self._requests[:, fresh] = 0
        for column, name in columns:
            self._requests[column, fresh] = [asked.get(name, 0) for asked in requests]


def _grown(column: npt.NDArray[V], slots: int) -> npt.NDArray[V]:
    """The same with zeros up to so many slots, which are the last dimension."""
    return np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, slots - column.shape[-1])])
