"""Slow and failing plugins are named at every point, with the location in the author's file."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.framework import Cycle, NodeTable, PluginTraits, Rejection, row_local
from bayplan.framework.api.status import Code
from bayplan.framework.runtime.plugin_discovery import with_plugins_from
from bayplan.scheduler.engine import PodEngine
from bayplan.testing import Harness, make_node, make_pod

NODES = [make_node(name, cpu=40) for name in "abcd"]
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{plugins: {multiPoint: {enabled: [{name: Watched}]}}}]
"""


def engine(plugin: type[Any], clock: ManualClock) -> PodEngine:
    registry = known_plugins().with_plugins(plugin)
    return PodEngine(configured(CONFIG, registry), registry, filled_cache(NODES), clock=clock, chance=random.Random(0))


def filters(self: Any, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:  # noqa: ARG001
    yield Rejection(nodes.pod_count > 99, "full")


def scores(self: Any, cycle: Cycle, nodes: NodeTable) -> Any:  # noqa: ARG001
    return np.zeros(len(nodes), dtype=np.int64)


QUICK: dict[str, Any] = {
    "name": "Watched",
    "signature": lambda _self, _pod: 1,
    "traits": PluginTraits(depends_on=row_local),
    "filter_nodes": filters,
    "score_nodes": scores,
}

SLOW: dict[str, Callable[[Callable[[], None]], dict[str, Any]]] = {
    "signature": lambda wait: {"signature": lambda _self, _pod: wait()},
    "depends_on": lambda wait: {"traits": PluginTraits(depends_on=lambda _plugin, _cycle: wait())},
    "filter": lambda wait: {"filter": lambda _self, _cycle, _node: wait(), "score": lambda _self, _cycle, _node: 0},
    "score": lambda wait: {
        "pre_filter": lambda _self, _cycle: None,
        "filter": lambda _self, _cycle, _node: None,
        "score": lambda _self, _cycle, _node: wait() or 0,
    },
}
"""Methods that are called only for shared evaluations. The one-node forms of plugins with both update single rows."""


@pytest.mark.parametrize("what", SLOW)
def test_calls_of_shared_evaluations_are_timed(what: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    on = engine(type("Watched", (), {**QUICK, **SLOW[what](lambda: clock.advance(0.3))}), clock)
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            assert on.place(make_pod(f"p{number}")).node
    point = "filter" if what == "score" else what  # one call for a row covers both
    assert f"plugin Watched took 300 ms at {point}; no other pod is scheduled meanwhile" in caplog.messages
    assert on.timings.of("Watched", point).slow > 0


def test_depends_on_that_raises_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    def depends_on(plugin: Any, cycle: Cycle) -> None:  # noqa: ARG001
        raise KeyError("rack")

    on = engine(type("Watched", (), {**QUICK, "traits": PluginTraits(depends_on=depends_on)}), ManualClock())
    with caplog.at_level(logging.WARNING):
        assert all(on.place(make_pod(f"p{number}")).node for number in range(4))
    (message,) = [text for text in caplog.messages if "Watched" in text]
    assert message == "depends_on of plugin Watched failed; this plugin is evaluated for every pod separately"
    assert "KeyError: 'rack'" in caplog.text


PLUGIN = """
import numpy as np
from bayplan.framework import Rejection, unschedulable

class Odd:
    name = "Odd"

    def filter_nodes(self, cycle, nodes):
        yield Rejection(nodes.where_label_in("disk", ["ssd"]), None)  # line 9

class Older:
    name = "Older"

    def filter(self, cycle, node):
        return helped(node)

def helped(node):
    return unschedulable(node.free(["cpu"]))  # line 18

class Numeric:
    name = "Numeric"

    def score_nodes(self, cycle, nodes):
        return np.take(nodes.pod_count, [999])  # line 24
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("Odd", r"the reason of a Rejection must be a string, not None \(mine\.py:9\)", id="in-bayplan"),
        pytest.param("Older", r"\(mine\.py:18\)", id="in-a-function-of-the-file"),
        pytest.param("Numeric", r"\(mine\.py:24\)", id="in-numpy"),
    ],
)
def test_the_location_of_a_fault_is_in_the_authors_file(tmp_path: Path, name: str, text: str) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "mine.py").chmod(0o644)
    plugin = with_plugins_from(known_plugins(), tmp_path).entries[name].plugin
    status = Harness([plugin], nodes=NODES).decide(make_pod()).status
    assert status.code is Code.ERROR
    assert re.search(text, status.message)


def test_a_fault_at_pre_enqueue_names_the_plugin() -> None:
    class Window:
        name = "Window"

        def pre_enqueue(self, pod: Any) -> None:  # noqa: ARG002
            raise ZeroDivisionError("no hours")

    cluster = Harness([Window], nodes=NODES)
    message = (
        r'running PreEnqueue plugin "Window": ZeroDivisionError: no hours \(test_plugin_call_slow_plugins\.py:\d+\)'
    )
    assert re.fullmatch(message, cluster.place(make_pod()))
    assert cluster.pre_enqueue(make_pod()).plugin == "Window"
