"""Results on recorded clusters equal those of kube-scheduler 1.36.4.

Every line of the recorded files, family by family: codes, plugins, reasons, scores, messages, victims, devices, series
of placements, hints of events and pods per part of the queue must agree exactly. A line of an unknown kind fails, it is
not skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bayplan.plugins import default_plugins
from bayplan.testing.conformance import Disagreement, ScenarioLine, compare_answers, read_lines, run_scenario

DATA = Path(__file__).parent / "data"
ATTEMPTS = "kube-scheduler-1.36.jsonl.gz"
DEVICES = "kube-scheduler-1.36-devices.jsonl.gz"
LIVE = "kube-scheduler-1.36-live.jsonl.gz"

FAMILIES: dict[str, dict[str, int]] = {
    ATTEMPTS: {
        "resources": 60,
        "affinity": 80,
        "spread": 80,
        "nodes": 60,
        "ports_images": 40,
        "mixed": 80,
        "preemption": 80,
        "volumes": 60,
        "dra": 40,
        "configuration": 150,
    },
    DEVICES: {"dra2": 152, "volumes2": 100},
    LIVE: {"hints": 231, "queue": 100, "series": 132},
}


PARTS = {"hints": 6, "series": 6}
"""Long families are divided, so that several processes can share them."""


@cache
def lines_of(file: str) -> tuple[ScenarioLine, ...]:
    return tuple(read_lines(DATA / file))


def pieces() -> Iterator[Any]:
    for file, families in FAMILIES.items():
        for family in families:
            parts = PARTS.get(family, 1)
            for part in range(parts):
                yield pytest.param(file, family, part, id=f"{family}-{part + 1}of{parts}" if parts > 1 else family)


@pytest.mark.parametrize(("file", "family", "part"), list(pieces()))
def test_every_line_of_a_family_agrees(file: str, family: str, part: int) -> None:
    registry = default_plugins()
    lines = [line for line in lines_of(file) if line.family == family][part :: PARTS.get(family, 1)]
    assert lines
    differing: dict[str, list[Disagreement]] = {}
    for line in lines:
        assert line.expected is not None, f"{line.name} has no recorded result"
        found = compare_answers(line.expected, run_scenario(line, registry))
        if found:
            differing[line.name] = found[:3]
    assert differing == {}


@pytest.mark.parametrize(("file", "total"), [(ATTEMPTS, 730), (DEVICES, 252), (LIVE, 463)])
def test_no_line_is_skipped(file: str, total: int) -> None:
    families = Counter(line.family for line in lines_of(file))
    assert families == FAMILIES[file]
    assert families.total() == total
