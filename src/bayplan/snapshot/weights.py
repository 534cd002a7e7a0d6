"""How important is each pod of a snapshot, since when does it run, and what does it ask for, as columns by slot?

Asked by preemption, which adds up and puts back the pods of hundreds of rows at once. Follows one snapshot: a slot is
read when its row is first looked at, and again once the row was touched and shows another pod there, so clusters
that never preempt pay nothing. Cost: about a microsecond for each pod that is new.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from bayplan.snapshot.columns import IntMatrix
from bayplan.snapshot.pod_info import PodInfo
from bayplan.snapshot.snapshot import Snapshot
from bayplan.snapshot.table import RowVector
from bayplan.snapshot.vocabulary import BoolVector, IntVector

NOT_STARTED = int(np.iinfo(np.int64).min)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """A moment as a number that compares as the moment does."""
    return (moment - _EPOCH) // _MICROSECOND


class PodWeights:
    """Columns over the slots of the snapshot that was followed last. Only slots that were asked for mean something."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._start_over()

    def follow(self, snapshot: Snapshot) -> None:
        """Forget what may have changed since the last time."""
        pods, touched = snapshot.pods, snapshot.touched.since(self._cursor)
        if snapshot is not self._snapshot or touched is None:
            self._snapshot, touched = snapshot, set()
            self._start_over()
        self._cursor = snapshot.touched.end
        self._reserve(len(pods.rows), len(snapshot.vocabulary.resources))
        if touched:
            rows = np.zeros(max(*touched, len(snapshot)) + 1, dtype=np.bool_)
            rows[list(touched)] = True
            self._known &= ~rows[pods.rows]

    def on_rows(self, place: RowVector) -> RowVector:
        """The slots of all pods on rows that have a place (one entry a row of the snapshot, -1 for none)."""
        assert self._snapshot is not None
        pods = self._snapshot.pods
        rows = pods.rows[: pods.slots]
        slots = np.flatnonzero((rows >= 0) & (place[rows] >= 0))
        self._read(slots[~self._known[slots]].tolist())
        return slots

    def _start_over(self) -> None:
        self._cursor = 0
        self.priorities: IntVector = np.zeros(0, dtype=np.int64)
        self.started: IntVector = np.zeros(0, dtype=np.int64)
        self.requests: IntMatrix = np.zeros((0, 0), dtype=np.int64)  # resources by slots, as in `NodeColumns`
        self.nonzero: IntMatrix = np.zeros((2, 0), dtype=np.int64)
        self._known: BoolVector = np.zeros(0, dtype=np.bool_)
        self._infos: list[PodInfo | None] = []  # whom each slot's numbers are about

    def _read(self, slots: list[int]) -> None:
        assert self._snapshot is not None
        infos, mine, vocabulary = self._snapshot.pods.infos, self._infos, self._snapshot.vocabulary
        fresh = [slot for slot in slots if mine[slot] is not infos[slot]]
        self._known[slots] = True
        told = [info for slot in fresh if (info := infos[slot]) is not None]
        if not told:
            return
        self.priorities[fresh] = [info.priority for info in told]
        self.started[fresh] = [_start(info) for info in told]
        self.nonzero[:, fresh] = np.array([info.nonzero for info in told], dtype=np.int64).T
        index = vocabulary.resources.index
        asked = [
            (index(name), slot, amount)
            for slot, info in zip(fresh, told, strict=True)
            for name, amount in info.requests.items()
        ]
        self._reserve(len(mine), len(vocabulary.resources))
        self.requests[:, fresh] = 0
        for resource, slot, amount in asked:
            self.requests[resource, slot] = amount
        for slot, info in zip(fresh, told, strict=True):
            mine[slot] = info

    def _reserve(self, slots: int, resources: int) -> None:
        rows, capacity = self.requests.shape
        more = max(slots - capacity, 0)
        if more or resources > rows:
            self.requests = np.pad(self.requests, ((0, max(resources - rows, 0)), (0, more)))
        if more:
            self.priorities, self.started = np.pad(self.priorities, (0, more)), np.pad(self.started, (0, more))
            self.nonzero = np.pad(self.nonzero, ((0, 0), (0, more)))
            self._known = np.pad(self._known, (0, more))
        self._infos.extend([None] * (slots - len(self._infos)))


def _start(info: PodInfo) -> int:
    started = info.pod.status.start_time
    return NOT_STARTED if started is None else microseconds(started)
