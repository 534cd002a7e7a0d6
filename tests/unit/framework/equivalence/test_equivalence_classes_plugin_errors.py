"""A plugin that fails in a shared evaluation is called once, logged once, and reported as in a full attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bayplan.framework import PluginTraits, row_local, unschedulable
from bayplan.testing import Harness, make_node, make_pod

NODES = [make_node("a"), make_node("b"), make_node("c", taints=["gpu:NoSchedule"])]


def _raise(*_: Any) -> Any:
    raise ValueError("oops")


def _exit(*_: Any) -> Any:
    raise SystemExit(3)


SIGNED: dict[str, Any] = {"signature": lambda *_: (), "traits": PluginTraits(depends_on=row_local)}
TABLES: dict[str, Any] = {
    "filter_nodes": lambda *_: [],
    "score_nodes": lambda _self, _cycle, nodes: np.zeros(len(nodes), dtype=np.int64),
}
FAILING: dict[str, tuple[str, Callable[..., Any]]] = {
    "pre-filter-raises": ("pre_filter", _raise),
    "pre-filter-says-nonsense": ("pre_filter", lambda *_: True),
    "filter-raises": ("filter_nodes", _raise),
    "filter-exits": ("filter_nodes", _exit),
    "filter-says-nothing": ("filter_nodes", lambda *_: None),
    "pre-score-raises": ("pre_score", _raise),
    "score-raises": ("score_nodes", _raise),
    "score-says-nonsense": ("score_nodes", lambda _cycle, nodes: [1] * len(nodes)),
    "normalize-raises": ("normalize", _raise),
    "normalize-says-nonsense": ("normalize", lambda *_: None),
    "one-node-filter-raises": ("filter", _raise),
    "one-node-filter-says-nonsense": ("filter", lambda *_: True),
}


def failing(point: str, answer: Callable[..., Any], *, signed: bool) -> tuple[type[Any], Counter[str]]:
    """A plugin that fails at one point and counts its calls by pod."""
    calls: Counter[str] = Counter()

    def method(self: Any, cycle: Any, *rest: Any) -> Any:  # noqa: ARG001
        calls[cycle.pod.name] += 1
        return answer(cycle, *rest)

    forms = {} if point == "filter" else TABLES
    return type("Bad", (), {"name": "Bad", **forms, **(SIGNED if signed else {}), point: method}), calls


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize(("point", "answer"), FAILING.values(), ids=FAILING)
def test_a_failing_plugin_is_called_once_and_logged_once(
    point: str, answer: Callable[..., Any], *, signed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = NODES[:2]  # every point is called for all of them
    (plugin, calls), (twin, _) = (failing(point, answer, signed=signed) for _ in range(2))
    sharing, alone = Harness([plugin], nodes=nodes), Harness([twin], nodes=nodes, share=False)
    for number in range(3):
        pod = make_pod(f"p{number}")
        caplog.clear()
        messages = sharing.place(pod)
        records = [record for record in caplog.records if record.exc_info]
        assert messages == alone.place(pod)
        assert "Bad" in messages
        assert calls[pod.name] == 1
        assert len(records) == (answer in (_raise, _exit))
    if records:
        assert "src/bayplan" not in caplog.text, "how we came to ask is no matter"


def test_a_failure_on_rejected_nodes_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        name = "Bad"
        traits = PluginTraits(depends_on=row_local)

        def signature(self, pod: Any) -> Any:  # noqa: ARG002
            return ()

        def filter(self, cycle: Any, node: Any) -> None:  # noqa: ARG002
            if node.name == "c":
                raise ValueError("oops")

    cluster = Harness([Bad], nodes=NODES)
    assert cluster.place(make_pod()) in ("a", "b")
    assert caplog.messages == ["plugin Bad failed at filter"]


def test_preemption_ignores_a_fault_of_the_attempt() -> None:
    """Another plugin rejects the only node first. Preemption then calls the plugin for that node."""

    class Moody:
        name = "Moody"
        traits = PluginTraits(depends_on=row_local)

        def signature(self, pod: Any) -> Any:  # noqa: ARG002
            return ()

        def filter_nodes(self, cycle: Any, nodes: Any) -> Any:  # noqa: ARG002
            if nodes.pod_count[0]:
                raise ValueError("crowded")
            return []

    cluster = Harness([Moody], nodes=[make_node("a", cpu=1)], pods=[make_pod("low", cpu=1, node="a", priority=0)])
    assert cluster.decide(make_pod("high", cpu=1, priority=10)).victims == ("default/low",)


def test_the_plugin_is_called_again_for_the_next_pod() -> None:
    class Once:
        name = "Once"

        def __init__(self) -> None:
            self.calls = 0

        def filter(self, cycle: Any, node: Any) -> Any:  # noqa: ARG002
            self.calls += 1
            if self.calls == 1:
                raise ValueError("once")
            return unschedulable("no") if node.name == "a" else None

    cluster = Harness([Once], nodes=NODES)
    assert "ValueError: once" in cluster.place(make_pod("first"))
    assert cluster.place(make_pod("second")) == "b"
