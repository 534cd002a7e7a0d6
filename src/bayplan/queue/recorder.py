"""What the queue tells whoever counts: the facts behind kube-scheduler's metrics of the queue.

A recorder is told and never asked. `QueueCounters` keeps plain numbers; a process that serves metrics brings its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

POD_POPPED = "PodPopped"
"""What `inflight_events` calls a pod that is being tried."""


class QueueRecorder(Protocol):
    def incoming(self, queue: str, event: str) -> None:
        """`queue_incoming_pods_total`: a pod entered active, backoff or unschedulable because of an event."""
        ...

    def rejected(self, plugin: str, profile: str, by: int) -> None:
        """`unschedulable_pods`: so many pods more or less wait because of this plugin."""
        ...

    def in_flight(self, event: str, by: int) -> None:
        """`inflight_events`: so many events more or less are kept for pods that are being tried."""
        ...

    def hint(self, plugin: str, event: str, answer: str, seconds: float) -> None:
        """`queueing_hint_execution_duration_seconds`: how long a hint took to say Queue, QueueSkip or Error."""
        ...


class QueueCounters:
    """Keeps the numbers in this process. Durations of hints are not kept, only how often which answer came."""

    def __init__(self) -> None:
        self.incoming_pods: Counter[tuple[str, str]] = Counter()
        self.unschedulable_pods: Counter[tuple[str, str]] = Counter()
        self.in_flight_events: Counter[str] = Counter()
        self.hints: Counter[tuple[str, str, str]] = Counter()

    def incoming(self, queue: str, event: str) -> None:
        self.incoming_pods[queue, event] += 1

    def rejected(self, plugin: str, profile: str, by: int) -> None:
        self.unschedulable_pods[plugin, profile] += by

    def in_flight(self, event: str, by: int) -> None:
        self.in_flight_events[event] += by

    def hint(self, plugin: str, event: str, answer: str, seconds: float) -> None:  # noqa: ARG002
        self.hints[plugin, event, answer] += 1
