"""Sessions on recorded clusters equal those of Volcano 1.15.1.

Every line of the recorded file, family by family: bound, evicted and pipelined tasks, each group's phase, conditions
and events, messages of pods, queues, gauges, and the results of predicates and scorers at the opening of the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bayplan.batch.session.verbose_log import TRACE
from bayplan.plugins import default_plugins
from bayplan.testing.conformance import Disagreement, ScenarioLine, compare_answers, read_lines, run_scenario
from support.harness.log_capture import log_at

DATA = Path(__file__).parent / "data" / "volcano-1.15.jsonl.gz"

FAMILIES = {
    "config": 45,
    "gang": 34,
    "priority": 28,
    "drf": 23,
    "hdrf": 24,
    "proportion": 30,
    "capacity": 34,
    "hierarchy": 34,
    "overcommit": 24,
    "sla": 24,
    "resourcequota": 24,
    "predicates": 36,
    "nodeorder": 34,
    "binpack": 26,
    "strategyfit": 33,
    "preempt": 44,
    "reclaim": 28,
    "gangpreempt": 30,
    "gangreclaim": 28,
    "gangtopology": 22,
    "backfill": 24,
    "enqueue": 28,
    "allocate": 34,
    "shuffle": 19,
    "tdm": 28,
    "cdp": 25,
    "pdb": 25,
    "conformance": 21,
    "usage": 22,
    "nodegroup": 26,
    "numa": 30,
    "tasktopology": 24,
    "topology": 34,
    "subgroup": 26,
    "deviceshare": 28,
    "mixed": 41,
    "large": 10,
}


@cache
def lines() -> tuple[ScenarioLine, ...]:
    return tuple(read_lines(DATA))


def of_family(family: str) -> Iterator[ScenarioLine]:
    return (line for line in lines() if line.family == family)


def compared(lines: Iterable[ScenarioLine]) -> tuple[int, dict[str, list[Disagreement]]]:
    """Number of compared sessions, and the differences by name."""
    registry, count = default_plugins(), 0
    differing: dict[str, list[Disagreement]] = {}
    for line in lines:
        assert line.expected is not None
        count += 1
        found = compare_answers(line.expected, run_scenario(line, registry), partial=line.exact is False)
        if found:
            differing[line.name] = found
    return count, differing


@pytest.mark.parametrize("family", FAMILIES)
def test_every_session_agrees(family: str) -> None:
    assert compared(of_family(family)) == (FAMILIES[family], {})


def test_logging_changes_no_result() -> None:
    """The same clusters again, some of each family, with every plugin result in the log."""
    some = [line for family in FAMILIES for line in islice(of_family(family), 4)]
    with log_at(TRACE) as written:
        assert compared(some) == (4 * len(FAMILIES), {})
    assert all(f'"Enter {action} ..."' in written.getvalue() for action in ("Allocate", "Preempt", "Reclaim"))


def test_no_family_is_skipped() -> None:
    assert Counter(line.family for line in lines()) == FAMILIES


def altered(line: ScenarioLine, path: list[str], value: Any) -> dict[str, Any]:
    """The expected result with one value changed."""
    expected: Any = line.expected
    changed: Any = dict(expected)
    place = changed
    for key in path[:-1]:
        place[key] = dict(place[key])
        place = place[key]
    place[path[-1]] = value
    return dict(changed)


def test_a_different_result_is_reported() -> None:
    line = next(line for line in of_family("gang") if line.expected and line.expected.get("binds") and line.exact)
    got = run_scenario(line, default_plugins())
    pod = next(iter(got["binds"]))
    for path, value in (
        (["binds", pod], "elsewhere"),
        (["podGroups", next(iter(got["podGroups"])), "phase"], "Unheard"),
        (["atOpen", "queueOrder"], []),
    ):
        assert [each.where for each in compare_answers(altered(line, path, value), got)] == [".".join(path)]
