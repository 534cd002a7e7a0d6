"""Parts of the in-memory cluster: a clock that skips idle time, and pending pods without backoff."""

from __future__ import annotations

from typing import Any

from benchmarks.perf.background import Background
from benchmarks.perf.pending_pods import PendingPods

from bayplan.framework.api.events import ActionType, ClusterEvent, ClusterEventWithHint, EventResource, QueueingHint
from bayplan.objects.core import Pod
from bayplan.snapshot import PodInfo
from support.builders.framework import make_node, make_pod


def test_skipping_moves_the_clock_and_late_tasks_do_not_catch_up() -> None:
    found, done = Background(), []
    found.start(lambda: bool(done.append("a")) or len(done) < 2, 100.0)
    assert done == []
    found.run_due()
    assert done == []
    assert found.skip()
    found.run_due()
    assert done == ["a"]
    assert found.skip()
    found.run_due()
    assert not found.skip()
    assert done == ["a", "a"]


def test_skipping_goes_no_further_than_asked() -> None:
    found = Background()
    found.start(lambda: True, 1e6)
    end = found.now_s + 1000.0
    assert found.skip(end)
    assert end <= found.now_s < end + 1000.0


def test_pods_are_ordered_by_priority_and_requeued_by_hints() -> None:
    def only_green(pod: Pod, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        return QueueingHint.QUEUE if pod.labels == {"color": "green"} else QueueingHint.SKIP

    line = PendingPods(
        {
            "P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, only_green),),
            "Q": (ClusterEventWithHint(EventResource.NODE, ActionType.DELETE),),
        }
    )
    low, high, green = (
        PodInfo(pod) for pod in (make_pod("a"), make_pod("b", priority=5), make_pod("c", labels={"color": "green"}))
    )
    line.enter(low)
    line.enter(high)
    assert len(line) == 2
    assert [line.next(), line.next(), line.next()] == [high, low, None]
    for info, plugins in ((low, {"P"}), (green, {"P"}), (high, {"Q"})):
        line.park(info, frozenset(plugins))
    assert line.woken(ClusterEvent(EventResource.NODE, ActionType.ADD), None, make_node()) == [green]
    assert line.woken(ClusterEvent(EventResource.NODE, ActionType.DELETE), make_node(), None) == [high]
    assert (line.parked, line.is_parked(low.uid)) == (1, True)
    line.drop(low.uid)
    assert line.parked == 0


def test_a_deleted_pod_is_not_returned() -> None:
    line = PendingPods({})
    info = PodInfo(make_pod())
    line.enter(info)
    line.drop(info.uid)
    assert line.next() is None
