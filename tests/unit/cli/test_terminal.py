"""What people see: tables on wide and narrow terminals, colours, and the parts of the demo that are plain text."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest

from bayplan.cli import demo_story
from bayplan.cli.cluster_view import ClusterView, NodeUse, Waiting
from bayplan.cli.demo_run import reasons
from bayplan.cli.demo_screen import Screen
from bayplan.cli.terminal import Grid, cell_text
from bayplan.cli.top import gauge, ordered
from bayplan.controllers import NodePool, nodes_of

ROWS = [["web-8595f469dc-b59v5", "Running", "a text that is rather long"], ["web-2", "Pending", "short"]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return monkeypatch


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    Grid(["name", "status", "note"]).show(ROWS)
    return capsys.readouterr().out


def test_a_pipe_gets_plain_lines_as_long_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    assert lines[0] == "NAME                   STATUS    NOTE"
    assert lines[1] == "web-8595f469dc-b59v5   Running   a text that is rather long"


def test_a_terminal_has_colours(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.setenv("COLUMNS", "120")
    out = shown(capsys)
    assert "\x1b[32mRunning" in out
    assert "\x1b[33mPending" in out


def test_no_color_means_none(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.setenv("COLUMNS", "120")
    terminal.setenv("NO_COLOR", "1")
    out = shown(capsys)
    assert "\x1b[3" not in out
    assert "Running" in out


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        ({"COLUMNS": "100"}, True),
        ({"COLUMNS": "59"}, False),
        ({"COLUMNS": "100", "NO_COLOR": "1"}, False),
        ({"COLUMNS": "100", "TERM": "dumb"}, False),
    ],
    ids=["wide", "narrow", "NO_COLOR", "dumb"],
)
def test_the_demo_draws_where_there_is_room_and_nobody_minds(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: dict[str, str], drawn: bool
) -> None:
    for name, value in settings.items():
        terminal.setenv(name, value)
    view = cast(
        ClusterView, SimpleNamespace(nodes={}, placements=0, placed=[], waiting=Waiting, decisions_a_second=float)
    )
    with Screen(view) as screen:
        screen.step("a step")
        screen.say("a word")
    assert screen.watched is drawn
    assert ("\x1b" in capsys.readouterr().out) is drawn


def test_a_narrow_terminal_folds_and_keeps_names(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "42")
    terminal.setenv("NO_COLOR", "1")
    lines = re.sub(r"\x1b\[\d+m", "", shown(capsys)).splitlines()  # bold titles are no colour
    assert max(map(len, lines)) <= 42
    assert any(line.startswith("web-8595f469dc-b59v5 ") for line in lines)


def test_rows_that_come_later_keep_to_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid(["name", "status", "note"])
    grid.show(ROWS)
    capsys.readouterr()
    grid.show([["a", "Running", "b"]])
    assert capsys.readouterr().out == f"{'a':<20}   Running   b\n"


@pytest.mark.parametrize(("cell", "text"), [(None, "<none>"), (True, "true"), (3, "3"), ("x", "x")])
def test_cells(cell: object, text: str) -> None:
    assert cell_text(cell) == text


def test_the_fullest_nodes_come_first() -> None:
    nodes = [
        NodeUse("b", offered={"cpu": 10}, used={"cpu": 5}),
        NodeUse("a", offered={"cpu": 10}),
        NodeUse("c", pods=3),
    ]
    assert [each.name for each in ordered(nodes, "cpu")] == ["b", "a", "c"]
    assert [each.name for each in ordered(nodes, "pods")] == ["c", "a", "b"]
    assert [each.name for each in ordered(nodes, "name")] == ["a", "b", "c"]
    assert gauge(0.5, 4).plain == "██░░"
    assert gauge(2.0, 4).plain == "████"


def test_reasons_stand_one_by_one() -> None:
    message = (
        "0/50 nodes are available: 17 Insufficient nvidia.com/gpu, "
        "33 node(s) didn't match Pod's node affinity/selector. "
        "preemption: 0/50 nodes are available: 50 Preemption is not helpful for scheduling."
    )
    assert reasons(message) == [
        "0/50 nodes are available",
        "  17 Insufficient nvidia.com/gpu",
        "  33 node(s) didn't match Pod's node affinity/selector",
        "preemption: 0/50 nodes are available: 50 Preemption is not helpful for scheduling",
    ]


def test_the_demo_has_fifty_nodes_in_three_zones() -> None:
    nodes = nodes_of(map(NodePool.parse, demo_story.POOLS), demo_story.ZONES)
    zones = [each["metadata"]["labels"][demo_story.ZONE] for each in nodes]
    assert [zones.count(zone) for zone in sorted(set(zones))] == [17, 17, 16]
