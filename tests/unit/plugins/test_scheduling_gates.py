"""Pods with gates stay out of the queue."""

from __future__ import annotations

import pytest

from bayplan.framework.api.events import ActionType, ClusterEvent, EventResource
from bayplan.objects.core import PodSchedulingGate
from bayplan.plugins.scheduling_gates import SchedulingGates
from support.builders.framework import evaluate_hints, filter_result, make_pod, unresolvable


def gated(*names: str) -> tuple[PodSchedulingGate, ...]:
    return tuple(PodSchedulingGate(name=name) for name in names)


def test_a_pod_without_gates_enters() -> None:
    assert SchedulingGates().pre_enqueue(make_pod()) is None


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param(("a",), "waiting for scheduling gates: [a]", id="one"),
        pytest.param(("b", "a"), "waiting for scheduling gates: [b a]", id="several, as written"),
    ],
)
def test_the_status_of_a_gated_pod_lists_its_gates(names: tuple[str, ...], text: str) -> None:
    status = SchedulingGates().pre_enqueue(make_pod(scheduling_gates=gated(*names)))
    assert status is not None
    assert filter_result(status) == unresolvable(text)


@pytest.mark.parametrize(("other", "hint"), [("pod", "Queue"), ("other", "Skip")])
def test_only_an_update_of_the_pod_itself_queues_it(other: str, hint: str) -> None:
    plugin = SchedulingGates()
    assert evaluate_hints(
        plugin, "Pod", make_pod("pod"), make_pod(other, scheduling_gates=gated("a")), make_pod(other)
    ) == [hint]


def test_it_registers_for_gates_alone() -> None:
    (registration,) = SchedulingGates.events_to_register
    assert registration.matches(ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.UPDATE_POD_GATES_ELIMINATED))
    assert not registration.matches(ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.UPDATE))
