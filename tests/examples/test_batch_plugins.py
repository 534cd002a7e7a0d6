"""The plugins of `examples/batch_plugins` do what their first sentence promises."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.app import batch_configured, known_batch_plugins
from bayplan.framework.runtime.plugin_discovery import PluginKind, plugins_in_folder
from bayplan.testing import BatchHarness, make_gang, make_node
from docs.fences import ROOT

FOLDER = ROOT / "examples" / "batch_plugins"
CONFIG = (ROOT / "examples" / "config" / "costaware.conf").read_text(encoding="utf-8")
(CostAware,) = plugins_in_folder(FOLDER, PluginKind.BATCH_PLUGIN, trust_writable=True)


def test_every_file_holds_one_plugin() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {CostAware.name}


def test_important_jobs_go_first() -> None:
    gangs = [make_gang("low", priority=1), make_gang("high", priority=9), make_gang("none")]
    assert BatchHarness([CostAware], gangs=gangs, only=True).job_order() == ["high", "low", "none"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({}, {"full": 50.0, "half": 31.25, "empty": 0.0, "bare": 0.0}, id="by-default"),
        pytest.param({"costaware.weight": 2.0}, {"full": 100.0, "half": 62.5, "empty": 0.0, "bare": 0.0}, id="weighed"),
        pytest.param(
            {"costaware.weight": 2}, {"full": 100.0, "half": 62.5, "empty": 0.0, "bare": 0.0}, id="whole-number"
        ),
        pytest.param(
            {"costaware.weight": "2"}, {"full": 50.0, "half": 31.25, "empty": 0.0, "bare": 0.0}, id="no-number"
        ),
    ],
)
def test_nodes_score_by_what_is_used_of_cpu_and_memory(arguments: dict[str, Any], expected: dict[str, float]) -> None:
    nodes = [make_node(name, cpu=8, memory="16Gi") for name in ("full", "half", "empty")]
    nodes.append(make_node("bare", allocatable={"pods": "9"}))  # no division by zero
    gangs = [make_gang("a", cpu=8, on="full"), make_gang("b", cpu=4, memory="2Gi", on="half"), make_gang("new", 1)]
    args = {"costaware": arguments} if arguments else None
    cluster = BatchHarness([CostAware], nodes=nodes, gangs=gangs, args=args, only=True)
    assert cluster.scores("new-0") == expected


def test_full_nodes_are_filled_up_first() -> None:
    nodes = [make_node(name, cpu=8) for name in "abc"]
    gangs = [make_gang("there", cpu=1, on="b"), make_gang("new", 5, cpu=1)]
    done = BatchHarness([CostAware], nodes=nodes, gangs=gangs, only=True).run()
    assert set(done.bound.values()) == {"b"}


@pytest.mark.parametrize(
    ("priority", "evicted"),
    [
        pytest.param(9, {"old-1": "preempt"}, id="above"),
        pytest.param(5, {}, id="equal"),
        pytest.param(1, {}, id="below"),
    ],
)
def test_only_jobs_of_a_lower_priority_are_pushed_out(priority: int, evicted: dict[str, str]) -> None:
    gangs = [make_gang("old", 2, cpu=4, on="a", priority=5, min_member=1), make_gang("new", cpu=4, priority=priority)]
    done = BatchHarness([CostAware], nodes=[make_node("a", cpu=8)], gangs=gangs, config=CONFIG).run()
    assert done.evicted == evicted


def test_the_configuration_runs_it() -> None:
    cluster = BatchHarness([CostAware], nodes=[make_node("a")], gangs=[make_gang("train", 2, cpu=1)], config=CONFIG)
    assert cluster.run().bound == {"train-0": "a", "train-1": "a"}
    assert batch_configured(CONFIG).notes == ()
    assert "costaware" in known_batch_plugins([FOLDER], trust_writable=True)
