"""Scheduling queue: active pods, pods in backoff, and unschedulable pods that wait for an event."""

from bayplan.queue.heap import queue_order
from bayplan.queue.hints import HintTable, ObservedEvent, QueueingStrategy
from bayplan.queue.queue_profile import QueueProfile
from bayplan.queue.queued_pod import QueuedPodInfo, SubQueue
from bayplan.queue.recorder import QueueCounters, QueueRecorder
from bayplan.queue.scheduling_queue import SchedulingQueue
from bayplan.queue.settings import QueueSettings

__all__ = [
    "HintTable",
    "ObservedEvent",
    "QueueCounters",
    "QueueProfile",
    "QueueRecorder",
    "QueueSettings",
    "QueuedPodInfo",
    "QueueingStrategy",
    "SchedulingQueue",
    "SubQueue",
    "queue_order",
]
