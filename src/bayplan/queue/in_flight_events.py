"""Events that happen while pods are in flight.

One list holds the events in order of arrival. A pod that returns from its attempt replays the events after its pop.
Events older than every pod in flight are dropped.
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
    """Pods that were popped and are not done, and the events since then."""

    def __init__(self, recorder: QueueRecorder) -> None:
        self._recorder = recorder
        self._events: list[InFlightEvent] = []
        self._removed_count = 0  # events removed from the front of the list
        self._obsolete_count = 0  # events at the front of the list that no pod needs
        self._pods: dict[str, tuple[int, Pod]] = {}  # uid -> number of earlier events, in order of popping

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def pods(self) -> Iterator[Pod]:
        return (pod for _, pod in self._pods.values())

    def events(self) -> Sequence[InFlightEvent]:
        """The events that a pod may still need."""
        return self._events[self._obsolete_count :]

    def add(self, pod: Pod) -> None:
        self._pods[pod.uid] = (self._removed_count + len(self._events), pod)
        self._recorder.in_flight(POD_POPPED, 1)

    def add_event(self, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None) -> None:
        """Record an event. It matters only while a pod is in flight."""
        if self._pods:
            self._events.append(InFlightEvent(event, old, new))
            self._recorder.in_flight(event.name, 1)

    def events_since(self, uid: str) -> list[InFlightEvent] | None:
        """Return the events since the pod was popped; None if it is not in flight."""
        entry = self._pods.get(uid)
        return None if entry is None else list(islice(self._events, entry[0] - self._removed_count, None))

    def done(self, uid: str) -> None:
        """End the attempt of a pod. An unknown pod is ignored, so a second call has no effect."""
        if self._pods.pop(uid, None) is None:
            return
        self._recorder.in_flight(POD_POPPED, -1)
        oldest = next(iter(self._pods.values()), None)
        needed = len(self._events) if oldest is None else oldest[0] - self._removed_count
        for in_flight_event in islice(self._events, self._obsolete_count, needed):
            self._recorder.in_flight(in_flight_event.event.name, -1)
        self._obsolete_count = max(self._obsolete_count, needed)
        if self._obsolete_count == len(self._events) or self._obsolete_count > _TRIM_THRESHOLD:
            del self._events[: self._obsolete_count]
            self._removed_count += self._obsolete_count
            self._obsolete_count = 0
