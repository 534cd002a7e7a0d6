"""Host ports."""

from __future__ import annotations

import pytest

from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.objects.core import ContainerPort, Pod
from bayplan.plugins.node_ports import PORTS_IN_USE, NodePorts
from support.builders.framework import (
    FEASIBLE,
    FilterResult,
    errored,
    evaluate_hints,
    filter_result,
    make_container,
    make_cycle,
    make_filtering,
    make_node,
    make_pod,
    make_snapshot,
    rejected,
    run_filter,
)

TAKEN = rejected(PORTS_IN_USE)


def port(number: int, address: str = "", protocol: str = "") -> ContainerPort:
    return ContainerPort(host_port=number, host_ip=address, protocol=protocol)


@pytest.mark.parametrize(
    ("requested", "used", "expected"),
    [
        pytest.param(port(80), port(81), FEASIBLE, id="another port"),
        pytest.param(port(80), port(80), TAKEN, id="the same"),
        pytest.param(port(80), port(80, protocol="UDP"), FEASIBLE, id="another protocol"),
        pytest.param(port(80, protocol="TCP"), port(80), TAKEN, id="TCP is the default"),
        pytest.param(port(80, "10.0.0.1"), port(80, "10.0.0.2"), FEASIBLE, id="another address"),
        pytest.param(port(80, "10.0.0.1"), port(80, "10.0.0.1"), TAKEN, id="the same address"),
        pytest.param(port(80, "10.0.0.1"), port(80), TAKEN, id="all addresses are in use"),
        pytest.param(port(80), port(80, "10.0.0.1"), TAKEN, id="wants all addresses"),
        pytest.param(port(80, "0.0.0.0"), port(80, "10.0.0.1"), TAKEN, id="wants all, spelled out"),
        pytest.param(port(80, "::"), port(80, "10.0.0.1"), FEASIBLE, id="the IPv6 wildcard is just an address"),
        pytest.param(port(0), port(80), FEASIBLE, id="0 is no port"),
        pytest.param(port(-1), port(80), FEASIBLE, id="neither is -1"),
    ],
)
def test_conflict(requested: ContainerPort, used: ContainerPort, expected: FilterResult) -> None:
    holder = make_pod("holder", node="a", host_ports=(used,))
    found = run_filter(NodePorts, make_pod(host_ports=(requested,)), make_node("a"), make_node("b"), pods=[holder])
    assert found == {"a": expected, "b": FEASIBLE}


@pytest.mark.parametrize("used", [80, 90])
def test_one_of_several_ports_is_enough(used: int) -> None:
    holder = make_pod("holder", node="a", host_ports=(used,))
    assert run_filter(NodePorts, make_pod(host_ports=(80, 90)), make_node("a"), pods=[holder]) == {"a": TAKEN}


def test_two_ports_of_the_pod_itself_do_not_conflict() -> None:
    assert run_filter(NodePorts, make_pod(host_ports=(80, 80)), make_node("a")) == {"a": FEASIBLE}


@pytest.mark.parametrize(("policy", "expected"), [("Always", TAKEN), (None, FEASIBLE)])
def test_sidecars_hold_ports_and_plain_init_containers_do_not(policy: str | None, expected: FilterResult) -> None:
    init = make_container("init", ports=(port(80),), restart_policy=policy)
    holder = make_pod("holder", node="a", init_containers=(init,))
    assert run_filter(NodePorts, make_pod(host_ports=(80,)), make_node("a"), pods=[holder]) == {"a": expected}


def test_a_pod_without_host_ports_is_skipped() -> None:
    cycle = make_cycle(make_pod())
    make_filtering(NodePorts()).pre_filter(cycle)
    assert cycle.skip_filter == {"NodePorts"}


def test_filter_without_pre_filter_is_an_error() -> None:
    snapshot = make_snapshot([make_node("a")])
    diagnosis = make_filtering(NodePorts()).run_filters(
        make_cycle(make_pod(host_ports=(80,)), snapshot), PreFilterSummary()
    )
    text = 'running "NodePorts" filter plugin: reading "PreFilterNodePorts" from cycleState: not found'
    assert filter_result(diagnosis.status(0)) == errored(text)


HOLDER = make_pod("holder", node="a", host_ports=(80,))


@pytest.mark.parametrize(
    ("deleted", "hint"),
    [
        pytest.param(HOLDER, "Queue", id="held the port"),
        pytest.param(make_pod("holder", nominated="a", host_ports=(80,)), "Queue", id="was going to"),
        pytest.param(make_pod("holder", host_ports=(80,)), "Skip", id="was nowhere"),
        pytest.param(make_pod("holder", node="a", host_ports=(81,)), "Skip", id="held another"),
        pytest.param(make_pod("holder", node="a"), "Skip", id="held none"),
    ],
)
def test_pod_hints(deleted: Pod, hint: str) -> None:
    assert evaluate_hints(NodePorts(), "Pod", make_pod(host_ports=(80,)), deleted, None) == [hint]


def test_any_new_node_queues_the_pod() -> None:
    assert evaluate_hints(NodePorts(), "Node", make_pod(host_ports=(80,)), None, make_node()) == ["Queue"]


def test_signatures() -> None:
    sign = NodePorts().signature
    assert sign(make_pod(host_ports=(1, 2))) == sign(make_pod(host_ports=(2, 1)))
    assert sign(make_pod(host_ports=(1,))) != sign(make_pod(host_ports=(port(1, "10.0.0.1"),)))
