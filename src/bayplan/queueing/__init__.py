"""Who is next: pods that are ready, pods that back off, and pods that wait for an event that may cure them."""

from bayplan.queueing.heap import queue_order
from bayplan.queueing.hints import HintTable, Occasion, Strategy
from bayplan.queueing.profiles import QueueProfile
from bayplan.queueing.queue import SchedulingQueue
from bayplan.queueing.queued import Pool, QueuedPod
from bayplan.queueing.recording import QueueCounters, QueueRecorder
from bayplan.queueing.settings import QueueSettings

__all__ = [
    "HintTable",
    "Occasion",
    "Pool",
    "QueueCounters",
    "QueueProfile",
    "QueueRecorder",
    "QueueSettings",
    "QueuedPod",
    "SchedulingQueue",
    "Strategy",
    "queue_order",
]
