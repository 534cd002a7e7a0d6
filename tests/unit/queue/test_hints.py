"""Registered events of plugins, and the results of their queueing hints."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
)
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_DELETE, NODE_ADD
from bayplan.objects.core import Pod
from bayplan.queue import HintTable, ObservedEvent, QueueCounters, QueuedPodInfo, QueueingStrategy
from bayplan.queue.hints import HintKey
from bayplan.snapshot import PodInfo
from support.builders.framework import make_node, make_pod

PROFILE = "default-scheduler"
ADDED = ObservedEvent(NODE_ADD, None, make_node())
CLOCK = ManualClock()


def breaks(pod: Pod, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
    raise SystemExit("no plugin ends the process")


def table(**plugins: tuple[ClusterEventWithHint, ...]) -> HintTable:
    return HintTable({PROFILE: plugins}, QueueCounters(), CLOCK.monotonic_s)


def rejected(*plugins: str, pending: tuple[str, ...] = ()) -> QueuedPodInfo:
    return QueuedPodInfo(
        PodInfo(make_pod()), CLOCK.now(), unschedulable_plugins=frozenset(plugins), pending_plugins=frozenset(pending)
    )


QUEUE, SKIP = (
    ClusterEventWithHint(EventResource.NODE, ActionType.ADD, lambda _p, _o, _n, hint=hint: hint)
    for hint in (QueueingHint.QUEUE, QueueingHint.SKIP)
)


@pytest.mark.parametrize(
    ("queued", "strategy"),
    [
        pytest.param(rejected("Yes"), QueueingStrategy.AFTER_BACKOFF, id="yes"),
        pytest.param(rejected("No"), QueueingStrategy.SKIP, id="no"),
        pytest.param(rejected("No", "Yes"), QueueingStrategy.AFTER_BACKOFF, id="one-yes-is-enough"),
        pytest.param(rejected("Unheard"), QueueingStrategy.SKIP, id="nobody-asked"),
        pytest.param(rejected(), QueueingStrategy.AFTER_BACKOFF, id="nobody-rejected-it"),
        pytest.param(rejected("Yes", pending=("Yes",)), QueueingStrategy.IMMEDIATELY, id="what-it-waited-for"),
        pytest.param(
            rejected("Yes", "No", pending=("No",)), QueueingStrategy.AFTER_BACKOFF, id="not-what-it-waited-for"
        ),
        pytest.param(rejected("Broken"), QueueingStrategy.AFTER_BACKOFF, id="a-failure-is-a-yes"),
    ],
)
def test_only_hints_of_rejectors_count(queued: QueuedPodInfo, strategy: QueueingStrategy) -> None:
    broken = ClusterEventWithHint(EventResource.NODE, ActionType.ADD, breaks)
    assert table(Yes=(QUEUE,), No=(SKIP, SKIP), Broken=(broken,)).strategy(queued, ADDED) is strategy


def test_a_wildcard_with_an_object_applies_to_that_pod() -> None:
    all_pods = ClusterEvent(EventResource.ANY, ActionType.ALL)
    hints = table(No=(SKIP,))
    for new, strategy in (
        (None, QueueingStrategy.AFTER_BACKOFF),
        (make_pod(), QueueingStrategy.AFTER_BACKOFF),
        (make_pod("other"), QueueingStrategy.SKIP),
        (make_node(), QueueingStrategy.SKIP),
    ):
        assert hints.strategy(rejected("No"), ObservedEvent(all_pods, None, new)) is strategy


def test_a_failing_hint_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    hints = table(Broken=(ClusterEventWithHint(EventResource.NODE, ActionType.ADD, breaks),))
    with caplog.at_level(logging.WARNING):
        for _ in range(25):
            hints.strategy(rejected("Broken"), ADDED)
    assert len(caplog.records) == 1
    assert "plugin Broken on NodeAdd" in caplog.text


def test_one_call_in_ten_is_timed() -> None:
    counters = QueueCounters()
    hints = HintTable({PROFILE: {"Yes": (QUEUE,), "No": (SKIP,)}}, counters, CLOCK.monotonic_s)
    for _ in range(30):
        hints.strategy(rejected("Yes"), ADDED)
    assert counters.hints == {("Yes", "NodeAdd", "Queue"): 3}
    for _ in range(10):
        hints.strategy(rejected("No"), ADDED)
    assert counters.hints["No", "NodeAdd", "QueueSkip"] == 1


def test_a_keyed_hint_runs_once_for_each_key_and_a_failure_counts_as_queue() -> None:
    calls = []

    def judge(key: int, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        calls.append(key)
        if key == 3:
            raise ValueError(key)
        return QueueingHint.QUEUE if key == 1 else QueueingHint.SKIP

    hints = table(P=(ClusterEventWithHint.with_hint_key(EventResource.NODE, ActionType.ADD, no_hint_key, judge),))
    (registration,) = hints.matching(PROFILE, NODE_ADD)
    keys = [HintKey(number) for number in (1, 2, 3, 4)]
    answers = {keys[1]: True}
    hints.evaluate_for_keys(registration, [*keys, None, keys[0]], answers, ADDED)
    assert [answers[key] for key in keys] == [True, True, True, False]
    assert calls == [1, 3, 4]


def test_registrations_by_event() -> None:
    hints = HintTable(
        {
            "one": {
                "P": (
                    ClusterEventWithHint(EventResource.POD, ActionType.DELETE),
                    ClusterEventWithHint(EventResource.NODE, ActionType.ADD),
                )
            },
            "two": {"Q": (ClusterEventWithHint(EventResource.NODE, ActionType.UPDATE_NODE_TAINT),)},
        },
        QueueCounters(),
        CLOCK.monotonic_s,
    )
    assert hints.has_registrations(ASSIGNED_POD_DELETE)
    assert not hints.has_registrations(ClusterEvent(EventResource.NODE, ActionType.DELETE))
    assert hints.is_registered_by("P", ASSIGNED_POD_DELETE)
    assert not hints.is_registered_by("Q", ASSIGNED_POD_DELETE)
    assert hints.registered_actions(EventResource.NODE) == ActionType.ADD | ActionType.UPDATE_NODE_TAINT
    assert hints.registered_actions(EventResource.CSI_NODE) == ActionType(0)
