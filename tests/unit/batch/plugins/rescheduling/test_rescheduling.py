from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.plugins.rescheduling.low_node_utilization import Thresholds
from bayplan.batch.plugins.rescheduling.plugin import ReschedulingPlugin, ReschedulingState
from bayplan.batch.session.session import Session
from bayplan.objects.core import Node, Pod
from bayplan.testing.builders import make_node
from support.builders.batch import NOW, make_engine, make_group, make_member, task_names

PERIOD = "10m"


def strategy(**params: Any) -> dict[str, Any]:
    return {"metricsPeriod": PERIOD, "strategies": [{"name": "lowNodeUtilization", "params": params}]}


LOW_NODE_UTILIZATION = strategy(thresholds={"cpu": 30, "memory": 30}, targetThresholds={"cpu": 60, "memory": 60})


def pod(name: str, node: str = "busy", *, cpu: str = "1", priority: int | None = None, **rest: Any) -> Pod:
    requests = {"cpu": cpu, "memory": "1Gi"} if cpu else {}
    member = make_member(name, node=node, requests=requests, **rest)
    return replace(member, spec=replace(member.spec, priority=priority))


def engine(
    pods: list[Pod],
    usage: Mapping[str, float],
    *,
    arguments: Mapping[str, Any] = LOW_NODE_UTILIZATION,
    nodes: list[Node] | None = None,
    memory: float = 0.0,
) -> BatchEngine:
    amounts = {"cpu": 10, "memory": "100Gi"}
    nodes = [make_node(name, **amounts) for name in usage] if nodes is None else nodes
    batch_engine = make_engine(ReschedulingPlugin, arguments=arguments, nodes=nodes, pods=pods, objects=[make_group()])
    batch_engine.set_usage({name: NodeUsage(0.0, {PERIOD: cpu}, {PERIOD: memory}) for name, cpu in usage.items()})
    batch_engine.handle.memory[ReschedulingPlugin.name] = ReschedulingState(NOW - timedelta(days=1))
    return batch_engine


def victims(session: Session) -> list[str]:
    running = [task for job in session.jobs.values() for task in job.tasks.values() if task.node_name]
    return task_names(session.victim_tasks(running))


def evicted(pods: list[Pod], usage: Mapping[str, float], **rescheduler: Any) -> list[str]:
    with engine(pods, usage, **rescheduler).session() as session:
        return victims(session)


FOUR_PODS = [pod(f"p-w-{number}") for number in range(4)]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param({"busy": 75.0, "idle": 10.0}, 2, id="down-to-the-target"),
        pytest.param({"busy": 80.0, "idle": 10.0}, 3, id="at-the-target-is-not-below"),
        pytest.param({"busy": 60.0, "idle": 10.0}, 0, id="no-busy-node"),
        pytest.param({"busy": 75.0, "idle": 30.0}, 0, id="no-idle-node"),
        pytest.param({"busy": 20.0, "idle": 10.0}, 0, id="only-idle-nodes"),
        pytest.param({"busy": 99.0, "idle": 40.0, "low": 29.0}, 4, id="all-tasks"),
    ],
)
def test_tasks_are_evicted_from_busy_nodes(usage: dict[str, float], expected: int) -> None:
    assert len(evicted(FOUR_PODS, usage)) == expected


def test_the_capacity_of_idle_nodes_is_the_limit() -> None:
    """Eviction ends when nothing is left: 60 % of 10 cpus minus 50 % in use is the capacity for one task."""
    arguments = strategy(thresholds={"cpu": 55}, targetThresholds={"cpu": 60})
    assert len(evicted(FOUR_PODS, {"busy": 99.0, "idle": 50.0}, arguments=arguments)) == 1
    # 1.5 cpus: below zero goes on
    assert len(evicted(FOUR_PODS, {"busy": 99.0, "idle": 45.0}, arguments=arguments)) == 4


def test_unschedulable_nodes_are_not_idle() -> None:
    nodes = [make_node("busy", cpu=10), make_node("idle", cpu=10, unschedulable=True)]
    assert not evicted(FOUR_PODS, {"busy": 90.0, "idle": 0.0}, nodes=nodes)


def test_memory_usage_counts_like_cpu_usage() -> None:
    with engine(FOUR_PODS, {"busy": 10.0, "idle": 10.0}).session() as session:
        session.nodes.usage["busy"].memory[PERIOD] = 61.0  # type: ignore[index]
        assert len(victims(session)) == 2


def test_the_busiest_node_comes_first() -> None:
    pods = [pod("a", "busy"), pod("b", "busier")]
    arguments = strategy(thresholds={"cpu": 55}, targetThresholds={"cpu": 60})
    assert evicted(pods, {"busy": 90.0, "busier": 95.0, "idle": 50.0}, arguments=arguments) == ["b"]


def test_eviction_order_of_pods() -> None:
    pods = [
        pod("important", priority=10),
        pod("burstable", priority=5),
        pod("idle", priority=5, cpu=""),
        pod("nameless"),
        pod("stranger", group=""),
    ]
    assert evicted(pods, {"busy": 99.0, "idle": 0.0}) == ["nameless", "idle", "burstable", "important"]


def test_usage_of_another_period_counts_as_zero() -> None:
    assert not evicted(
        FOUR_PODS, {"busy": 90.0, "idle": 10.0}, arguments={**LOW_NODE_UTILIZATION, "metricsPeriod": "5m"}
    )


# Arguments


def test_without_thresholds_nothing_is_evicted() -> None:
    assert not evicted(FOUR_PODS, {"busy": 99.0, "idle": 1.0}, arguments={"metricsPeriod": PERIOD})
    assert not evicted(FOUR_PODS, {"busy": 99.0, "idle": 1.0}, arguments=strategy())


@pytest.mark.parametrize(
    ("params", "low", "target"),
    [
        pytest.param({}, (100, 100), (100, 100), id="nothing"),
        pytest.param({"thresholds": {"cpu": 20}}, (20, 100), (100, 100), id="one-resource"),
        pytest.param({"thresholds": {"cpu": 20, "pods": 3}}, (20, 100), (100, 100), id="unknown-resource"),
        pytest.param({"targetThresholds": {"memory": 70}}, (100, 100), (100, 70), id="target"),
        pytest.param({"thresholds": 20, "targetThresholds": {"cpu": 70}}, (100, 100), (100, 100), id="no-map-ends-it"),
    ],
)
def test_thresholds(params: dict[str, Any], low: tuple[int, int], target: tuple[int, int]) -> None:
    found = Thresholds.of(params, Arguments())
    assert (found.low["cpu"], found.low["memory"]) == low
    assert (found.target["cpu"], found.target["memory"]) == target


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"interval": 5}, "argument interval must be a text such as 5m, not 5", id="interval"),
        pytest.param({"metricsPeriod": 10}, "argument metricsPeriod must be a text", id="period"),
        pytest.param(strategy(thresholds={"cpu": 2.5}), "thresholds.cpu must be a whole number", id="threshold"),
        pytest.param({"interval": "soon"}, "interval: ", id="no-duration"),
        pytest.param({"strategies": ["x"]}, "strategies: 'x' is not a strategy", id="no-strategy"),
        pytest.param(strategy(thresholds=5), "thresholds must be a map of resources", id="no-map"),
    ],
)
def test_invalid_arguments_are_reported(arguments: dict[str, Any], message: str) -> None:
    with engine(FOUR_PODS, {"busy": 90.0, "idle": 10.0}, arguments=arguments).session() as session:
        assert any(message in fault for fault in session.faults), session.faults
        assert not victims(session)


def test_unknown_strategies_are_ignored() -> None:
    arguments = {"metricsPeriod": PERIOD, "strategies": [{"name": "other"}]}
    assert not evicted(FOUR_PODS, {"busy": 99.0, "idle": 1.0}, arguments=arguments)


# Intervals


def test_an_interval_passes_between_two_rounds() -> None:
    rescheduler = engine(FOUR_PODS, {"busy": 90.0, "idle": 10.0}, arguments={**LOW_NODE_UTILIZATION, "interval": "2m"})
    clock: Any = rescheduler.handle.clock
    found = []
    for seconds in (0, 120, 1):
        clock.advance(seconds)
        with rescheduler.session() as session:
            found.append(bool(victims(session)))
    assert found == [True, False, True]  # later than two minutes, not after two minutes


def test_the_first_interval_begins_with_the_process() -> None:
    rescheduler = engine(FOUR_PODS, {"busy": 90.0, "idle": 10.0})
    del rescheduler.handle.memory[ReschedulingPlugin.name]
    with rescheduler.session() as session:
        assert not victims(session)


def test_a_removed_period_keeps_its_last_value() -> None:
    state = ReschedulingState(NOW)
    ReschedulingPlugin(Arguments({"metricsPeriod": "10m"}), state)
    ReschedulingPlugin(Arguments({}), state)
    assert state.period == "10m"
