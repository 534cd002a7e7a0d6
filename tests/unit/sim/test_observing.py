"""Decisions are read off a live cluster: which ones count, in which order, and which were one session's."""

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


def seen(name: str, node: str = "n", *, bound: float | None = None, made: float | None = 0.0, **fields: Any) -> Pod:
    """A pod with its condition; without a node it was refused."""
    condition = Condition(
        type="PodScheduled",
        status="True" if node else "False",
        last_transition_time=None if bound is None else at(bound),
    )
    status = PodStatus(conditions=(condition,))
    pod = make_pod(name, node=node, status=status, **fields)
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=None if made is None else at(made)))


def told(
    pods: Sequence[Pod], events: dict[str, float] | None = None, *, batch: Sequence[str] = ()
) -> list[tuple[str, int]]:
    """Names of pods with the number of their session."""
    bound_at = {f"uid-{name}": at(second) for name, second in (events or {}).items()}
    pods = [replace(pod, metadata=replace(pod.metadata, uid=f"uid-{pod.name}")) for pod in pods]
    found = read_observed_decisions(
        pods, bound_at, is_batch=lambda pod: pod.name in batch, serves=lambda pod: pod.scheduler_name != "other"
    )
    return [(each.pod.partition("/")[2], each.session) for each in found]


@pytest.mark.parametrize(
    ("pod", "moment"),
    [
        pytest.param(seen("p", bound=5.0), at(5), id="its condition"),
        pytest.param(make_pod("p", node="n"), LONG_AGO, id="nothing is known"),
        pytest.param(seen("p", bound=None), LONG_AGO, id="a condition without a time"),
    ],
)
def test_when_a_pod_got_its_node(pod: Pod, moment: datetime) -> None:
    pod = replace(pod, metadata=replace(pod.metadata, creation_timestamp=None))
    assert bound_time(pod, {}) == moment
    assert bound_time(pod, {pod.uid: at(9)}) == at(9)


def test_a_pod_without_a_condition_got_its_node_when_it_was_made() -> None:
    pod = make_pod("p", node="n")
    assert bound_time(replace(pod, metadata=replace(pod.metadata, creation_timestamp=at(3))), {}) == at(3)


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        pytest.param(make_pod(), True, id="pending"),
        pytest.param(make_pod(node="a", status=PodStatus(phase="Running")), True, id="running"),
        pytest.param(make_pod(node="a", status=PodStatus(phase="Succeeded")), False, id="succeeded"),
        pytest.param(make_pod(node="a", status=PodStatus(phase="Failed")), False, id="failed"),
        pytest.param(make_pod(node="a", terminating=True), False, id="leaving"),
        pytest.param(make_pod(annotations={"kubernetes.io/config.mirror": "x"}), False, id="made by a kubelet"),
    ],
)
def test_pods_that_a_scheduler_decides_about(pod: Pod, counts: bool) -> None:
    assert is_scheduler_managed(pod) is counts


def test_decisions_come_by_time_and_then_as_a_queue_has_them() -> None:
    pods = [
        seen("late", bound=9.0),
        seen("older", bound=5.0, made=1.0),
        seen("newer", bound=5.0, made=2.0),
        seen("urgent", bound=5.0, made=3.0, priority=7),
        seen("b", bound=5.0, made=2.0),
        seen("early", bound=8.0),
    ]
    names = [name for name, _ in told(pods, {"early": 1.0})]
    assert names == ["early", "urgent", "older", "b", "newer", "late"]


def test_pods_that_wait_come_last_and_only_when_they_were_refused() -> None:
    pods = [seen("gang", ""), seen("refused", ""), make_pod("new"), seen("bound", bound=1.0)]
    assert told(pods, batch=["gang"]) == [("bound", 0), ("refused", 0), ("gang", 1)]


def test_pods_of_other_schedulers_are_left_out() -> None:
    assert told([seen("p", bound=1.0, scheduler_name="other"), seen("q", bound=1.0)]) == [("q", 0)]


@pytest.mark.parametrize(
    ("gap_s", "sessions"),
    [(0.0, [1, 1]), (CONCURRENT_WINDOW.total_seconds(), [1, 1]), (CONCURRENT_WINDOW.total_seconds() + 0.1, [1, 2])],
    ids=["together", "just at once", "apart"],
)
def test_pods_of_one_group_that_were_bound_at_once_are_one_session_s(gap_s: float, sessions: list[int]) -> None:
    group = {"scheduling.k8s.io/group-name": "g"}
    pods = [seen(name, bound=second, annotations=group) for name, second in (("a", 1.0), ("b", 1.0 + gap_s))]
    assert told(pods, batch=["a", "b"]) == [("a", sessions[0]), ("b", sessions[1])]


def test_pods_of_different_groups_have_sessions_of_their_own() -> None:
    pods = [
        seen(name, bound=1.0, annotations={"scheduling.k8s.io/group-name": group})
        for name, group in (("a", "g"), ("b", "h"), ("c", "g"))
    ]
    assert told(pods, batch="abc") == [("a", 1), ("c", 1), ("b", 2)]
