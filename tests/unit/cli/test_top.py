"""`bayplan top`: what is counted, in which order nodes come, and what fits into a terminal of some width."""

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


def made(name: str, **fields: Any) -> Node:
    return make_node(name, conditions=(READY,), **fields)


def refused(name: str, reason: str = "Unschedulable", message: str = "no node fits") -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason=reason, message=message)
    return make_pod(name, status=PodStatus(conditions=(condition,)))


class Seen:
    """A view that is given objects without a server."""

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

    def shown(self, width: int = 120, *, sort: str = "name", rows: int | None = None) -> list[str]:
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(render_screen(self.view, sort, console, rows=rows), crop=False)
        assert isinstance(console.file, io.StringIO)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]


# counting


def test_a_node_has_what_it_offers_and_what_its_pods_ask_for() -> None:
    seen = Seen(made("a", zone="z1", cpu=4, unschedulable=True), make_pod("p", cpu=1, node="a"))
    node = seen.view.nodes["a"]
    assert (node.zone, node.ready, node.unschedulable, node.has_object) == ("z1", True, True, True)
    assert (node.pods, node.requested["cpu"], node.allocatable["cpu"], node.share("cpu")) == (1, 1000, 4000, 0.25)
    assert (node.share(GPU), seen.changes) == (0.0, 2)


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        pytest.param((), False, id="no condition"),
        pytest.param((Condition(type="Ready", status="False"),), False, id="not ready"),
        pytest.param((Condition(type="DiskPressure", status="True"),), False, id="another condition"),
        pytest.param((Condition(type="DiskPressure", status="True"), READY), True, id="ready"),
    ],
)
def test_a_node_is_ready_when_its_condition_says_so(conditions: tuple[Condition, ...], ready: bool) -> None:
    assert Seen(make_node("a", conditions=conditions)).view.nodes["a"].ready is ready


def test_a_node_that_is_deleted_is_not_shown_but_its_pods_still_count() -> None:
    seen = Seen(made("a"), make_pod("p", cpu=1, node="a"))
    seen.change(made("a"), None)
    node = seen.view.nodes["a"]
    assert (node.has_object, node.ready, node.pods) == (False, False, 1)
    assert as_data(seen.view, "name")["nodes"] == []
    assert not any(line.startswith("a ") for line in seen.shown())
    seen.add(made("a"))
    assert seen.shown()[-1].startswith("a ")


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        pytest.param(make_pod("p", cpu=1, node="a"), True, id="bound"),
        pytest.param(make_pod("p", cpu=1), False, id="no node"),
        pytest.param(make_pod("p", cpu=1, node="a", status=PodStatus(phase="Succeeded")), False, id="succeeded"),
        pytest.param(make_pod("p", cpu=1, node="a", status=PodStatus(phase="Failed")), False, id="failed"),
    ],
)
def test_pods_that_take_room(pod: Pod, counts: bool) -> None:
    seen = Seen(made("a"), pod)
    assert (seen.view.nodes["a"].pods, seen.view.nodes["a"].requested.get("cpu", 0)) == (
        (1, 1000) if counts else (0, 0)
    )
    seen.change(pod, None)
    assert (seen.view.nodes["a"].pods, seen.view.nodes["a"].requested.get("cpu", 0)) == (0, 0)
    assert (seen.view.pods, seen.changes) == ({}, 3)


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        pytest.param(make_pod("p"), (1, 0, 0), id="to be tried"),
        pytest.param(refused("p"), (0, 1, 0), id="unschedulable"),
        pytest.param(refused("p", "SchedulingGated"), (0, 0, 1), id="gated"),
        pytest.param(refused("p", "SchedulerError"), (1, 0, 0), id="another reason"),
        pytest.param(make_pod("p", node="a"), (0, 0, 0), id="bound"),
        pytest.param(make_pod("p", status=PodStatus(phase="Failed")), (0, 0, 0), id="ended"),
        pytest.param(make_pod("p", terminating=True), (0, 0, 0), id="leaving"),
    ],
)
def test_pods_that_wait(pod: Pod, counts: tuple[int, int, int]) -> None:
    assert Seen(pod).counts == counts


WAITING, BOUND = make_pod("p"), make_pod("p", node="a")


@pytest.mark.parametrize(
    ("old", "new", "placements", "refusals"),
    [
        pytest.param(None, WAITING, 0, 0, id="a new pod is none"),
        pytest.param(WAITING, BOUND, 1, 0, id="a node"),
        pytest.param(None, BOUND, 1, 0, id="a pod that comes with a node"),
        pytest.param(BOUND, BOUND, 0, 0, id="the same node again is none"),
        pytest.param(None, refused("p"), 0, 1, id="a pod that comes refused"),
        pytest.param(WAITING, refused("p"), 0, 1, id="a refusal"),
        pytest.param(refused("p"), refused("p"), 0, 0, id="the same refusal again is none"),
        pytest.param(refused("p"), refused("p", message="1 Insufficient cpu"), 0, 1, id="another refusal"),
        pytest.param(WAITING, refused("p", "SchedulingGated"), 0, 0, id="a gate is none"),
        pytest.param(BOUND, None, 0, 0, id="a deletion is none"),
    ],
)
def test_decisions(old: Pod | None, new: Pod | None, placements: int, refusals: int) -> None:
    seen = Seen()
    seen.change(old, new)
    assert (seen.view.placements, seen.view.refusals) == (placements, refusals)
    assert len(seen.view.placed) == placements
    assert seen.view.decisions_per_second() == (placements + refusals) / WINDOW_S


def test_pods_of_the_first_list_are_no_decisions() -> None:
    assert Seen(BOUND, refused("q"), synced=False).view.decisions_per_second() == 0.0


def test_decisions_count_for_as_long_as_the_window() -> None:
    seen = Seen(BOUND)
    seen.clock.advance(WINDOW_S)
    assert seen.view.decisions_per_second() == 1 / WINDOW_S
    seen.clock.advance(0.1)
    assert seen.view.decisions_per_second() == 0.0


def test_pods_are_found_by_the_beginning_of_their_names() -> None:
    seen = Seen(make_pod("web-1"), make_pod("db-0"), make_pod("web-0"))
    assert [pod.name for pod in seen.view.pods_with_prefix("web-")] == ["web-0", "web-1"]


# order and marks


def use(name: str, *, cpu: int = 0, memory: int = 0, pods: int = 0, **fields: bool) -> NodeRequests:
    known: dict[str, Any] = {"ready": True, "has_object": True, **fields}
    known |= {"allocatable": {"cpu": 100, "memory": 100}, "requested": {"cpu": cpu, "memory": memory}}
    return NodeRequests(name, pods=pods, **known)


@pytest.mark.parametrize(
    ("sort", "names"), [("cpu", "bca"), ("memory", "cab"), ("pods", "acb"), ("name", "abc")], ids=str
)
def test_the_fullest_node_comes_first(sort: str, names: str) -> None:
    nodes = [use("c", cpu=2, memory=3, pods=2), use("b", cpu=3, memory=1, pods=1), use("a", cpu=1, memory=2, pods=3)]
    assert "".join(node.name for node in sort_nodes(nodes, sort)) == names


def test_equally_full_nodes_come_by_name() -> None:
    assert [node.name for node in sort_nodes([use("b", cpu=5), use("c", cpu=9), use("a", cpu=5)], "cpu")] == [
        "c",
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (use("a"), ""),
        (use("a", ready=False), "NotReady"),
        (use("a", unschedulable=True), "SchedulingDisabled"),
        (use("a", ready=False, unschedulable=True), "NotReady,SchedulingDisabled"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_the_state_of_a_node_is_kubectl_s(node: NodeRequests, state: str) -> None:
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
def test_a_gauge(share: float, bar: str, style: str) -> None:
    text = usage_bar(share, 4)
    assert text.plain == bar
    assert next((str(span.style) for span in text.spans if span.style != "dim"), style) == style


def test_devices_are_what_others_than_kubernetes_offer() -> None:
    seen = Seen(made("a", capacity={GPU: "2", "hugepages-2Mi": "1Gi"}), made("b", capacity={NIC: "1"}))
    assert device_resources(seen.view.nodes.values()) == [NIC, GPU]


# the picture


def test_the_picture_of_a_wide_terminal() -> None:
    seen = Seen(
        made("a", zone="z1", cpu=4, memory="4Gi", capacity={GPU: "2"}),
        make_node("b", cpu=4, memory="4Gi", unschedulable=True),
        make_pod("p", cpu="1500m", memory="1Gi", requests={GPU: "1"}, node="a"),
        make_pod("q"),
        refused("r"),
        refused("s", "SchedulingGated"),
    )
    assert seen.shown() == [
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
    (header,) = [line for line in Seen(made("a")).shown(width) if line.startswith("NODE")]
    assert header.split() == titles


def test_names_and_amounts_are_whole_where_gauges_have_no_room() -> None:
    name = "worker-of-a-long-name-0"
    lines = Seen(made(name)).shown(80)
    assert lines[-1].split() == [name, "0/110", "0%", "0%"]


@pytest.mark.parametrize(
    ("width", "devices", "left_out"),
    [(59, ["NIC", "GPU"], ""), (38, ["NIC", "GPU"], ""), (33, ["NIC"], GPU), (20, [], f"{NIC}, {GPU}")],
)
def test_devices_have_a_column_each_as_many_as_fit(width: int, devices: list[str], left_out: str) -> None:
    lines = Seen(made("node", capacity={GPU: "8", NIC: "1"})).shown(width)
    text = " ".join(lines)
    assert [title for title in ("NIC", "GPU") if f" {title} " in f"{text} "] == devices
    words = f"hidden columns: {left_out}; -o json shows all"
    assert ("no room" in text) == bool(left_out)
    assert not left_out or words in text


def test_devices_of_one_name_have_their_domains() -> None:
    seen = Seen(made("a", capacity={GPU: "8", "amd.com/gpu": "1"}))
    assert seen.shown(200)[3].split()[-2:] == ["AMD.COM/GPU", "NVIDIA.COM/GPU"]


@pytest.mark.parametrize(
    ("rows", "shown", "last"),
    [
        (None, ["a", "b", "c"], "c"),
        (3, ["a", "b", "c"], "c"),
        (2, ["a", "b"], "and 1 more nodes"),
        (0, ["a"], "and 2 more nodes"),
        (-4, ["a"], "and 2 more nodes"),
    ],
)
def test_as_many_nodes_as_there_are_lines(rows: int | None, shown: list[str], last: str) -> None:
    lines = Seen(made("a"), made("b"), made("c")).shown(rows=rows)
    assert [line[0] for line in lines[4 : 4 + len(shown)]] == shown
    assert lines[-1].startswith(last)
    assert len(lines) == 4 + len(shown) + last.startswith("and")


def test_a_node_that_is_over_full_has_nothing_free() -> None:
    lines = Seen(made("a", cpu=1, memory="1Gi"), make_pod("p", cpu=2, memory="3Gi", node="a")).shown()
    assert lines[4].split() == ["a", "1/110", "200%", "█" * 12, "0.0", "300%", "█" * 12, "0.0Gi"]


def test_an_empty_cluster_has_no_shares() -> None:
    assert Seen().shown()[0] == "nodes 0/0 ready   pods 0   cpu 0%   memory 0%"


def test_everything_for_programs() -> None:
    seen = Seen(
        made("a", zone="z1", cpu="1500m", memory="1Gi", capacity={GPU: "2"}),
        make_pod("p", cpu="250m", memory="1Mi", node="a"),
        make_pod("q"),
    )
    data = as_data(seen.view, "cpu")
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
