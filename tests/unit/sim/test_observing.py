"""Decisions observed in a live cluster: which pods count, their order, and their sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import Condition
from bayplan.sim.recordings.observed_decisions import (
    CONCURRENT_WINDOW,
    bound_time,
    is_scheduler_managed,
    read_observed_decisions,
)
from bayplan.testing import make_pod

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def observed_pod(
    name: str, node: str = "n", *, bound: float | None = None, created: float | None = 0.0, **fields: Any
) -> Pod:
    """A pod with a PodScheduled condition; without a node it is False."""
    condition = Condition(
        type="PodScheduled",
        status="True" if node else "False",
        last_transition_time=None if bound is None else at(bound),
    )
    status = PodStatus(conditions=(condition,))
    pod = make_pod(name, node=node, status=status, **fields)
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=None if created is None else at(created)))


def names_and_sessions(
    pods: Sequence[Pod], events: dict[str, float] | None = None, *, batch: Sequence[str] = ()
) -> list[tuple[str, int]]:
    """Names of the decided pods with their session numbers."""
    bound_at = {f"uid-{name}": at(second) for name, second in (events or {}).items()}
    pods = [replace(pod, metadata=replace(pod.metadata, uid=f"uid-{pod.name}")) for pod in pods]
    found = read_observed_decisions(
        pods, bound_at, is_batch=lambda pod: pod.name in batch, serves=lambda pod: pod.scheduler_name != "other"
    )
    return [(each.pod.partition("/")[2], each.session) for each in found]


@pytest.mark.parametrize(
    ("pod", "moment"),
    [
        pytest.param(observed_pod("p", bound=5.0), at(5), id="its condition"),
        pytest.param(make_pod("p", node="n"), LONG_AGO, id="nothing is known"),
        pytest.param(observed_pod("p", bound=None), LONG_AGO, id="a condition without a time"),
    ],
)
def test_bound_time(pod: Pod, moment: datetime) -> None:
    pod = replace(pod, metadata=replace(pod.metadata, creation_timestamp=None))
    assert bound_time(pod, {}) == moment
    assert bound_time(pod, {pod.uid: at(9)}) == at(9)


def test_bound_time_without_a_condition_is_the_creation_time() -> None:
    pod = make_pod("p", node="n")
    assert bound_time(replace(pod, metadata=replace(pod.metadata, creation_timestamp=at(3))), {}) == at(3)


@pytest.mark.parametrize(
    ("pod", "is_managed"),
    [
        pytest.param(make_pod(), True, id="pending"),
        pytest.param(make_pod(node="a", status=PodStatus(phase="Running")), True, id="running"),
        pytest.param(make_pod(node="a", status=PodStatus(phase="Succeeded")), False, id="succeeded"),
        pytest.param(make_pod(node="a", status=PodStatus(phase="Failed")), False, id="failed"),
        pytest.param(make_pod(node="a", terminating=True), False, id="leaving"),
        pytest.param(make_pod(annotations={"kubernetes.io/config.mirror": "x"}), False, id="created by a kubelet"),
    ],
)
def test_pods_managed_by_a_scheduler(pod: Pod, is_managed: bool) -> None:
    assert is_scheduler_managed(pod) is is_managed


def test_decisions_are_sorted_by_time_and_then_in_queue_order() -> None:
    pods = [
        observed_pod("late", bound=9.0),
        observed_pod("older", bound=5.0, created=1.0),
        observed_pod("newer", bound=5.0, created=2.0),
        observed_pod("urgent", bound=5.0, created=3.0, priority=7),
        observed_pod("b", bound=5.0, created=2.0),
        observed_pod("early", bound=8.0),
    ]
    names = [name for name, _ in names_and_sessions(pods, {"early": 1.0})]
    assert names == ["early", "urgent", "older", "b", "newer", "late"]


def test_only_unschedulable_waiting_pods_are_decisions_and_come_last() -> None:
    pods = [
        observed_pod("gang", ""),
        observed_pod("unschedulable", ""),
        make_pod("new"),
        observed_pod("bound", bound=1.0),
    ]
    assert names_and_sessions(pods, batch=["gang"]) == [("bound", 0), ("unschedulable", 0), ("gang", 1)]


def test_pods_of_other_schedulers_are_ignored() -> None:
    assert names_and_sessions([observed_pod("p", bound=1.0, scheduler_name="other"), observed_pod("q", bound=1.0)]) == [
        ("q", 0)
    ]


@pytest.mark.parametrize(
    ("gap_s", "sessions"),
    [(0.0, [1, 1]), (CONCURRENT_WINDOW.total_seconds(), [1, 1]), (CONCURRENT_WINDOW.total_seconds() + 0.1, [1, 2])],
    ids=["together", "just at once", "apart"],
)
def test_concurrent_pods_of_one_group_are_one_session(gap_s: float, sessions: list[int]) -> None:
    group = {"scheduling.k8s.io/group-name": "g"}
    pods = [observed_pod(name, bound=second, annotations=group) for name, second in (("a", 1.0), ("b", 1.0 + gap_s))]
    assert names_and_sessions(pods, batch=["a", "b"]) == [("a", sessions[0]), ("b", sessions[1])]


def test_pods_of_different_groups_have_different_sessions() -> None:
    pods = [
        observed_pod(name, bound=1.0, annotations={"scheduling.k8s.io/group-name": group})
        for name, group in (("a", "g"), ("b", "h"), ("c", "g"))
    ]
    assert names_and_sessions(pods, batch="abc") == [("a", 1), ("c", 1), ("b", 2)]
