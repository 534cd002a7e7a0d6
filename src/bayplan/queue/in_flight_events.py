"""What happened while a pod was being tried?

Events and popped pods in one row, in order of arrival: a pod that comes back is held against the events behind its own
place. Events in front of every pod are of use to nobody and are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from bayplan.framework.api.events import ClusterEvent
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.recorder import POD_POPPED, QueueRecorder

_TRIM_THRESHOLD = 256


@dataclass(frozen=True, slots=True)
class InFlightEvent:
    """An event with the object before and after it."""

    event: ClusterEvent
    old: KubeObject | None
    new: KubeObject | None


class InFlightPods:
    """Pods that were popped and are not done, and the events since."""

    def __init__(self, recorder: QueueRecorder) -> None:
        self._recorder = recorder
        self._row: list[InFlightEvent] = []
        self._gone = 0  # events that were cut off the row
        self._dropped = 0  # events at the head of the row that nobody needs, and that are still there
        self._pods: dict[str, tuple[int, Pod]] = {}  # uid -> how many events came before it; in order of popping

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def pods(self) -> Iterator[Pod]:
        return (pod for _, pod in self._pods.values())

    def events(self) -> Sequence[InFlightEvent]:
        """The events that some pod may still need."""
        return self._row[self._dropped :]

    def add(self, pod: Pod) -> None:
        self._pods[pod.uid] = (self._gone + len(self._row), pod)
        self._recorder.in_flight(POD_POPPED, 1)

    def add_event(self, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None) -> None:
        """Something happened; of interest only while some pod is being tried."""
        if self._pods:
            self._row.append(InFlightEvent(event, old, new))
            self._recorder.in_flight(event.name, 1)

    def events_since(self, uid: str) -> list[InFlightEvent] | None:
        """What happened since the pod was popped; None where it is not in flight."""
        entry = self._pods.get(uid)
        return None if entry is None else list(islice(self._row, entry[0] - self._gone, None))

    def done(self, uid: str) -> None:
        """The pod is through, or came back. One that is unknown is fine: done twice is done."""
        if self._pods.pop(uid, None) is None:
            return
        self._recorder.in_flight(POD_POPPED, -1)
        oldest = next(iter(self._pods.values()), None)
        needed = len(self._row) if oldest is None else oldest[0] - self._gone
        for happening in islice(self._row, self._dropped, needed):
            self._recorder.in_flight(happening.event.name, -1)
        self._dropped = max(self._dropped, needed)
        if self._dropped == len(self._row) or self._dropped > _TRIM_THRESHOLD:
            del self._row[: self._dropped]
            self._gone += self._dropped
            self._dropped = 0
