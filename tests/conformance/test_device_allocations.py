"""Device allocations equal those of kube-scheduler 1.36.4 in difficult cases.

150 random clusters: partitioned and shared devices with every kind of capacity policy, pools that are outdated,
incomplete or inconsistent, devices with node selectors, constraints and alternatives over several claims, claims beyond
32 devices, extended resources with init containers. Every result and every allocation must agree exactly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from bayplan.plugins import default_plugins
from bayplan.testing.conformance import ScenarioLine, compare_answers, read_lines, run_scenario

FILE = Path(__file__).parent / "data" / "device-allocations-1.36.jsonl.gz"
PARTS = 5


@cache
def lines() -> tuple[ScenarioLine, ...]:
    return tuple(read_lines(FILE))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_allocation_agrees(part: int) -> None:
    registry = default_plugins()
    differing = {}
    for line in lines()[part::PARTS]:
        assert line.expected is not None, f"{line.name} has no recorded result"
        found = compare_answers(line.expected, run_scenario(line, registry))
        if found:
            differing[line.name] = found[:3]
    assert differing == {}


def test_no_line_is_missing() -> None:
    assert len(lines()) == 150
    verdicts = [verdict for line in lines() if line.expected is not None for verdict in line.expected["verdicts"]]
    assert sum(len(verdict.get("devices") or {}) for verdict in verdicts) == 298
