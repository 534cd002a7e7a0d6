"""Pods that wait at Permit: counted on their node, placed when allowed, unreserved when rejected."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.errors import PluginError
from bayplan.framework import PermitWait, Status, unschedulable
from bayplan.scheduler.engine import PodEngine
from support.builders.framework import make_node, make_pod

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: Guard}]}}
"""


class Guard:
    """Delays every pod for ten seconds, or returns the test's answer."""

    name = "Guard"
    answer: Any = PermitWait(10)
    unreserved: list[str]

    def __init__(self) -> None:
        self.unreserved = []

    def reserve(self, cycle: Any, node_name: str) -> None: ...

    def unreserve(self, cycle: Any, node_name: str) -> None:  # noqa: ARG002
        self.unreserved.append(cycle.pod.name)

    def permit(self, cycle: Any, node_name: str) -> Any:  # noqa: ARG002
        return self.answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> PodEngine:
    registry = known_plugins().with_plugins(Guard)
    cache = filled_cache([make_node("a")])
    return PodEngine(configured(CONFIG, registry), registry, cache, clock=clock, chance=random.Random(0))


def guard(engine: PodEngine) -> Guard:
    found = engine.framework("default-scheduler").profile.instances["Guard"]
    assert isinstance(found, Guard)
    return found


def test_a_waiting_pod_is_counted_and_not_placed(engine: PodEngine) -> None:
    placed = engine.place(make_pod("p"))
    assert placed.waiting
    assert engine.cache.pod_count == 1
    assert engine.settle_waiting_pods() == []


def test_a_waiting_pod_is_placed_when_every_plugin_allows_it(engine: PodEngine) -> None:
    pod = make_pod("p")
    engine.place(pod)
    waiting = engine.waiting_pods.get(pod.uid)
    assert waiting is not None
    waiting.allow("Guard")
    ((settled, status),) = engine.settle_waiting_pods()
    assert (settled.name, status.ok, engine.cache.pod_count) == ("p", True, 1)
    assert engine.settle_waiting_pods() == []


def test_a_rejected_waiting_pod_is_unreserved(engine: PodEngine) -> None:
    pod = make_pod("p")
    engine.place(pod)
    waiting = engine.waiting_pods.get(pod.uid)
    assert waiting is not None
    waiting.reject("Guard", "changed my mind")
    ((_, status),) = engine.settle_waiting_pods()
    assert status == Status(unschedulable().code, ("0/1 nodes are available: 1 changed my mind.",), plugin="Guard")
    assert engine.cache.pod_count == 0
    assert guard(engine).unreserved == ["p"]


def test_a_waiting_pod_times_out(engine: PodEngine, clock: ManualClock) -> None:
    engine.place(make_pod("p"))
    clock.advance(10)
    ((_, status),) = engine.settle_waiting_pods()
    assert "rejected due to timeout after waiting 10s at plugin Guard" in status.message
    assert engine.cache.pod_count == 0


def test_the_message_of_a_rejection_at_permit_counts_one_node(engine: PodEngine) -> None:
    guard(engine).answer = unschedulable("closed", "and dark")
    placed = engine.place(make_pod("p"))
    assert placed.node is None
    assert placed.status.message == "0/1 nodes are available: 1 and dark, 1 closed."
    assert engine.cache.pod_count == 0
    record = engine.records.latest("default/p")
    assert record is not None
    assert record.outcome == "unschedulable"


def test_pods_are_sorted_as_the_queue_pops_them(engine: PodEngine) -> None:
    pods = [make_pod("low", priority=1), make_pod("high", priority=9), make_pod("later", priority=9)]
    assert [pod.name for pod in engine.in_queue_order(pods)] == ["high", "later", "low"]


def test_a_queue_order_that_raises_is_named() -> None:
    class Shaky:
        name = "Shaky"

        def less(self, first: Any, second: Any) -> bool:  # noqa: ARG002
            raise ValueError("no order today")

    registry = known_plugins().with_plugins(Shaky)
    text = CONFIG.replace(
        "multiPoint: {enabled: [{name: Guard}]}",
        "queueSort: {disabled: [{name: PrioritySort}], enabled: [{name: Shaky}]}",
    )
    shaky = PodEngine(
        configured(text, registry), registry, filled_cache([]), clock=ManualClock(), chance=random.Random(0)
    )
    with pytest.raises(PluginError, match='plugin "Shaky" at queueSort: ValueError: no order today'):
        shaky.in_queue_order([make_pod("a"), make_pod("b")])
