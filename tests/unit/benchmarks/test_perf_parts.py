"""The parts of a cluster in memory: a clock that need not wait, the words of events, a line without backoff."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.perf.background import Background
from benchmarks.perf.events import events_between
from benchmarks.perf.waiting import WaitingLine

from bayplan.framework.events import Action, ClusterEvent, Cure, Hint, Resource
from bayplan.objects.core import Node, Pod
from bayplan.snapshot import PodInfo
from builders import make_node, make_pod, taint


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


def node_with(**fields: Any) -> Node:
    return make_node("n", **fields)


@pytest.mark.parametrize(
    ("old", "new", "actions"),
    [
        (None, node_with(), [Action.ADD]),
        (node_with(), None, [Action.DELETE]),
        (node_with(), node_with(), []),
        (node_with(), node_with(unschedulable=True), [Action.UPDATE_NODE_TAINT]),
        (node_with(), node_with(taints=[taint("t")]), [Action.UPDATE_NODE_TAINT]),
        (node_with(), node_with(labels={"a": "b"}), [Action.UPDATE_NODE_LABEL]),
        (node_with(), node_with(cpu=99), [Action.UPDATE_NODE_ALLOCATABLE]),
        (node_with(), node_with(features=["F"]), [Action.UPDATE_NODE_DECLARED_FEATURE]),
        (make_pod(node="n", cpu="2"), make_pod(node="n", cpu="1"), [Action.UPDATE_POD_SCALE_DOWN]),
        (make_pod(gates=["g"]), make_pod(), [Action.UPDATE_POD_GATES_ELIMINATED]),
        (
            make_pod(),
            make_pod(labels={"a": "b"}, tolerations=["t"]),
            [Action.UPDATE_POD_LABEL, Action.UPDATE_POD_TOLERATION],
        ),
        (None, None, []),
    ],
)
def test_changes_are_told_in_the_words_of_plugins(old: Any, new: Any, actions: list[Action]) -> None:
    assert [event.action for event in events_between(old, new)] == actions


def test_pods_are_told_apart_by_whether_they_have_a_node() -> None:
    ((placed_one,), (waiting,)) = (events_between(None, make_pod(node="n")), events_between(None, make_pod()))
    assert (placed_one.resource, waiting.resource) == (Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD)


def test_a_line_hands_out_by_priority_and_wakes_by_hints() -> None:
    def only_green(pod: Pod, old: Any, new: Any) -> Hint:  # noqa: ARG001
        return Hint.QUEUE if pod.labels == {"color": "green"} else Hint.SKIP

    line = WaitingLine(
        {"P": (Cure(Resource.NODE, Action.ADD, only_green),), "Q": (Cure(Resource.NODE, Action.DELETE),)}
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
    assert line.woken(ClusterEvent(Resource.NODE, Action.ADD), None, make_node()) == [green]
    assert line.woken(ClusterEvent(Resource.NODE, Action.DELETE), make_node(), None) == [high]
    assert (line.parked, line.is_parked(low.uid)) == (1, True)
    line.drop(low.uid)
    assert line.parked == 0


def test_a_pod_that_is_gone_has_no_turn() -> None:
    line = WaitingLine({})
    info = PodInfo(make_pod())
    line.enter(info)
    line.drop(info.uid)
    assert line.next() is None
