"""Terminal output: tables on wide and narrow terminals, colours, and the parts of the demo in plain text."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from bayplan.cli.cluster_monitor import ClusterMonitor, NodeRequests, PendingCounts
from bayplan.cli.commands.objects.top import as_data, render_screen, sort_nodes, usage_bar
from bayplan.cli.demo import workloads
from bayplan.cli.demo.scenario import split_reasons
from bayplan.cli.demo.screen import Screen
from bayplan.cli.output.terminal import TablePrinter, cell_text
from bayplan.controllers import NodePool, nodes_of
from bayplan.objects.core import Container, ResourceRequirements
from bayplan.testing import make_pod

ROWS = [["web-8595f469dc-b59v5", "Running", "a text that is rather long"], ["web-2", "Pending", "short"]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return monkeypatch


def read_output(capsys: pytest.CaptureFixture[str]) -> str:
    TablePrinter(["name", "status", "note"]).show(ROWS)
    return capsys.readouterr().out


def test_a_pipe_gets_unwrapped_lines_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    lines = read_output(capsys).splitlines()
    assert lines[0] == "NAME                   STATUS    NOTE"
    assert lines[1] == "web-8595f469dc-b59v5   Running   a text that is rather long"


def test_a_terminal_gets_colours(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.setenv("COLUMNS", "120")
    out = read_output(capsys)
    assert "\x1b[32mRunning" in out
    assert "\x1b[33mPending" in out


def test_no_color_disables_colours(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.setenv("COLUMNS", "120")
    terminal.setenv("NO_COLOR", "1")
    out = read_output(capsys)
    assert "\x1b[3" not in out
    assert "Running" in out


@pytest.mark.parametrize(
    ("settings", "draw"),
    [
        ({"COLUMNS": "100"}, True),
        ({"COLUMNS": "59"}, False),
        ({"COLUMNS": "100", "NO_COLOR": "1"}, False),
        ({"COLUMNS": "100", "TERM": "dumb"}, False),
    ],
    ids=["wide", "narrow", "NO_COLOR", "dumb"],
)
def test_the_demo_draws_on_wide_terminals_with_colours(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: dict[str, str], draw: bool
) -> None:
    for name, value in settings.items():
        terminal.setenv(name, value)
    view = cast(
        ClusterMonitor,
        SimpleNamespace(nodes={}, placements=0, placed=[], pending_counts=PendingCounts, decisions_per_second=float),
    )
    with Screen(view) as screen:
        screen.print_step("a step")
        screen.print_line("a word")
    assert screen.watched is draw
    assert ("\x1b" in capsys.readouterr().out) is draw


def test_a_narrow_terminal_wraps_texts_and_not_names(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "42")
    terminal.setenv("NO_COLOR", "1")
    lines = re.sub(r"\x1b\[\d+m", "", read_output(capsys)).splitlines()  # bold titles are no colour
    assert max(map(len, lines)) <= 42
    assert any(line.startswith("web-8595f469dc-b59v5 ") for line in lines)


def test_later_rows_use_the_same_columns(capsys: pytest.CaptureFixture[str]) -> None:
    grid = TablePrinter(["name", "status", "note"])
    grid.show(ROWS)
    capsys.readouterr()
    grid.show([["a", "Running", "b"]])
    assert capsys.readouterr().out == f"{'a':<20}   Running   b\n"


@pytest.mark.parametrize(("cell", "text"), [(None, "<none>"), (True, "true"), (3, "3"), ("x", "x")])
def test_the_text_of_a_cell(cell: object, text: str) -> None:
    assert cell_text(cell) == text


def test_the_fullest_nodes_come_first() -> None:
    nodes = [
        NodeRequests("b", allocatable={"cpu": 10}, requested={"cpu": 5}),
        NodeRequests("a", allocatable={"cpu": 10}),
        NodeRequests("c", pods=3),
    ]
    assert [each.name for each in sort_nodes(nodes, "cpu")] == ["b", "a", "c"]
    assert [each.name for each in sort_nodes(nodes, "pods")] == ["c", "a", "b"]
    assert [each.name for each in sort_nodes(nodes, "name")] == ["a", "b", "c"]
    assert usage_bar(0.5, 4).plain == "██░░"
    assert usage_bar(2.0, 4).plain == "████"


def test_a_node_sums_the_requests_of_its_pods() -> None:
    node = NodeRequests("a", allocatable={"cpu": 4000})
    requests = ResourceRequirements(requests={"cpu": "500m", "example.com/gpu": "2"})
    web = make_pod(containers=[Container(name="web", resources=requests)])
    for _ in range(2):
        node.add(web, 1)
    assert (node.pods, node.requested["cpu"], node.requested["example.com/gpu"], node.share("cpu")) == (
        2,
        1000,
        4,
        0.25,
    )
    node.add(web, -1)
    assert (node.pods, node.requested["cpu"], node.requested["example.com/gpu"]) == (1, 500, 2)
    assert node.share("memory") == 0.0


def monitor_of(*nodes: NodeRequests) -> ClusterMonitor:
    known = {node.name: node for node in nodes}
    return cast(ClusterMonitor, SimpleNamespace(nodes=known, pending_counts=PendingCounts, decisions_per_second=float))


def make_node_requests(name: str, *, ready: bool = True, cordoned: bool = False, **devices: int) -> NodeRequests:
    offered = {"cpu": 8000, "memory": 1 << 34, "pods": 110} | {f"example.com/{each}": 8 for each in devices}
    used = {"cpu": 500} | {f"example.com/{each}": used for each, used in devices.items()}
    return NodeRequests(name, "z", ready, cordoned, has_object=True, allocatable=offered, requested=used, pods=2)


def draw(console: Console, *nodes: NodeRequests) -> list[str]:
    with console.capture() as capture:
        console.print(render_screen(monitor_of(*nodes), "name", console, rows=None))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_top_shows_devices_and_marks_unschedulable_nodes() -> None:
    nodes = [
        make_node_requests("a", gpu=3),
        make_node_requests("b"),
        make_node_requests("c", ready=False, gpu=0),
        make_node_requests("d", cordoned=True),
        make_node_requests("e", ready=False, cordoned=True),
    ]
    head, *rows = draw(Console(width=1000), *nodes)[3:]
    assert head.split()[:2] == ["NODE", "STATUS"]
    assert head.split()[-1] == "GPU"
    assert [(row.split()[1], row.split()[-1]) for row in rows] == [
        ("Ready", "3/8"),
        ("Ready", "-"),
        ("NotReady", "0/8"),
        ("SchedulingDisabled", "-"),
        ("NotReady,SchedulingDisabled", "-"),
    ]
    assert "STATUS" not in draw(Console(width=1000), make_node_requests("a"))[3]


def test_top_shows_as_many_devices_as_fit() -> None:
    node = make_node_requests("a", fpga=1, gpu=2, nic=3)
    lines = draw(Console(width=78), node)
    assert (lines[3].split()[-2:], lines[4].split()[-2:]) == (["FPGA", "GPU"], ["1/8", "2/8"])
    assert lines[5] == "hidden columns: example.com/nic; -o json shows all"
    assert not any("no room" in line for line in draw(Console(width=140), node))
    assert any(line.startswith("hidden columns:") for line in draw(Console(width=25), node))


def test_devices_with_one_name_keep_their_domains() -> None:
    node = make_node_requests("a", gpu=2)
    node.allocatable["other.com/gpu"] = 4
    assert draw(Console(width=140), node)[3].split()[-2:] == ["EXAMPLE.COM/GPU", "OTHER.COM/GPU"]


def test_top_as_data() -> None:
    found = as_data(monitor_of(make_node_requests("a", cordoned=True, gpu=3)), "name")
    (node,) = found["nodes"]
    assert (node["name"], node["ready"], node["unschedulable"]) == ("a", True, True)
    assert node["resources"] == {
        "cpu": {"used": 0.5, "total": 8.0},
        "memory": {"used": 0, "total": 1 << 34},
        "pods": {"used": 2, "total": 110},
        "example.com/gpu": {"used": 3, "total": 8},
    }
    assert found["waiting"] == {"active": 0, "unschedulable": 0, "gated": 0}


def test_reasons_are_split_into_lines() -> None:
    message = (
        "0/50 nodes are available: 17 Insufficient nvidia.com/gpu, "
        "33 node(s) didn't match Pod's node affinity/selector. "
        "preemption: 0/50 nodes are available: 50 Preemption is not helpful for scheduling."
    )
    assert split_reasons(message) == [
        "0/50 nodes are available",
        "  17 Insufficient nvidia.com/gpu",
        "  33 node(s) didn't match Pod's node affinity/selector",
        "preemption: 0/50 nodes are available: 50 Preemption is not helpful for scheduling",
    ]


def test_the_demo_has_fifty_nodes_in_three_zones() -> None:
    nodes = nodes_of(map(NodePool.parse, workloads.POOLS), workloads.ZONES)
    zones = [each["metadata"]["labels"][workloads.ZONE] for each in nodes]
    assert [zones.count(zone) for zone in sorted(set(zones))] == [17, 17, 16]
