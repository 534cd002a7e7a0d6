"""The conformance runner: kinds of lines, and the comparison of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.framework.runtime.registry import Registry
from bayplan.plugins import default_plugins
from bayplan.testing.conformance import (
    Disagreement,
    ScenarioKind,
    ScenarioLine,
    compare_answers,
    read_lines,
    run_scenario,
    runner,
)
from bayplan.testing.conformance.placement_series import answer_series


@pytest.mark.parametrize(
    ("scenario", "exact", "kind"),
    [
        pytest.param({"nodes": []}, None, ScenarioKind.ATTEMPT, id="attempt"),
        pytest.param({"pending": []}, None, ScenarioKind.ATTEMPT, id="attempt-without-nodes"),
        pytest.param({"pods": [], "config": ""}, None, ScenarioKind.ATTEMPT, id="pods-alone"),
        pytest.param({"config": ""}, None, ScenarioKind.CONFIGURATION, id="configuration"),
        pytest.param({"nodes": [], "steps": []}, None, ScenarioKind.SERIES, id="series"),
        pytest.param({"nodes": [], "events": []}, None, ScenarioKind.HINTS, id="hints"),
        pytest.param({"plugins": [], "ops": []}, None, ScenarioKind.QUEUE, id="queue"),
        pytest.param({"nodes": []}, False, ScenarioKind.BATCH, id="batch"),
    ],
)
def test_kind_of_a_line(scenario: dict[str, Any], exact: bool | None, kind: ScenarioKind) -> None:
    assert ScenarioLine(1, scenario, None, exact).kind is kind


@pytest.mark.parametrize(
    ("name", "family"), [("spread-12", "spread"), ("spread 12 nodes", "spread"), ("ports_images-3", "ports_images")]
)
def test_the_family_is_the_first_word(name: str, family: str) -> None:
    assert ScenarioLine(1, {"name": name}, None).family == family
    assert ScenarioLine(7, {}, None).name == ScenarioLine(7, {"name": ""}, None).name == "line 7"
    assert ScenarioLine(7, {"name": " - "}, None).family == "line"


def test_empty_lines_are_skipped_and_line_numbers_kept(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('\n{"scenario": {"name": "a"}, "expected": {"x": 1}}\n\n{"scenario": {}, "exact": true}\n')
    assert [(line.number, line.expected, line.exact) for line in read_lines(path)] == [
        (2, {"x": 1}, None),
        (4, None, True),
    ]


def test_an_exception_fails_only_its_own_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise KeyError("odd")

    monkeypatch.setitem(runner._RUNNERS, ScenarioKind.ATTEMPT, broken)
    answer = run_scenario(ScenarioLine(1, {"name": "a", "nodes": []}, None), Registry())
    assert answer == {"name": "a", "failure": "internal error, KeyError: 'odd'; please report the scenario"}


def test_an_invalid_line_is_not_run() -> None:
    assert run_scenario(ScenarioLine(3, {}, None, fault="odd"), Registry()) == {"name": "line 3", "failure": "odd"}


@pytest.mark.parametrize("kind", ["events", "ops"])
def test_an_incomplete_line_has_an_answer(kind: str) -> None:
    answer = run_scenario(ScenarioLine(1, {"name": "hints-1", kind: []}, None), Registry())
    assert set(answer) >= {"name"}


@pytest.mark.parametrize(
    ("expected", "got", "places"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="equal"),
        pytest.param({"a": 1, "name": "x"}, {"a": 1, "name": "y"}, [], id="names-are-not-compared"),
        pytest.param({"a": 1}, {"a": 2}, ["a"], id="value"),
        pytest.param({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b[1]"], id="deep"),
        pytest.param({"a": [1]}, {"a": [1, 2]}, ["a"], id="length"),
        pytest.param({"a": 1}, {}, ["a"], id="missing"),
        pytest.param({}, {"a": 1}, ["a"], id="too-much"),
        pytest.param({"a": {"name": "x"}}, {"a": {"name": "y"}}, ["a.name"], id="only-the-outermost-name"),
    ],
)
def test_answers_are_compared_exactly(expected: dict[str, Any], got: dict[str, Any], places: list[str]) -> None:
    assert [each.where for each in compare_answers(expected, got)] == places


def test_a_difference_has_both_values() -> None:
    (found,) = compare_answers({"a": {"b": 1}}, {"a": {}})
    assert found == Disagreement("a.b", 1, "(absent)")


@pytest.mark.parametrize(
    ("expected", "got", "agree"),
    [
        pytest.param('profile: plugin "A" twice', 'profile: plugin "A" twice', True, id="equal"),
        pytest.param('config: unknown "x"', 'config: strict decoding: unknown field "x"', True, id="same-name"),
        pytest.param('config: unknown "x"', 'config: unknown "y"', False, id="another-name"),
        pytest.param('config: unknown "x"', 'invalid: unknown "x"', False, id="another-stage"),
        pytest.param(
            "invalid: leaderElection.leaseDuration: Invalid value: 1s: too short",
            "invalid: leaderElection.leaseDuration: Required value",
            True,
            id="same-field",
        ),
        pytest.param(
            "invalid: [a.b: Invalid value: 1, c[0].d: Required value]",
            "invalid: a.b: Invalid value: 1",
            False,
            id="fewer-fields",
        ),
        pytest.param('config: unknown "x"', None, False, id="not-refused"),
    ],
)
def test_configuration_errors_agree_by_stage_and_names(expected: str, got: str | None, agree: bool) -> None:
    answer = {} if got is None else {"error": got}
    assert (compare_answers({"error": expected}, answer) == []) is agree


def with_image(name: str, megabytes: int) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    images = [{"names": ["example.com/large:1"], "sizeBytes": megabytes * 1_000_000}] if megabytes else []
    return {"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts, "images": images}}


@pytest.mark.parametrize(
    ("sizes", "depends"),
    [
        pytest.param({"b": 500, "a": 500}, False, id="one-size"),
        pytest.param({"a": 500, "b": 100}, False, id="the-first-by-name-reported-first"),
        pytest.param({"b": 500, "a": 100}, True, id="the-last-by-name-reported-first"),
        pytest.param({"b": 0, "a": 0}, False, id="no-images"),
    ],
)
def test_a_series_marks_scores_that_depend_on_the_first_reporter_of_an_image(
    sizes: dict[str, int], depends: bool
) -> None:
    container = {"name": "c", "image": "example.com/large:1"}
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": {"containers": [container]}}
    steps = [*({"addNode": with_image(name, size)} for name, size in sizes.items()), {"schedule": pod}]
    (placed,) = answer_series({"nodes": [], "steps": steps}, default_plugins())["placed"]
    assert placed.get("history", False) is depends
    assert set(placed["total"]) == {"a", "b"}
