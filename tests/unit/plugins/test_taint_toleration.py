"""Taints that reject pods, and taints with effect PreferNoSchedule."""

from __future__ import annotations

import pytest

from bayplan.objects.core import Node, Taint, Toleration
from bayplan.plugins.taint_toleration import UNTOLERATED, TaintToleration
from support.builders.framework import (
    FEASIBLE,
    FilterResult,
    evaluate_hints,
    make_cycle,
    make_node,
    make_pod,
    make_scoring,
    make_snapshot,
    replace_fields,
    run_filter,
    run_score,
    taint,
    unresolvable,
)

SOFT = "PreferNoSchedule"
DEDICATED = Toleration(key="dedicated", value="ml")


@pytest.mark.parametrize(
    ("taints", "tolerations", "expected"),
    [
        pytest.param((), (), FEASIBLE, id="no taints"),
        pytest.param((taint("k"),), (), unresolvable(UNTOLERATED), id="NoSchedule"),
        pytest.param((taint("k", "NoExecute"),), (), unresolvable(UNTOLERATED), id="NoExecute"),
        pytest.param((taint("k", SOFT),), (), FEASIBLE, id="PreferNoSchedule rejects no pod"),
        pytest.param((taint("dedicated", value="ml"),), (DEDICATED,), FEASIBLE, id="tolerated by value"),
        pytest.param((taint("dedicated", value="web"),), (DEDICATED,), unresolvable(UNTOLERATED), id="another value"),
        pytest.param(
            (taint("a"), taint("b")),
            (Toleration(key="a", operator="Exists"),),
            unresolvable(UNTOLERATED),
            id="one of two",
        ),
        pytest.param((taint("a"), taint("b")), (Toleration(operator="Exists"),), FEASIBLE, id="everything"),
        pytest.param(
            (taint("a"),), (Toleration(key="a", operator="Gt", value="1"),), unresolvable(UNTOLERATED), id="Gt is off"
        ),
    ],
)
def test_filter(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], expected: FilterResult) -> None:
    pod = make_pod(tolerations=tolerations)
    assert run_filter(TaintToleration, pod, make_node("a", taints=taints), make_node("b")) == {
        "a": expected,
        "b": FEASIBLE,
    }


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param((), {"a": 100, "b": 50, "c": 0, "d": 100}, id="fewer is better"),
        pytest.param(
            (Toleration(key="x", operator="Exists"),), {"a": 100, "b": 100, "c": 0, "d": 100}, id="any effect counts"
        ),
        pytest.param(
            (Toleration(key="x", operator="Exists", effect=SOFT),),
            {"a": 100, "b": 100, "c": 0, "d": 100},
            id="soft counts",
        ),
        pytest.param(
            (Toleration(key="x", operator="Exists", effect="NoSchedule"),),
            {"a": 100, "b": 50, "c": 0, "d": 100},
            id="hard does not",
        ),
        pytest.param((Toleration(operator="Exists"),), {"a": 100, "b": 100, "c": 100, "d": 100}, id="all tolerated"),
    ],
)
def test_score(tolerations: tuple[Toleration, ...], expected: dict[str, int]) -> None:
    nodes = [
        make_node("a"),
        make_node("b", taints=(taint("x", SOFT),)),
        make_node("c", taints=(taint("x", SOFT), taint("y", SOFT))),
        make_node("d", taints=(taint("z"),)),
    ]
    assert run_score(TaintToleration, make_pod(tolerations=tolerations), *nodes) == expected


def test_score_without_pre_score_is_an_error() -> None:
    scoring = make_scoring(TaintToleration())
    scoring._pre_scores = ()
    scores = scoring.score(make_cycle(make_pod(), snapshot := make_snapshot([make_node()])), snapshot.table)
    assert scores.status.message == (
        'running Score plugins: plugin "TaintToleration" failed with: '
        'failed to read "PreScoreTaintToleration" from cycleState: not found'
    )


CLEAN, TAINTED = make_node(), make_node(taints=(taint("k"),))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, CLEAN, "Queue", id="a node came that it can live with"),
        pytest.param(None, TAINTED, "Skip", id="a tainted node came"),
        pytest.param(TAINTED, CLEAN, "Queue", id="the taint went"),
        pytest.param(CLEAN, TAINTED, "Skip", id="a taint came"),
        pytest.param(CLEAN, CLEAN, "Skip", id="was fine before"),
        pytest.param(TAINTED, make_node(taints=(taint("k", SOFT),)), "Queue", id="the taint got softer"),
    ],
)
def test_node_hints(old: Node | None, new: Node, hint: str) -> None:
    assert evaluate_hints(TaintToleration(), "Node", make_pod(), old, new) == [hint]


@pytest.mark.parametrize(("name", "hint"), [("pod", "Queue"), ("other", "Skip")])
def test_pod_hints(name: str, hint: str) -> None:
    new = replace_fields(make_pod(name), spec={"tolerations": (DEDICATED,)})
    assert evaluate_hints(TaintToleration(), "Pod", make_pod("pod"), make_pod(name), new) == [hint]


def test_signatures() -> None:
    sign = TaintToleration().signature
    patient = replace_fields(make_pod(), spec={"tolerations": (Toleration(key="a", toleration_seconds=5),)})
    hasty = replace_fields(make_pod(), spec={"tolerations": (Toleration(key="a"),)})
    assert sign(patient) == sign(hasty)
    assert sign(hasty) != sign(make_pod())
