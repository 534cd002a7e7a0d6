"""The driver's own arithmetic, its record of versions, and what may have been known when."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from chaos.knowledge import BASE_S, Knowledge
from chaos.objects import Tree, node_of
from chaos.quantities import milli, pod_requests
from chaos.record import KEPT_S, Change, Record
from support.builders.chaos_histories import pod

DRIVER = Path(__file__).parents[2] / "chaos"


def test_the_driver_imports_nothing_of_what_it_tests() -> None:
    found = set()
    for path in DRIVER.rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.ImportFrom):
                found.add((each.module or "").partition(".")[0])
            elif isinstance(each, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in each.names}
    assert "chaos" in found
    assert "bayplan" not in found


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("1", 1000),
        ("250m", 250),
        ("0.5", 500),
        ("1k", 1_000_000),
        ("2Ki", 2_048_000),
        ("1.5Gi", 1_610_612_736_000),
        ("1e3", 1_000_000),
        ("100u", 1),
        ("1E", 10**21),
    ],
)
def test_quantities(text: str, thousandths: int) -> None:
    assert milli(text) == thousandths


@pytest.mark.parametrize("text", ["", "Gi", "1x", "1.2.3", "1e"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        milli(text)


def test_init_containers_count_by_their_maximum() -> None:
    one = pod("one", cpu="1")
    one["spec"]["initContainers"] = [
        {"resources": {"requests": {"cpu": "3"}}},
        {"resources": {"requests": {"cpu": "2"}}},
    ]
    assert pod_requests(one) == {"cpu": 3000, "pods": 1000}


def _version(name: str, number: int, **spec: str) -> Tree:
    tree = pod(name)
    tree["metadata"].update({"uid": f"uid-{name}", "resourceVersion": str(number)})
    tree["spec"].update(spec)
    return tree


def test_a_list_after_a_gap_becomes_changes() -> None:
    record, heard = Record(), list[Change]()
    record.listeners.append(heard.append)
    record.apply("Pod", "ADDED", _version("stays", 1), 0.0)
    record.apply("Pod", "ADDED", _version("goes", 2), 0.0)
    record.relist("Pod", [_version("stays", 5, nodeName="n"), _version("comes", 4)], 9.0)
    assert [(each.type, each.tree["metadata"]["name"]) for each in heard[2:]] == [
        ("DELETED", "goes"),
        ("ADDED", "comes"),
        ("MODIFIED", "stays"),
    ]
    assert record.bindings == [(9.0, "uid-stays")]


def test_finished_pods_of_a_list_come_before_bindings() -> None:
    record, heard = Record(), list[Change]()
    record.listeners.append(heard.append)
    finished = _version("finished", 9, nodeName="n")
    finished["status"] = {"phase": "Succeeded"}
    record.relist("Pod", [_version("bound", 5, nodeName="n"), finished], 1.0)
    assert [each.tree["metadata"]["name"] for each in heard] == ["finished", "bound"]


def test_states_of_a_window() -> None:
    record = Record()
    for at_s, node in ((0.0, "a"), (5.0, "b"), (9.0, "c")):
        record.apply("Pod", "MODIFIED", _version("one", int(at_s) + 1, nodeName=node), at_s)
    record.apply("Pod", "DELETED", _version("one", 20, nodeName="c"), 12.0)
    assert [each and node_of(each) for each in record.states("Pod", "chaos-p/one", 6.0, 10.0)] == ["b", "c"]
    assert record.states("Pod", "chaos-p/one", 20.0, 30.0) == [None]


def test_histories_of_objects_that_are_long_gone_are_dropped() -> None:
    record = Record()
    record.apply("Pod", "ADDED", _version("old", 1), 0.0)
    record.apply("Pod", "DELETED", _version("old", 2), 1.0)
    record.apply("Pod", "ADDED", _version("new", 3), KEPT_S + 2.0)
    assert record.history("uid-old") is None
    assert record.history("uid-new") is not None
    assert record.states("Pod", "chaos-p/old", 0.0, 5.0) == [None]


def test_knowledge_reaches_back_over_times_without_news() -> None:
    knowledge = Knowledge()
    assert knowledge.since(100.0) == 100.0 - BASE_S
    first = knowledge.cut_off(60.0)
    assert knowledge.since(100.0) == 60.0 - BASE_S
    knowledge.restore(first, 95.0)
    assert knowledge.since(100.0) == 60.0 - BASE_S
    assert knowledge.since(150.0) == 150.0 - BASE_S
