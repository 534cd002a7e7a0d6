"""The order of the queue: a key, or a plugin's `less`."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.plugin import QueuedPod as Compared
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.plugins.priority_sort import PrioritySort
from bayplan.queue import QueuedPodInfo, queue_order
from bayplan.queue.heap import PodHeap
from bayplan.snapshot import PodInfo
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import make_pod

CLOCK = ManualClock()
BOUNDARY = PluginCaller(CLOCK, PluginTimings())


def queued(name: str, *, priority: int = 0, after_s: float = 0.0) -> QueuedPodInfo:
    return QueuedPodInfo(PodInfo(make_pod(name, priority=priority)), CLOCK.now() + timedelta(seconds=after_s))


class ByName:
    name = "ByName"

    def less(self, first: Compared, second: Compared) -> bool:
        return first.pod.name < second.pod.name


class Backwards(PrioritySort):
    def less(self, first: Compared, second: Compared) -> bool:
        return super().less(second, first)


class Broken(ByName):
    def less(self, first: Compared, second: Compared) -> bool:
        raise KeyError(first.pod.name + second.pod.name)


@pytest.mark.parametrize(
    ("sorter", "order"),
    [
        pytest.param(PrioritySort(), ["b", "a", "c"], id="priority"),
        pytest.param(ByName(), ["a", "b", "c"], id="less-alone"),
        pytest.param(Backwards(), ["c", "a", "b"], id="less-of-a-subclass-and-not-the-key-that-it-inherits"),
        pytest.param(Broken(), ["b", "a", "c"], id="by-time-where-less-fails"),
    ],
)
def test_pods_come_in_the_plugins_order(sorter: Any, order: list[str]) -> None:
    heap = PodHeap(queue_order(sorter, BOUNDARY))
    for pod in (queued("c", after_s=2), queued("a", after_s=1), queued("b", priority=1)):
        heap.push(pod)
    assert [pod.pod.name for pod in heap] == order
    popped = [heap.pop() for _ in range(4)]
    assert [pod and pod.pod.name for pod in popped] == [*order, None]


def test_a_stale_entry_keeps_the_heap_in_order() -> None:
    """A plugin compares pods as they were when they entered, also removed and changed ones."""
    heap = PodHeap(queue_order(ByName(), BOUNDARY))
    pods = [queued(name) for name in "dbfaceg"]
    for pod in pods:
        heap.push(pod)
    for pod in pods[:3]:
        heap.remove(pod)
        pod.update(PodInfo(make_pod(f"z{pod.pod.name}")))
        heap.push(pod)
    assert [heap.pop(), heap.pop()] == [pods[3], pods[4]]
    assert [each.pod.name for each in heap] == ["e", "g", "zb", "zd", "zf"]


def test_a_removed_pod_does_not_affect_the_order() -> None:
    chance = random.Random(3)
    heap = PodHeap(PrioritySort().sort_key)
    pods = [queued(f"p{number}", priority=chance.randint(0, 5), after_s=number) for number in range(400)]
    for pod in pods:
        heap.push(pod)
    left = []
    for pod in pods:
        if chance.random() < 0.9:
            heap.remove(pod)
        else:
            left.append(pod)
    expected = sorted(left, key=lambda pod: (-pod.pod.priority, pod.timestamp))
    assert len(heap) == len(left)
    assert [heap.pop() for _ in left] == expected
