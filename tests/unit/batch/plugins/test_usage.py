from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.plugins.usage import CPU_TOO_BUSY, MEMORY_TOO_BUSY, UsagePlugin
from bayplan.batch.session.session import Session
from bayplan.framework.api.status import Code
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member
from support.builders.batch_scores import predicate_rejections, scores


def measured(cpu: float, memory: float, age_s: float = 0.0, period: str = "10m") -> NodeUsage:
    return NodeUsage(age_s, {period: cpu}, {period: memory})


@contextmanager
def session_with(usage: NodeUsage | None, arguments: dict[str, Any]) -> Iterator[Session]:
    pods = [make_member("p")]
    engine = make_engine(UsagePlugin, arguments=arguments, nodes=[make_node("n")], pods=pods, objects=[make_group()])
    engine.set_usage({"n": usage, "gone": measured(1, 1)} if usage is not None else {})
    with engine.session() as session:
        yield session


@pytest.mark.parametrize(
    ("usage", "arguments", "expected"),
    [
        pytest.param(measured(20, 60), {}, 300.0, id="mean-of-what-is-idle-times-five"),
        pytest.param(measured(20, 60), {"usage.weight": 1, "cpu.weight": 3}, 70.0, id="weights"),
        pytest.param(measured(20, 60, 301), {}, 0.0, id="too-old"),
        pytest.param(measured(20, 60, 300), {}, 300.0, id="just-fresh"),
        pytest.param(measured(20, 60, period="5m"), {}, 0.0, id="another-period"),
        pytest.param(NodeUsage(0, {"10m": 20}, {}), {}, 0.0, id="half-known"),
        pytest.param(None, {}, 0.0, id="unknown"),
        pytest.param(measured(0, 0), {"cpu.weight": 0, "memory.weight": 0}, math.nan, id="no-weights-no-number"),
        pytest.param(measured(0, 60), {"cpu.weight": 1, "memory.weight": -1}, math.inf, id="weights-add-up-to-nothing"),
    ],
)
def test_scores(usage: NodeUsage | None, arguments: dict[str, Any], expected: float) -> None:
    with session_with(usage, arguments) as session:
        assert scores(session, "p")["n"] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("usage", "thresholds", "reason"),
    [
        pytest.param(measured(80, 80), None, "", id="at-the-default-limit"),
        pytest.param(measured(80.1, 90), None, CPU_TOO_BUSY, id="cpu-is-named-first"),
        pytest.param(measured(10, 80.1), None, MEMORY_TOO_BUSY, id="memory"),
        pytest.param(measured(50, 50), {"cpu": 40}, CPU_TOO_BUSY, id="own-limit"),
        pytest.param(measured(50, 50), {"mem": 40}, MEMORY_TOO_BUSY, id="own-memory-limit"),
        pytest.param(measured(50, 50), {"memory": 40}, "", id="memory-is-called-mem"),
        pytest.param(measured(1, 1), {"cpu": "80"}, CPU_TOO_BUSY, id="a-text-is-0"),
        pytest.param(measured(99, 99, 301), {"cpu": 1}, "", id="too-old"),
        pytest.param(measured(99, 99, period="5m"), {"cpu": 1}, "", id="another-period-is-0"),
        pytest.param(measured(99, 99, period="5m"), {"cpu": -1}, CPU_TOO_BUSY, id="0-is-above-a-negative-limit"),
        pytest.param(None, {"cpu": -1}, "", id="unknown"),
        pytest.param(measured(90, 90), 70, CPU_TOO_BUSY, id="no-map-keeps-80"),
    ],
)
def test_limits(usage: NodeUsage | None, thresholds: Any, reason: str) -> None:
    with session_with(usage, {} if thresholds is None else {"thresholds": thresholds}) as session:
        assert predicate_rejections(session, "p") == ({"n": (Code.UNRESOLVABLE, reason)} if reason else {})


@pytest.mark.parametrize("thresholds", [pytest.param(70, id="no-map"), pytest.param({"cpu": "80"}, id="no-number")])
def test_invalid_thresholds_are_reported(thresholds: Any) -> None:
    with session_with(None, {"thresholds": thresholds}) as session:
        (fault,) = session.faults
        assert fault.startswith("usage: ")
        assert "threshold" in fault
