"""Pods that name their node."""

from __future__ import annotations

import pytest

from bayplan.plugins.node_name import OTHER_NODE, NodeName
from support.builders.framework import (
    FEASIBLE,
    FilterResult,
    evaluate_hints,
    make_node,
    make_pod,
    run_filter,
    unresolvable,
)

ELSEWHERE = unresolvable(OTHER_NODE)


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        pytest.param("", {"a": FEASIBLE, "b": FEASIBLE}, id="any"),
        pytest.param("b", {"a": ELSEWHERE, "b": FEASIBLE}, id="one of them"),
        pytest.param("c", {"a": ELSEWHERE, "b": ELSEWHERE}, id="one that is not there"),
    ],
)
def test_named_node(requested: str, expected: dict[str, FilterResult]) -> None:
    assert run_filter(NodeName, make_pod(node=requested), make_node("a"), make_node("b")) == expected


def test_any_new_node_queues_the_pod() -> None:
    assert evaluate_hints(NodeName(), "Node", make_pod(node="x"), None, make_node("a")) == ["Queue"]


def test_the_name_is_the_signature() -> None:
    assert NodeName().signature(make_pod("x", node="a")) == NodeName().signature(make_pod("y", node="a"))
    assert NodeName().signature(make_pod(node="a")) != NodeName().signature(make_pod())
