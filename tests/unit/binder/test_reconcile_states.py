"""The table of states: what is done for a request, its pod and its node, and which mark is written first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.binder.reconcile import ReconcileAction, classify
from bayplan.binder.status_updater import (
    ATTEMPT_IN_PROGRESS,
    POST_BIND_IN_PROGRESS,
    ROLLBACK_IN_PROGRESS,
    BindFailed,
    BindSucceeded,
)
from bayplan.objects.core import Node, ObjectMeta, Pod, PodSpec
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus, NumaZone

DELETED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def request(status: BindRequestStatus | None = None, **spec: Any) -> BindRequest:
    meta = ObjectMeta(name="web", namespace="default", uid="r")
    spec = {"pod_name": "web", "pod_uid": "u", "selected_node": "n1", "backoff_limit": 2, **spec}
    return BindRequest(metadata=meta, spec=BindRequestSpec(**spec), status=status or BindRequestStatus())


def pod(node_name: str = "", **meta: Any) -> Pod:
    meta = {"name": "web", "namespace": "default", "uid": "u", **meta}
    return Pod(metadata=ObjectMeta(**meta), spec=PodSpec(node_name=node_name))


def node(**meta: Any) -> Node:
    return Node(metadata=ObjectMeta(name="n1", **meta))


LARGE = {"x": "y" * 256 * 1024}
ZONES = (NumaZone("node-0", {}),)
DIED = BindRequestStatus("Pending", ATTEMPT_IN_PROGRESS, 2)
GONE_MARK, BOUND_MARK, ATTEMPT_MARK = ROLLBACK_IN_PROGRESS, POST_BIND_IN_PROGRESS, ATTEMPT_IN_PROGRESS


@pytest.mark.parametrize(
    ("state", "action", "reason", "mark"),
    [
        pytest.param(
            (request(selected_node=""), pod(), None),
            ReconcileAction.NOTHING,
            "it names no node; spec.selectedNode must say which one",
            "",
            id="request-invalid",
        ),
        pytest.param((request(), None, node()), ReconcileAction.ROLL_BACK, "the pod is gone", GONE_MARK, id="pod-gone"),
        pytest.param(
            (request(), pod(uid="new"), node()),
            ReconcileAction.ROLL_BACK,
            "the pod is gone; another pod has its name",
            GONE_MARK,
            id="pod-replaced",
        ),
        pytest.param(
            (request(), pod("n2", deletion_timestamp=DELETED_AT), node()),
            ReconcileAction.ROLL_BACK,
            'the pod is bound elsewhere: to node "n2"',
            GONE_MARK,
            id="pod-bound-elsewhere",
        ),
        pytest.param((request(), pod("n1"), None), ReconcileAction.POST_BIND, None, BOUND_MARK, id="pod-bound-here"),
        pytest.param(
            (request(), pod(deletion_timestamp=DELETED_AT), None),
            ReconcileAction.ROLL_BACK,
            "the pod is gone: it is being deleted",
            GONE_MARK,
            id="pod-terminating",
        ),
        pytest.param(
            (request(predicted_numa_zones=ZONES), pod(annotations=LARGE), None),
            ReconcileAction.ROLL_BACK,
            "the pod's annotations would take 262227 bytes with predictedNUMAZones, which is more than the 262144 that "
            "are allowed",
            GONE_MARK,
            id="annotations-invalid",
        ),
        pytest.param(
            (request(DIED), pod(), node()),
            ReconcileAction.ROLL_BACK_UNLESS_BOUND,
            "the binder died during attempt 2 of 2; it is not tried again",
            GONE_MARK,
            id="attempts-used",
        ),
        pytest.param(
            (request(), pod(), None),
            ReconcileAction.ROLL_BACK_UNLESS_BOUND,
            'node "n1" is not there',
            ATTEMPT_MARK,
            id="node-missing",
        ),
        pytest.param(
            (request(), pod(), node(deletion_timestamp=DELETED_AT)),
            ReconcileAction.ROLL_BACK_UNLESS_BOUND,
            'node "n1" is being deleted',
            ATTEMPT_MARK,
            id="node-deleted",
        ),
        pytest.param((request(), pod(), node()), ReconcileAction.ATTEMPT, None, ATTEMPT_MARK, id="ready"),
    ],
)
def test_the_first_state_that_applies_decides(
    state: tuple[BindRequest, Pod | None, Node | None], action: ReconcileAction, reason: str | None, mark: str
) -> None:
    step = classify(*state, existed_at_start=True)
    assert (step.action, step.mark) == (action, mark)
    if reason is None:
        assert step.result == BindSucceeded(state[1] or pod())
    else:
        assert isinstance(step.result, BindFailed)
        assert step.result.reason == reason
        assert step.result.final == (mark != ATTEMPT_MARK)


def test_a_missing_node_is_the_reason_of_a_request_without_attempts_left() -> None:
    step = classify(request(DIED), pod(), None, existed_at_start=True)
    assert step.result == BindFailed('node "n1" is not there', pod(), final=True)
    assert step.is_after_limit


def test_attempts_of_this_process_do_not_count_as_crashes() -> None:
    assert classify(request(DIED), pod(), node(), existed_at_start=False).action is ReconcileAction.ATTEMPT
