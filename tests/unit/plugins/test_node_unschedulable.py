"""Cordoned nodes."""

from __future__ import annotations

import pytest

from bayplan.objects.core import Node, Toleration
from bayplan.plugins.node_unschedulable import UNSCHEDULABLE_REASON, NodeUnschedulable
from support.builders.framework import (
    FEASIBLE,
    FilterResult,
    evaluate_hints,
    make_node,
    make_pod,
    run_filter,
    unresolvable,
)

CORDON = "node.kubernetes.io/unschedulable"
OPEN, CLOSED = make_node(), make_node(unschedulable=True)
EXISTS = Toleration(key=CORDON, operator="Exists")


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param((), unresolvable(UNSCHEDULABLE_REASON), id="no toleration"),
        pytest.param((EXISTS,), FEASIBLE, id="tolerates the cordon"),
        pytest.param((Toleration(operator="Exists"),), FEASIBLE, id="tolerates everything"),
        pytest.param((Toleration(key=CORDON),), FEASIBLE, id="equal to the empty value"),
        pytest.param(
            (Toleration(key=CORDON, operator="Exists", effect="NoExecute"),),
            unresolvable(UNSCHEDULABLE_REASON),
            id="another effect",
        ),
        pytest.param((Toleration(key=CORDON, value="x"),), unresolvable(UNSCHEDULABLE_REASON), id="another value"),
    ],
)
def test_cordoned(tolerations: tuple[Toleration, ...], expected: FilterResult) -> None:
    found = run_filter(
        NodeUnschedulable, make_pod(tolerations=tolerations), make_node("a"), make_node("b", unschedulable=True)
    )
    assert found == {"a": FEASIBLE, "b": expected}


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, OPEN, "Queue", id="an open node came"),
        pytest.param(None, CLOSED, "Skip", id="a cordoned node came"),
        pytest.param(CLOSED, OPEN, "Queue", id="uncordoned"),
        pytest.param(OPEN, CLOSED, "Skip", id="cordoned"),
        pytest.param(OPEN, OPEN, "Skip", id="was open before"),
    ],
)
def test_node_hints(old: Node | None, new: Node, hint: str) -> None:
    assert evaluate_hints(NodeUnschedulable(), "Node", make_pod(), old, new) == [hint]


@pytest.mark.parametrize(
    ("name", "tolerations", "hint"),
    [
        pytest.param("pod", (EXISTS,), "Queue", id="its own, and now it tolerates"),
        pytest.param("pod", (Toleration(key="x", operator="Exists"),), "Skip", id="its own, something else"),
        pytest.param("other", (EXISTS,), "Skip", id="another pod's"),
    ],
)
def test_pod_hints(name: str, tolerations: tuple[Toleration, ...], hint: str) -> None:
    old, new = make_pod(name), make_pod(name, tolerations=tolerations)
    assert evaluate_hints(NodeUnschedulable(), "Pod", make_pod("pod"), old, new) == [hint]


def test_pods_share_answers_if_they_tolerate_alike() -> None:
    sign = NodeUnschedulable().signature
    assert sign(make_pod()) == sign(make_pod(tolerations=(Toleration(key="x", operator="Exists"),)))
    assert sign(make_pod()) != sign(make_pod(tolerations=(EXISTS,)))
