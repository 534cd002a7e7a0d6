"""A plugin of the framework that breaks, or an object that a plugin made: named, and everything else goes on."""

# ruff: noqa: ARG002, ARG005  (plugins are told more than these need)

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bayplan.batch import Session, Task
from bayplan.framework.api.status import unschedulable
from bayplan.testing import BatchHarness, BatchResult, make_gang, make_node

NODES = [make_node("a", cpu=8), make_node("b", cpu=8)]
EVERYBODY = {"g-0", "g-1", "be-0"}


def run(*plugins: type[Any]) -> BatchResult:
    gangs = [make_gang("g", 2, cpu=1), make_gang("be", 1)]
    return BatchHarness(list(plugins), nodes=NODES, gangs=gangs).run()


def placed(done: BatchResult) -> set[str]:
    return {key.rpartition("/")[2] for key in done.bound}


def boom(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("boom")


def leave(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("module", "plugin", "method", "answer", "words"),
    [
        ("taint_toleration", "TaintToleration", "filter_nodes", boom, "at filter: ZeroDivisionError: boom (test_is"),
        ("taint_toleration", "TaintToleration", "filter_nodes", lambda *_: 7, "at filter: TypeError: 'int' object"),
        ("taint_toleration", "TaintToleration", "filter_nodes", lambda *_: [7], "at filter: answered 7; a Rejection"),
        ("taint_toleration", "TaintToleration", "score_nodes", boom, "at score: ZeroDivisionError: boom (test_is"),
        ("taint_toleration", "TaintToleration", "score_nodes", lambda *_: "x", "at score: answered 'x'; a vector"),
        ("taint_toleration", "TaintToleration", "normalize", boom, "at score: ZeroDivisionError: boom (test_is"),
        ("taint_toleration", "TaintToleration", "pre_score", lambda *_: 7, "returned 7, which is no Status"),
        ("node_affinity", "NodeAffinity", "pre_filter", boom, "at preFilter: ZeroDivisionError: boom (test_is"),
        ("node_affinity", "NodeAffinity", "pre_filter", lambda *_: 7, "returned 7, which is no Status"),
        ("node_affinity", "NodeAffinity", "pre_filter", leave, "at preFilter: SystemExit: 3"),
        ("node_affinity", "NodeAffinity", "signature", boom, "at signature: ZeroDivisionError: boom"),
        ("image_locality", "ImageLocality", "score_nodes", boom, "at score: ZeroDivisionError: boom (test_is"),
    ],
)
def test_a_plugin_of_the_framework_that_breaks(
    monkeypatch: pytest.MonkeyPatch, module: str, plugin: str, method: str, answer: Any, words: str
) -> None:
    owner = getattr(importlib.import_module(f"bayplan.plugins.{module}"), plugin)
    assert hasattr(owner, method)
    monkeypatch.setattr(owner, method, answer)
    done = run()
    assert placed(done) == EVERYBODY
    assert any(f'plugin "{plugin}"' in fault and words in fault for fault in done.faults), done.faults
    assert all(f'"{plugin}"' in fault for fault in done.faults)


class Verdicts:
    """An object that rejects node a, and can be made to break in one place."""

    def __init__(self, **broken: Any) -> None:
        self.rejected: Any = np.array([True, False])
        self.unresolvable: Any = np.zeros(2, dtype=np.bool_)
        self.values: Any = np.zeros(2)
        self.failed: Any = None
        self.__dict__.update(broken)

    def refresh(self, task: Task, *more: Any) -> Any:
        return True

    def statuses(self, row: int) -> Any:
        return (unschedulable("no"),)


def maker(add: str, make: Any) -> type[Any]:
    class Making:
        name = "odd"

        def __init__(self, arguments: Any) -> None: ...

        def on_session_open(self, session: Session) -> None:
            getattr(session, add)(self.name, make, lambda task: ())

    return Making


MAKES = [
    pytest.param(boom, "ZeroDivisionError: boom (test_plugin_faults.py", id="raises"),
    pytest.param(leave, "SystemExit: 3", id="leaves"),
    pytest.param(lambda task: None, "answered None; an object with refresh", id="nothing"),
    pytest.param(lambda task: SimpleNamespace(refresh=boom), "an object with refresh", id="half"),
    pytest.param(lambda task: Verdicts(refresh=boom), "ZeroDivisionError: boom (test_plugin_faults.py", id="refresh"),
    pytest.param(lambda task: Verdicts(refresh=lambda *_: np.ones(2)), "ValueError", id="refresh nonsense"),
    pytest.param(lambda task: Verdicts(says_no=np.zeros(9, np.bool_), values=np.zeros(9)), "one per node", id="length"),
    pytest.param(lambda task: Verdicts(says_no="no", values="much"), "one per node", id="no column"),
]


@pytest.mark.parametrize(("make", "words"), MAKES)
@pytest.mark.parametrize(
    ("add", "point"),
    [("add_predicate_factory", "predicate"), ("add_batch_node_order_factory", "batch_node_order")],
)
def test_an_object_that_a_plugin_makes(add: str, point: str, make: Any, words: str) -> None:
    done = run(maker(add, make))
    assert placed(done) == EVERYBODY
    assert any(fault.startswith(f'plugin "odd" at {point}: ') and words in fault for fault in done.faults), done.faults
    assert all('"odd"' in fault for fault in done.faults)


def test_an_object_that_works_is_heard() -> None:
    done = run(maker("add_predicate_factory", lambda task: Verdicts()))
    assert set(done.bound.values()) == {"b"}
    assert not done.faults


@pytest.mark.parametrize("statuses", [boom, lambda row: "why"])
def test_an_object_that_rejects_and_cannot_say_why(statuses: Any) -> None:
    both = np.ones(2, dtype=np.bool_)
    done = run(maker("add_predicate_factory", lambda task: Verdicts(says_no=both, statuses=statuses)))
    assert not done.bound
    assert any('plugin "odd" at predicate' in fault for fault in done.faults)
    assert "plugin odd does not say why" in str(done)


def test_an_object_that_breaks_later_is_left_out_from_then_on() -> None:
    class Tiring(Verdicts):
        def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
            return True if touched is None else boom()

    done = run(maker("add_predicate_factory", lambda task: Tiring()))
    assert placed(done) == EVERYBODY
    assert set(done.bound.values()) == {"a", "b"}
