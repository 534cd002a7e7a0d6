"""Recorder of the queue's metrics, with kube-scheduler's names.

`QueueCounters` stores plain numbers; a process that serves metrics has its own recorder.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

POD_POPPED = "PodPopped"
"""The label of a pod in flight in `inflight_events`."""


class QueueRecorder(Protocol):
    def incoming(self, queue: str, event: str) -> None:
        """`queue_incoming_pods_total`: a pod entered active, backoff or unschedulable because of an event."""
        ...

    def add_rejected(self, plugin: str, profile: str, by: int) -> None:
        """`unschedulable_pods`: the number of pods that wait because of this plugin changed by `by`."""
        ...

    def in_flight(self, event: str, by: int) -> None:
        """`inflight_events`: the number of events stored for pods in flight changed by `by`."""
        ...

    def hint(self, plugin: str, event: str, result: str, seconds: float) -> None:
        """`queueing_hint_execution_duration_seconds`: duration of a hint with the result Queue, QueueSkip or Error."""
        ...


class QueueCounters:
    """Counts in memory. Durations of hints are not stored, only the number of each result."""

    def __init__(self) -> None:
        self.incoming_pods: Counter[tuple[str, str]] = Counter()
        self.unschedulable_pods: Counter[tuple[str, str]] = Counter()
        self.in_flight_events: Counter[str] = Counter()
        self.hints: Counter[tuple[str, str, str]] = Counter()

    def incoming(self, queue: str, event: str) -> None:
        self.incoming_pods[queue, event] += 1

    def add_rejected(self, plugin: str, profile: str, by: int) -> None:
        self.unschedulable_pods[plugin, profile] += by

    def in_flight(self, event: str, by: int) -> None:
        self.in_flight_events[event] += by

    def hint(self, plugin: str, event: str, result: str, seconds: float) -> None:  # noqa: ARG002
        self.hints[plugin, event, result] += 1
