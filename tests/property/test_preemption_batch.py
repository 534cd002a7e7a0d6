"""Rows tried side by side against rows tried one by one: the same victims, statuses, words, in the same order.

On crowded clusters with everything that a row can be judged by: resources, host ports, taints, volumes, a filter that
looks at the list of pods itself, one that breaks now and then, pods nominated to a node, budgets, equals of every kind.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.framework.boundary import Boundary
from bayplan.framework.cycle import Cycle
from bayplan.framework.filtering import Filtering
from bayplan.framework.plugin import row_alone
from bayplan.framework.preemption import DryRun, Findings
from bayplan.framework.preemption_victims import budgets_of
from bayplan.framework.status import Status, unschedulable
from bayplan.objects.core import ContainerPort, Node, Pod, PodStatus
from bayplan.objects.meta import KubeObject, LabelSelector, ObjectMeta
from bayplan.objects.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from bayplan.plugins.node_ports import NodePorts
from bayplan.plugins.node_resources_fit import NodeResourcesFit
from bayplan.plugins.node_volume_limits import NodeVolumeLimits
from bayplan.plugins.taint_toleration import TaintToleration
from bayplan.snapshot import NodeView, PodInfo, Snapshot
from bayplan.snapshot.weights import PodWeights
from bayplan.telemetry.timings import PluginTimings
from builders import (
    LONG_AGO,
    FakeHandle,
    FakeNominations,
    make_cycle,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    taint,
)
from volume_builders import make_claim, make_csi_node, make_volume, on_claim

NOW = LONG_AGO + timedelta(hours=1)
NAMES = ("a", "b", "c", "d", "e")
CLAIMS = ("p", "q", "r", "s")
PLUGINS = (TaintToleration, NodePorts, NodeResourcesFit, NodeVolumeLimits)


class RowByRow(Filtering):
    """The same filters, with every row tried alone."""

    def keeps_to_rows(self, cycle: Cycle) -> bool:  # noqa: ARG002
        return False


class Superstitious:
    """Reads omens in everything that pods leave on a node: the list of them in its order, and all sums."""

    name = "Superstitious"
    depends_on = row_alone

    def filter(self, cycle: Cycle, node: NodeView) -> Status | None:  # noqa: ARG002
        listed = " ".join(info.pod.name for info in node.pods)
        signs = f"{node.name} {listed} {node.columns.nonzero[:, node.row]} {node.columns.requested[:, node.row]}"
        return unschedulable(f"the stars are against {listed}") if crc32(signs.encode()) % 4 == 0 else None


class Brittle:
    """Breaks on a node with a certain number of pods, which is not the same everywhere, and mentions it."""

    name = "Brittle"

    def filter(self, cycle: Cycle, node: NodeView) -> Status | None:  # noqa: ARG002
        if len(node.pods) == 1 + ord(node.name) % 3:
            raise RuntimeError(f"{len(node.pods)} on {node.name}")
        return None


# clusters -------------------------------------------------------------------------------------------------------

amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["250m", "500m", "1", "2"]),
        "memory": st.sampled_from(["256Mi", "1Gi", "3Gi"]),
        "x.io/gpu": st.sampled_from(["1", "2"]),
    },
)
ports = st.lists(
    st.builds(
        lambda port, address: ContainerPort(host_port=port, container_port=1, host_ip=address),
        st.sampled_from([80, 81]),
        st.sampled_from(["", "10.0.0.1"]),
    ),
    max_size=2,
)
starts = st.none() | st.sampled_from([0, 0, 1, 2, 3600, 7200]).map(
    lambda seconds: LONG_AGO + timedelta(seconds=seconds)
)
claims = st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True).map(
    lambda names: tuple(on_claim(name, name) for name in names)
)


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    return [
        make_node(
            name,
            allocatable={
                "cpu": draw(st.sampled_from(["2", "4", "8"])),
                "memory": "8Gi",
                "pods": draw(st.sampled_from(["4", "20"])),
                "x.io/gpu": draw(st.sampled_from(["0", "2"])),
            },
            taints=draw(st.sampled_from([(), (), (), (taint("t"),)])),
        )
        for name in NAMES[: draw(st.integers(1, len(NAMES)))]
    ]


@st.composite
def crowded(draw: st.DrawFn, node: str) -> list[Pod]:
    """Few pods that differ in everything, or more than Go sorts by insertion that differ in hardly anything."""
    alike = draw(st.booleans())
    request = st.just(draw(amounts)) if alike else amounts
    count = draw(st.sampled_from([2, 13, 16]) if alike else st.integers(0, 6))
    started = st.just(draw(starts)) if alike and draw(st.booleans()) else starts
    return [
        make_pod(
            f"{node}{number}",
            node=node,
            labels=draw(st.sampled_from([{}, {"app": "web"}, {"app": "web", "tier": "x"}])),
            requests=draw(request),
            priority=draw(st.integers(0, 1) if alike else st.integers(-2, 4)),
            status=PodStatus(phase="Running", start_time=draw(started)),
            host_ports=() if alike else draw(ports),
            volumes=() if alike else draw(claims),
        )
        for number in range(count)
    ]


@st.composite
def crowds(draw: st.DrawFn) -> list[Pod]:
    return [pod for node in NAMES for pod in draw(crowded(node))]


@st.composite
def budgets(draw: st.DrawFn) -> list[PodDisruptionBudget]:
    labels = draw(st.lists(st.sampled_from([{"app": "web"}, {"app": "web"}, {"tier": "x"}, {}]), max_size=3))
    disrupted = st.lists(st.sampled_from(["a0", "a1", "b0", "c0"]), max_size=2)
    return [
        PodDisruptionBudget(
            metadata=ObjectMeta(name=f"pdb{number}", namespace=draw(st.sampled_from(["default", "default", "other"]))),
            spec=PodDisruptionBudgetSpec(LabelSelector(match_labels=wanted)),
            status=PodDisruptionBudgetStatus(
                disruptions_allowed=draw(st.integers(0, 2)), disrupted_pods=dict.fromkeys(draw(disrupted), LONG_AGO)
            ),
        )
        for number, wanted in enumerate(labels)
    ]


@st.composite
def storage(draw: st.DrawFn) -> list[KubeObject]:
    """A volume for most claims, and nodes that can attach few of them; a claim without its volume is a fault."""
    found: list[KubeObject] = []
    for claim in draw(st.sampled_from([CLAIMS, CLAIMS, CLAIMS[1:]])):
        found += [make_claim(claim, volume=f"pv-{claim}"), make_volume(f"pv-{claim}", handle=claim)]
    return [*found, *(make_csi_node(name, csi_example_com=draw(st.sampled_from([1, 2]))) for name in NAMES)]


preemptors = st.builds(
    lambda requests, priority, host_ports, volumes: make_pod(
        "vip", requests=requests, priority=priority, host_ports=host_ports, volumes=volumes
    ),
    amounts,
    st.sampled_from([1, 2, 3, 5, 5]),
    st.just([]) | ports,
    st.just(()) | claims,
)
guests = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([5, 9]), max_size=2)


def searched(kind: type[Filtering], world: Any, extra: tuple[Any, ...], weights: PodWeights | None = None) -> Findings:
    """What a search finds on a fresh start."""
    pod, snapshot, pdbs, waiting, wanted, offset = world
    handle = FakeHandle(snapshot.catalog)
    plugins = [*(make_plugin(plugin, handle=handle) for plugin in PLUGINS), *extra]
    nominated = {
        name: [PodInfo(make_pod(f"guest-{name}", requests={"cpu": "1"}, host_ports=[80], priority=priority))]
        for name, priority in waiting.items()
    }
    filters = kind(
        [plugin for plugin in plugins if hasattr(plugin, "pre_filter")],
        plugins,
        Boundary(ManualClock(), PluginTimings()),
        FakeNominations(nominated),
    )
    cycle = make_cycle(pod, snapshot)
    filters.pre_filter(cycle)
    search = DryRun(cycle, filters, budgets_of(pdbs), NOW, weights)
    rows = list(range(len(snapshot)))
    return search.search(rows, wanted=wanted, offset=offset % len(rows))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Pod, Snapshot, list[PodDisruptionBudget], dict[str, int], int, int]:
    snapshot = make_snapshot(draw(nodes()), draw(crowds()), draw(storage()))
    return draw(preemptors), snapshot, draw(budgets()), draw(guests), draw(st.integers(0, 5)), draw(st.integers(0, 4))


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param((), id="shipped filters"),
        pytest.param((Superstitious(),), id="one that looks at the list"),
        pytest.param((Brittle(),), id="one that breaks"),
    ],
)
@given(world=worlds())
@settings(max_examples=120)
def test_side_by_side_is_one_by_one(extra: tuple[Any, ...], world: Any) -> None:
    found, expected = searched(Filtering, world, extra), searched(RowByRow, world, extra)
    assert list(found.candidates.items()) == list(expected.candidates.items())
    assert list(found.statuses.items()) == list(expected.statuses.items())
    names = world[1].nodes.names
    assert (found.faults, found.sentence(names)) == (expected.faults, expected.sentence(names))


# a cluster that changes ------------------------------------------------------------------------------------------

changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "update", "remove", "assume", "node"]), st.integers(0, 9), amounts, starts
    ),
    min_size=1,
    max_size=12,
)


def change(cache: Cache, what: str, number: int, requests: Any, started: Any) -> None:
    """One event; those that make no sense now are left out."""
    node = NAMES[number % 3]
    status = PodStatus(phase="Running", start_time=started)
    pod = make_pod(f"x{number}", node=node, requests=requests, priority=number % 4, status=status)
    known = cache.pod(pod.uid) is not None
    if what == "node":
        if cache.node(node) is not None:
            cache.remove_node(node)
        else:
            cache.add_node(make_node(node))
    elif what in ("add", "assume") and not known:
        cache.assume(PodInfo(pod)) if what == "assume" else cache.add_pod(pod)
    elif what == "update" and known and not cache.is_assumed(pod.uid):
        cache.update_pod(pod)
    elif what == "remove" and known:
        cache.remove_pod(pod)


@given(st.lists(changes, min_size=1, max_size=6))
@settings(max_examples=60)
def test_weights_follow_the_snapshot(history: list[list[Any]]) -> None:
    cache = Cache()
    for name in NAMES[:3]:
        cache.add_node(make_node(name))
    snapshot, kept = cache.snapshot(), PodWeights()
    for events in history:
        for event in events:
            change(cache, *event)
        cache.refresh(snapshot)
        anew = PodWeights()
        kept.follow(snapshot)
        anew.follow(snapshot)
        slots = np.flatnonzero(snapshot.pods.rows[: snapshot.pods.slots] >= 0)
        for column in ("priorities", "started", "listed", "requests", "nonzero", "with_ports"):
            assert np.array_equal(getattr(kept, column)(slots), getattr(anew, column)(slots)), column
        where = snapshot.pods.rows[slots].tolist()
        there = [snapshot.nodes.pods[row][place] for row, place in zip(where, anew.listed(slots).tolist(), strict=True)]
        assert there == [snapshot.pods.infos[slot] for slot in slots.tolist()]
        assert anew.priorities(slots).tolist() == [info.priority for info in there]
