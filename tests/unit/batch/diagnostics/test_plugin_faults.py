"""Failing framework plugins and failing objects of plugins: reported, and without effect on the rest."""

# ruff: noqa: ARG002, ARG005  (test plugins ignore most arguments)

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
ALL_PODS = {"g-0", "g-1", "be-0"}


def run_session(*plugins: type[Any]) -> BatchResult:
    gangs = [make_gang("g", 2, cpu=1), make_gang("be", 1)]
    return BatchHarness(list(plugins), nodes=NODES, gangs=gangs).run()


def bound_to(done: BatchResult) -> set[str]:
    return {key.rpartition("/")[2] for key in done.bound}


def fail(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("boom")


def exit_process(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("module", "plugin", "method", "answer", "words"),
    [
        (
            "taint_toleration",
            "TaintToleration",
            "filter_nodes",
            fail,
            "at filter: ZeroDivisionError: boom (test_plugin_faults",
        ),
        ("taint_toleration", "TaintToleration", "filter_nodes", lambda *_: 7, "at filter: TypeError: 'int' object"),
        ("taint_toleration", "TaintToleration", "filter_nodes", lambda *_: [7], "at filter: answered 7; a Rejection"),
        (
            "taint_toleration",
            "TaintToleration",
            "score_nodes",
            fail,
            "at score: ZeroDivisionError: boom (test_plugin_faults",
        ),
        ("taint_toleration", "TaintToleration", "score_nodes", lambda *_: "x", "at score: answered 'x'; a vector"),
        (
            "taint_toleration",
            "TaintToleration",
            "normalize",
            fail,
            "at score: ZeroDivisionError: boom (test_plugin_faults",
        ),
        ("taint_toleration", "TaintToleration", "pre_score", lambda *_: 7, "returned 7, which is not a Status"),
        (
            "node_affinity.plugin",
            "NodeAffinity",
            "pre_filter",
            fail,
            "at preFilter: ZeroDivisionError: boom (test_plugin_faults",
        ),
        ("node_affinity.plugin", "NodeAffinity", "pre_filter", lambda *_: 7, "returned 7, which is not a Status"),
        ("node_affinity.plugin", "NodeAffinity", "pre_filter", exit_process, "at preFilter: SystemExit: 3"),
        ("node_affinity.plugin", "NodeAffinity", "signature", fail, "at signature: ZeroDivisionError: boom"),
        (
            "image_locality",
            "ImageLocality",
            "score_nodes",
            fail,
            "at score: ZeroDivisionError: boom (test_plugin_faults",
        ),
    ],
)
def test_a_failing_framework_plugin_is_reported(
    monkeypatch: pytest.MonkeyPatch, module: str, plugin: str, method: str, answer: Any, words: str
) -> None:
    owner = getattr(importlib.import_module(f"bayplan.plugins.{module}"), plugin)
    assert hasattr(owner, method)
    monkeypatch.setattr(owner, method, answer)
    done = run_session()
    assert bound_to(done) == ALL_PODS
    assert any(f'plugin "{plugin}"' in fault and words in fault for fault in done.faults), done.faults
    assert all(f'"{plugin}"' in fault for fault in done.faults)


class Results:
    """An object that rejects node a, and can fail in one place."""

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


def plugin_with_factory(add: str, make: Any) -> type[Any]:
    class FactoryPlugin:
        name = "odd"

        def __init__(self, arguments: Any) -> None: ...

        def on_session_open(self, session: Session) -> None:
            getattr(session, add)(self.name, make, lambda task: ())

    return FactoryPlugin


MAKES = [
    pytest.param(fail, "ZeroDivisionError: boom (test_plugin_faults.py", id="raises"),
    pytest.param(exit_process, "SystemExit: 3", id="leaves"),
    pytest.param(lambda task: None, "answered None; an object with refresh", id="nothing"),
    pytest.param(lambda task: SimpleNamespace(refresh=fail), "an object with refresh", id="half"),
    pytest.param(lambda task: Results(refresh=fail), "ZeroDivisionError: boom (test_plugin_faults.py", id="refresh"),
    pytest.param(
        lambda task: Results(refresh=lambda *_: np.ones(2)), "ValueError", id="refresh with an invalid answer"
    ),
    pytest.param(lambda task: Results(rejected=np.zeros(9, np.bool_), values=np.zeros(9)), "one per node", id="length"),
    pytest.param(lambda task: Results(rejected="no", values="much"), "one per node", id="no column"),
]


@pytest.mark.parametrize(("make", "words"), MAKES)
@pytest.mark.parametrize(
    ("add", "point"), [("add_predicate_factory", "predicate"), ("add_batch_node_order_factory", "batch_node_order")]
)
def test_a_failing_object_of_a_plugin_is_reported(add: str, point: str, make: Any, words: str) -> None:
    done = run_session(plugin_with_factory(add, make))
    assert bound_to(done) == ALL_PODS
    assert any(fault.startswith(f'plugin "odd" at {point}: ') and words in fault for fault in done.faults), done.faults
    assert all('"odd"' in fault for fault in done.faults)


def test_a_working_object_is_used() -> None:
    done = run_session(plugin_with_factory("add_predicate_factory", lambda task: Results()))
    assert set(done.bound.values()) == {"b"}
    assert not done.faults


@pytest.mark.parametrize("statuses", [fail, lambda row: "why"])
def test_a_rejection_stays_in_force_when_its_reason_fails(statuses: Any) -> None:
    both = np.ones(2, dtype=np.bool_)
    done = run_session(
        plugin_with_factory("add_predicate_factory", lambda task: Results(rejected=both, statuses=statuses))
    )
    assert not done.bound
    assert any('plugin "odd" at predicate' in fault for fault in done.faults)
    assert "plugin odd does not say why" in str(done)


def test_an_object_that_fails_later_is_ignored_from_then_on() -> None:
    class FailingLater(Results):
        def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
            return True if touched is None else fail()

    done = run_session(plugin_with_factory("add_predicate_factory", lambda task: FailingLater()))
    assert bound_to(done) == ALL_PODS
    assert set(done.bound.values()) == {"a", "b"}
