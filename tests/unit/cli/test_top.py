"""`bayplan top`: counters, order of nodes, and layout on terminals of several widths."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from rich.console import Console

from bayplan.cli.cluster_monitor import WINDOW_S, ClusterMonitor, NodeRequests
from bayplan.cli.commands.objects.top import (
    as_data,
    device_resources,
    node_status,
    render_screen,
    sort_nodes,
    usage_bar,
)
from bayplan.client import Client, ConnectionConfig
from bayplan.clock import ManualClock
from bayplan.objects.core import Node, Pod, PodStatus
from bayplan.objects.meta import Condition
from bayplan.testing import make_node, make_pod

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
READY = Condition(type="Ready", status="True")


def ready_node(name: str, **fields: Any) -> Node:
    return make_node(name, conditions=(READY,), **fields)


def unschedulable_pod(name: str, reason: str = "Unschedulable", message: str = "no node fits") -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason=reason, message=message)
    return make_pod(name, status=PodStatus(conditions=(condition,)))


class MonitorHarness:
    """A `ClusterMonitor` that gets objects without a server."""

    def __init__(self, *objects: Node | Pod, synced: bool = True) -> None:
        self.clock = ManualClock()
        client = Client(ConnectionConfig(server="http://127.0.0.1:9"), clock=self.clock, chance=random.Random(0))
        self.changes = 0
        self.view = ClusterMonitor(client, changed=self._count)
        self.view._synced = synced
        self.add(*objects)

    def _count(self) -> None:
        self.changes += 1

    def add(self, *objects: Node | Pod) -> None:
        for item in objects:
            self.change(None, item)

    def change(self, old: Node | Pod | None, new: Node | Pod | None) -> None:
        if isinstance(new or old, Node):
            self.view._on_node(old, new)
        else:
            self.view._on_pod(old, new)

    @property
    def counts(self) -> tuple[int, int, int]:
        waiting = self.view.pending_counts()
        return waiting.active, waiting.unschedulable, waiting.gated

    def screen_lines(self, width: int = 120, *, sort: str = "name", rows: int | None = None) -> list[str]:
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(render_screen(self.view, sort, console, rows=rows), crop=False)
        assert isinstance(console.file, io.StringIO)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]


# Counting.


def test_a_node_has_allocatable_and_requested_resources() -> None:
    harness = MonitorHarness(ready_node("a", zone="z1", cpu=4, unschedulable=True), make_pod("p", cpu=1, node="a"))
    node = harness.view.nodes["a"]
    assert (node.zone, node.ready, node.unschedulable, node.has_object) == ("z1", True, True, True)
    assert (node.pods, node.requested["cpu"], node.allocatable["cpu"], node.share("cpu")) == (1, 1000, 4000, 0.25)
    assert (node.share(GPU), harness.changes) == (0.0, 2)


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        pytest.param((), False, id="no condition"),
        pytest.param((Condition(type="Ready", status="False"),), False, id="not ready"),
        pytest.param((Condition(type="DiskPressure", status="True"),), False, id="another condition"),
        pytest.param((Condition(type="DiskPressure", status="True"), READY), True, id="ready"),
    ],
)
def test_a_node_is_ready_by_its_condition(conditions: tuple[Condition, ...], ready: bool) -> None:
    assert MonitorHarness(make_node("a", conditions=conditions)).view.nodes["a"].ready is ready


def test_a_node_that_is_deleted_is_not_shown_but_its_pods_still_count() -> None:
    harness = MonitorHarness(ready_node("a"), make_pod("p", cpu=1, node="a"))
    harness.change(ready_node("a"), None)
    node = harness.view.nodes["a"]
    assert (node.has_object, node.ready, node.pods) == (False, False, 1)
    assert as_data(harness.view, "name")["nodes"] == []
    assert not any(line.startswith("a ") for line in harness.screen_lines())
    harness.add(ready_node("a"))
    assert harness.screen_lines()[-1].startswith("a ")


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        pytest.param(make_pod("p", cpu=1, node="a"), True, id="bound"),
        pytest.param(make_pod("p", cpu=1), False, id="no node"),
        pytest.param(make_pod("p", cpu=1, node="a", status=PodStatus(phase="Succeeded")), False, id="succeeded"),
        pytest.param(make_pod("p", cpu=1, node="a", status=PodStatus(phase="Failed")), False, id="failed"),
    ],
)
def test_pods_that_occupy_a_node(pod: Pod, counts: bool) -> None:
    harness = MonitorHarness(ready_node("a"), pod)
    assert (harness.view.nodes["a"].pods, harness.view.nodes["a"].requested.get("cpu", 0)) == (
        (1, 1000) if counts else (0, 0)
    )
    harness.change(pod, None)
    assert (harness.view.nodes["a"].pods, harness.view.nodes["a"].requested.get("cpu", 0)) == (0, 0)
    assert (harness.view.pods, harness.changes) == ({}, 3)


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        pytest.param(make_pod("p"), (1, 0, 0), id="to be tried"),
        pytest.param(unschedulable_pod("p"), (0, 1, 0), id="unschedulable"),
        pytest.param(unschedulable_pod("p", "SchedulingGated"), (0, 0, 1), id="gated"),
        pytest.param(unschedulable_pod("p", "SchedulerError"), (1, 0, 0), id="another reason"),
        pytest.param(make_pod("p", node="a"), (0, 0, 0), id="bound"),
        pytest.param(make_pod("p", status=PodStatus(phase="Failed")), (0, 0, 0), id="ended"),
        pytest.param(make_pod("p", terminating=True), (0, 0, 0), id="leaving"),
    ],
)
def test_pending_pods_are_counted_by_state(pod: Pod, counts: tuple[int, int, int]) -> None:
    assert MonitorHarness(pod).counts == counts


WAITING, BOUND = make_pod("p"), make_pod("p", node="a")


@pytest.mark.parametrize(
    ("old", "new", "placements", "refusals"),
    [
        pytest.param(None, WAITING, 0, 0, id="a new pod is none"),
        pytest.param(WAITING, BOUND, 1, 0, id="a node"),
        pytest.param(None, BOUND, 1, 0, id="a pod that comes with a node"),
        pytest.param(BOUND, BOUND, 0, 0, id="the same node again is none"),
        pytest.param(None, unschedulable_pod("p"), 0, 1, id="a pod that comes unschedulable_pod"),
        pytest.param(WAITING, unschedulable_pod("p"), 0, 1, id="a refusal"),
        pytest.param(unschedulable_pod("p"), unschedulable_pod("p"), 0, 0, id="the same refusal again is none"),
        pytest.param(
            unschedulable_pod("p"), unschedulable_pod("p", message="1 Insufficient cpu"), 0, 1, id="another refusal"
        ),
        pytest.param(WAITING, unschedulable_pod("p", "SchedulingGated"), 0, 0, id="a gate is none"),
        pytest.param(BOUND, None, 0, 0, id="a deletion is none"),
    ],
)
def test_decisions(old: Pod | None, new: Pod | None, placements: int, refusals: int) -> None:
    harness = MonitorHarness()
    harness.change(old, new)
    assert (harness.view.placements, harness.view.refusals) == (placements, refusals)
    assert len(harness.view.placed) == placements
    assert harness.view.decisions_per_second() == (placements + refusals) / WINDOW_S


def test_pods_of_the_initial_list_are_no_decisions() -> None:
    assert MonitorHarness(BOUND, unschedulable_pod("q"), synced=False).view.decisions_per_second() == 0.0


def test_decisions_count_within_the_window() -> None:
    harness = MonitorHarness(BOUND)
    harness.clock.advance(WINDOW_S)
    assert harness.view.decisions_per_second() == 1 / WINDOW_S
    harness.clock.advance(0.1)
    assert harness.view.decisions_per_second() == 0.0


def test_pods_are_found_by_a_prefix_of_their_names() -> None:
    harness = MonitorHarness(make_pod("web-1"), make_pod("db-0"), make_pod("web-0"))
    assert [pod.name for pod in harness.view.pods_with_prefix("web-")] == ["web-0", "web-1"]


# Order and marks.


def node_requests(name: str, *, cpu: int = 0, memory: int = 0, pods: int = 0, **fields: bool) -> NodeRequests:
    known: dict[str, Any] = {"ready": True, "has_object": True, **fields}
    known |= {"allocatable": {"cpu": 100, "memory": 100}, "requested": {"cpu": cpu, "memory": memory}}
    return NodeRequests(name, pods=pods, **known)


@pytest.mark.parametrize(
    ("sort", "names"), [("cpu", "bca"), ("memory", "cab"), ("pods", "acb"), ("name", "abc")], ids=str
)
def test_the_fullest_node_comes_first(sort: str, names: str) -> None:
    nodes = [
        node_requests("c", cpu=2, memory=3, pods=2),
        node_requests("b", cpu=3, memory=1, pods=1),
        node_requests("a", cpu=1, memory=2, pods=3),
    ]
    assert "".join(node.name for node in sort_nodes(nodes, sort)) == names


def test_equally_full_nodes_are_sorted_by_name() -> None:
    assert [
        node.name
        for node in sort_nodes([node_requests("b", cpu=5), node_requests("c", cpu=9), node_requests("a", cpu=5)], "cpu")
    ] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (node_requests("a"), ""),
        (node_requests("a", ready=False), "NotReady"),
        (node_requests("a", unschedulable=True), "SchedulingDisabled"),
        (node_requests("a", ready=False, unschedulable=True), "NotReady,SchedulingDisabled"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_the_status_of_a_node_is_kubectls(node: NodeRequests, state: str) -> None:
    assert node_status(node) == state


@pytest.mark.parametrize(
    ("share", "bar", "style"),
    [
        (0.0, "░░░░", "cyan"),
        (0.5, "██░░", "cyan"),
        (0.8, "███░", "cyan"),
        (0.81, "███░", "yellow"),
        (0.95, "████", "yellow"),
        (0.96, "████", "red"),
        (1.5, "████", "red"),
    ],
)
def test_the_usage_bar(share: float, bar: str, style: str) -> None:
    text = usage_bar(share, 4)
    assert text.plain == bar
    assert next((str(span.style) for span in text.spans if span.style != "dim"), style) == style


def test_devices_are_extended_resources() -> None:
    harness = MonitorHarness(
        ready_node("a", capacity={GPU: "2", "hugepages-2Mi": "1Gi"}), ready_node("b", capacity={NIC: "1"})
    )
    assert device_resources(harness.view.nodes.values()) == [NIC, GPU]


# Screen.


def test_the_screen_of_a_wide_terminal() -> None:
    harness = MonitorHarness(
        ready_node("a", zone="z1", cpu=4, memory="4Gi", capacity={GPU: "2"}),
        make_node("b", cpu=4, memory="4Gi", unschedulable=True),
        make_pod("p", cpu="1500m", memory="1Gi", requests={GPU: "1"}, node="a"),
        make_pod("q"),
        unschedulable_pod("r"),
        unschedulable_pod("s", "SchedulingGated"),
    )
    assert harness.screen_lines() == [
        "nodes 1/2 ready   pods 1   cpu 19%   memory 12%",
        "pending: 1 in queue, 1 unschedulable, 1 gated   decisions: 0/s",
        "",
        "NODE  STATUS                       ZONE   PODS  CPU                FREE  MEMORY                 FREE  GPU",
        "a     Ready                        z1    1/110  38%  ████░░░░░░░░   2.5     25%  ███░░░░░░░░░  3.0Gi  1/2",
        "b     NotReady,SchedulingDisabled        0/110   0%  ░░░░░░░░░░░░   4.0      0%  ░░░░░░░░░░░░  4.0Gi    -",
    ]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        pytest.param(65, ["NODE", "PODS", "CPU", "MEMORY"], id="narrow"),
        pytest.param(66, ["NODE", "PODS", "CPU", "FREE", "MEMORY", "FREE"], id="least that has gauges"),
        pytest.param(99, ["NODE", "PODS", "CPU", "FREE", "MEMORY", "FREE"], id="most without zones"),
        pytest.param(100, ["NODE", "ZONE", "PODS", "CPU", "FREE", "MEMORY", "FREE"], id="wide"),
    ],
)
def test_columns_by_width(width: int, titles: list[str]) -> None:
    (header,) = [line for line in MonitorHarness(ready_node("a")).screen_lines(width) if line.startswith("NODE")]
    assert header.split() == titles


def test_narrow_terminals_show_names_and_amounts_without_bars() -> None:
    name = "worker-of-a-long-name-0"
    lines = MonitorHarness(ready_node(name)).screen_lines(80)
    assert lines[-1].split() == [name, "0/110", "0%", "0%"]


@pytest.mark.parametrize(
    ("width", "devices", "left_out"),
    [(59, ["NIC", "GPU"], ""), (38, ["NIC", "GPU"], ""), (33, ["NIC"], GPU), (20, [], f"{NIC}, {GPU}")],
)
def test_as_many_device_columns_as_fit(width: int, devices: list[str], left_out: str) -> None:
    lines = MonitorHarness(ready_node("node", capacity={GPU: "8", NIC: "1"})).screen_lines(width)
    text = " ".join(lines)
    assert [title for title in ("NIC", "GPU") if f" {title} " in f"{text} "] == devices
    words = f"hidden columns: {left_out}; -o json shows all"
    assert ("hidden columns" in text) == bool(left_out)
    assert not left_out or words in text


def test_devices_with_one_name_have_their_domains() -> None:
    harness = MonitorHarness(ready_node("a", capacity={GPU: "8", "amd.com/gpu": "1"}))
    assert harness.screen_lines(200)[3].split()[-2:] == ["AMD.COM/GPU", "NVIDIA.COM/GPU"]


@pytest.mark.parametrize(
    ("rows", "screen_lines", "last"),
    [
        (None, ["a", "b", "c"], "c"),
        (3, ["a", "b", "c"], "c"),
        (2, ["a", "b"], "and 1 more nodes"),
        (0, ["a"], "and 2 more nodes"),
        (-4, ["a"], "and 2 more nodes"),
    ],
)
def test_at_most_as_many_nodes_as_rows(rows: int | None, screen_lines: list[str], last: str) -> None:
    lines = MonitorHarness(ready_node("a"), ready_node("b"), ready_node("c")).screen_lines(rows=rows)
    assert [line[0] for line in lines[4 : 4 + len(screen_lines)]] == screen_lines
    assert lines[-1].startswith(last)
    assert len(lines) == 4 + len(screen_lines) + last.startswith("and")


def test_an_overcommitted_node_has_nothing_free() -> None:
    lines = MonitorHarness(
        ready_node("a", cpu=1, memory="1Gi"), make_pod("p", cpu=2, memory="3Gi", node="a")
    ).screen_lines()
    assert lines[4].split() == ["a", "1/110", "200%", "█" * 12, "0.0", "300%", "█" * 12, "0.0Gi"]


def test_an_empty_cluster() -> None:
    assert MonitorHarness().screen_lines()[0] == "nodes 0/0 ready   pods 0   cpu 0%   memory 0%"


def test_the_data_for_programs() -> None:
    harness = MonitorHarness(
        ready_node("a", zone="z1", cpu="1500m", memory="1Gi", capacity={GPU: "2"}),
        make_pod("p", cpu="250m", memory="1Mi", node="a"),
        make_pod("q"),
    )
    data = as_data(harness.view, "cpu")
    (node,) = data["nodes"]
    assert {key: node[key] for key in ("name", "zone", "ready", "unschedulable")} == {
        "name": "a",
        "zone": "z1",
        "ready": True,
        "unschedulable": False,
    }
    amounts = {name: node["resources"][name] for name in ("cpu", "memory", GPU, "pods")}
    assert amounts == {
        "cpu": {"used": 0.25, "total": 1.5},
        "memory": {"used": 1 << 20, "total": 1 << 30},
        GPU: {"used": 0, "total": 2},
        "pods": {"used": 1, "total": 110},
    }
    assert data["waiting"] == {"active": 1, "unschedulable": 0, "gated": 0}
    assert data["decisionsPerSecond"] == 1 / WINDOW_S
