"""The preemption dry run on forks against its naive twin, on any crowded cluster; it leaves no trace."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.status import Code
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.meta import LabelSelector, ObjectMeta
from bayplan.objects.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from bayplan.plugins.default_preemption.plugin import DefaultPreemption
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.snapshot import NodeColumns, Snapshot
from naive import preemption as naive
from support.builders.framework import (
    CREATED,
    FakeHandle,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
)

NOW = CREATED + timedelta(hours=1)
NODES = [
    make_node(name, allocatable={"cpu": cpu, "memory": "4Gi", "pods": pods})
    for name, cpu, pods in (("a", "2", "12"), ("b", "3", "4"), ("c", "4", "12"))
]

amounts = st.fixed_dictionaries(
    {},
    optional={"cpu": st.sampled_from(["250m", "500m", "1", "2"]), "memory": st.sampled_from(["256Mi", "1Gi", "3Gi"])},
)
starts = st.none() | st.integers(0, 3).map(lambda seconds: CREATED + timedelta(seconds=seconds))


@st.composite
def crowds(draw: st.DrawFn) -> list[Pod]:
    """Up to twelve pods a node, many of them equal; a node may be overcommitted."""
    return [
        make_pod(
            f"{node.name}{number}",
            node=node.name,
            namespace=draw(st.sampled_from(["default", "default", "other"])),
            labels=draw(st.sampled_from([{}, {"app": "web"}, {"app": "web", "tier": "x"}])),
            requests=draw(amounts),
            priority=draw(st.integers(-2, 3)),
            status=PodStatus(phase="Running", start_time=draw(starts)),
            terminating=draw(st.booleans()),
        )
        for node in NODES
        for number in range(draw(st.integers(0, 12)))
    ]


@st.composite
def budgets(draw: st.DrawFn) -> list[PodDisruptionBudget]:
    return [
        PodDisruptionBudget(
            metadata=ObjectMeta(name=f"pdb{number}", namespace="default"),
            spec=PodDisruptionBudgetSpec(LabelSelector(match_labels=labels)),
            status=PodDisruptionBudgetStatus(
                disruptions_allowed=draw(st.integers(0, 2)), disrupted_pods=dict.fromkeys(draw(names), CREATED)
            ),
        )
        for number, labels in enumerate(
            draw(st.lists(st.sampled_from([{"app": "web"}, {"app": "web"}, {"tier": "x"}, {}]), max_size=3))
        )
    ]


names = st.lists(st.sampled_from(["a0", "a1", "b0", "c0"]), max_size=2)
preemptors = st.builds(
    lambda requests, priority: make_pod("vip", requests=requests, priority=priority),
    amounts,
    st.integers(-1, 4) | st.just(4),
)


def setting(pod: Pod, snapshot: Snapshot) -> tuple[DefaultPreemption, Cycle, Diagnosis]:
    """The plugin an hour after the start, and an attempt after its filters."""
    handle = FakeHandle(snapshot.catalog)
    handle.clock.advance(3600)
    handle.filter_runner = make_filtering(make_plugin(NodeResourcesFit, handle=handle))
    cycle = make_cycle(pod, snapshot)
    diagnosis = handle.filter_runner.run_filters(cycle, handle.filter_runner.pre_filter(cycle))
    return make_plugin(DefaultPreemption, handle=handle), cycle, diagnosis


@given(preemptors, crowds(), budgets())
def test_the_dry_run_agrees_with_the_twin(pod: Pod, pods: list[Pod], pdbs: list[PodDisruptionBudget]) -> None:
    plugin, cycle, diagnosis = setting(pod, make_snapshot(NODES, pods, pdbs))
    expected = {}
    for row, node in enumerate(NODES):
        there = [one for one in pods if one.spec.node_name == node.name]
        outcome = naive.victims_on(pod, node, there, pdbs, NOW)
        if outcome is not None and diagnosis.status(row).code is Code.UNSCHEDULABLE:
            expected[node.name] = outcome
    found = plugin.candidates(cycle, diagnosis)
    if isinstance(found, PostFilterResult):
        assert expected == {}
    else:
        assert {name: (list(victims.pods), victims.violations) for name, victims in found.items()} == expected
        assert plugin.select_node(cycle, found).nominated_node_name == naive.best_node(expected, NOW)


@settings(max_examples=25)
@given(preemptors, crowds(), budgets())
def test_the_dry_run_leaves_no_trace(pod: Pod, pods: list[Pod], pdbs: list[PodDisruptionBudget]) -> None:
    snapshot = make_snapshot(NODES, pods, pdbs)
    before = seen(snapshot.nodes)
    plugin, cycle, diagnosis = setting(pod, snapshot)
    plugin.post_filter(cycle, diagnosis)
    after = seen(snapshot.nodes)
    assert after.keys() == before.keys()
    for what, value in before.items():
        assert np.array_equal(value, after[what]) if isinstance(value, np.ndarray) else value == after[what], what


def seen(columns: NodeColumns) -> dict[str, Any]:
    """Everything that adding or removing a pod would change."""
    matrices = {name: getattr(columns, name).copy() for name in ("requested", "nonzero", "pod_count", "allocatable")}
    return {
        **matrices,
        "pods": [[info.key for info in pods] for pods in columns.pods],
        "ports": [set(ports) for ports in columns.ports],
        "port_rows": {port: dict(rows) for port, rows in columns.port_rows.items()},
    }
