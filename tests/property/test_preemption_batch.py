"""The dry run on several rows at once against one row at a time: equal victims, statuses and messages, in equal order.

On crowded clusters with every kind of filter: resources, host ports, taints, volumes, a filter that reads the list of
pods, one that fails now and then, pods nominated to a node, disruption budgets, equal pods of every kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import Status, unschedulable
from bayplan.framework.preemption.dry_run import DryRun, PreemptionSearchResult
from bayplan.framework.preemption.victims import compile_budgets
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.objects.core import ContainerPort, Node, Pod, PodStatus
from bayplan.objects.meta import KubeObject, LabelSelector, ObjectMeta
from bayplan.objects.volumes import Volume
from bayplan.objects.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from bayplan.plugins.node_ports import NodePorts
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.plugins.node_volume_limits.plugin import NodeVolumeLimits
from bayplan.plugins.taint_toleration import TaintToleration
from bayplan.snapshot import NodeInfo, PodInfo, Snapshot
from bayplan.snapshot.preemption_columns import PreemptionColumns
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import (
    CREATED,
    FakeHandle,
    FakeNominations,
    make_cycle,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    taint,
)
from support.builders.volumes import claim_volume, make_claim, make_csi_node, make_volume

NOW = CREATED + timedelta(hours=1)
NAMES = ("a", "b", "c", "d", "e")
CLAIMS = ("p", "q", "r", "s")
STARTS = [None, *(CREATED + timedelta(seconds=seconds) for seconds in (0, 1, 2, 3600, 7200))]
PLUGINS = (TaintToleration, NodePorts, NodeResourcesFit, NodeVolumeLimits)


class RowByRow(FilterPoints):
    """The same filters, with every row evaluated alone."""

    def is_row_local(self, cycle: Cycle) -> bool:  # noqa: ARG002
        return False


class Superstitious:
    """A filter that depends on everything about the pods of a node: their list in its order, and all sums."""

    name = "Superstitious"
    traits = PluginTraits(depends_on=row_local)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        listed = " ".join(info.pod.name for info in node.pods)
        signs = f"{node.name} {listed} {node.columns.nonzero[:, node.row]} {node.columns.requested[:, node.row]}"
        return unschedulable(f"the stars are against {listed}") if crc32(signs.encode()) % 4 == 0 else None


class Brittle:
    """A filter that fails on nodes with a certain number of pods, which differs between nodes."""

    name = "Brittle"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        if len(node.pods) == 1 + ord(node.name) % 3:
            raise RuntimeError(f"{len(node.pods)} on {node.name}")
        return None


# clusters -------------------------------------------------------------------------------------------------------
# Drawn by a generator from a seed: hypothesis likes small examples, and here only crowds are of interest.


@dataclass
class World:
    """A crowded cluster, and one preemptor."""

    pod: Pod
    snapshot: Snapshot
    pdbs: list[PodDisruptionBudget]
    nominated: dict[str, list[PodInfo]]
    wanted: int
    offset: int
    plugins: tuple[type, ...]

    @classmethod
    def drawn(cls, seed: int) -> World:
        rng = Random(seed)
        nodes = [_node(rng, name) for name in NAMES[: rng.randint(1, len(NAMES))]]
        pods = [pod for name in NAMES for pod in _crowd(rng, name)]
        snapshot = make_snapshot(nodes, pods, _storage(rng))
        guests = rng.sample(NAMES, rng.choice([0, 0, 1, 3, len(NAMES)]))
        return cls(
            pod=make_pod(
                "vip",
                requests=_amounts(rng),
                priority=rng.choice([1, 2, 3, 5, 5]),
                host_ports=_ports(rng),
                volumes=_claims(rng),
            ),
            snapshot=snapshot,
            pdbs=[_budget(rng, number) for number in range(rng.choice([0, 1, 3]))],
            nominated={
                name: [PodInfo(_guest(rng, name, turn)) for turn in range(rng.choice([1, 1, 2]))] for name in guests
            },
            wanted=rng.randint(0, 5),
            offset=rng.randrange(len(nodes)),
            plugins=rng.choice([PLUGINS, PLUGINS[1:]]),
        )

    def searched(self, kind: type[FilterPoints], extra: tuple[Any, ...]) -> PreemptionSearchResult:
        """The result of a new search."""
        handle = FakeHandle(self.snapshot.catalog)
        plugins = [*(make_plugin(plugin, handle=handle) for plugin in self.plugins), *extra]
        asked_first = [plugin for plugin in plugins if hasattr(plugin, "pre_filter")]
        filters = kind(
            asked_first, plugins, PluginCaller(ManualClock(), PluginTimings()), FakeNominations(self.nominated)
        )
        cycle = make_cycle(self.pod, self.snapshot)
        filters.pre_filter(cycle)
        search = DryRun(cycle, filters, compile_budgets(self.pdbs), NOW)
        return search.search(range(len(self.snapshot)), max_candidates=self.wanted, offset=self.offset)


def _node(rng: Random, name: str) -> Node:
    room = {"cpu": rng.choice(["2", "4", "8"]), "memory": "8Gi", "pods": rng.choice(["4", "20", "20"])}
    taints = rng.choice([(), (), (), (), (taint("t"),)])
    return make_node(name, allocatable={**room, "x.io/gpu": rng.choice(["0", "2", "4"])}, taints=taints)


def _crowd(rng: Random, node: str) -> list[Pod]:
    """Few pods that differ in everything, or more than Go sorts by insertion that hardly differ."""
    alike = rng.random() < 0.5
    requests, started = _amounts(rng), rng.sample(STARTS, 2)
    priorities = rng.choice([[0], [0, 1], [-2, 4, 0, 3, 2]])
    return [
        make_pod(
            f"{node}{number}",
            node=node,
            labels=rng.choice([{}, {"app": "web"}, {"app": "web", "tier": "x"}]),
            requests=requests if alike else _amounts(rng),
            priority=rng.choice(priorities),
            status=PodStatus(phase="Running", start_time=rng.choice(started if alike else STARTS)),
            host_ports=() if alike else _ports(rng),
            volumes=() if alike else _claims(rng),
        )
        for number in range(rng.choice([3, 12, 13, 20]) if alike else rng.randint(0, 9))
    ]


def _guest(rng: Random, node: str, turn: int) -> Pod:
    return make_pod(f"guest-{node}-{turn}", requests={"cpu": "1"}, host_ports=_ports(rng), priority=rng.choice([1, 9]))


def _amounts(rng: Random) -> dict[str, str | int | float]:
    offered = {"cpu": ["250m", "500m", "1", "2"], "memory": ["256Mi", "1Gi", "3Gi"], "x.io/gpu": ["1", "2"]}
    likely = {"cpu": 0.8, "memory": 0.5, "x.io/gpu": 0.2}
    return {name: rng.choice(amounts) for name, amounts in offered.items() if rng.random() < likely[name]}


def _ports(rng: Random) -> list[ContainerPort]:
    wanted = rng.sample([(80, ""), (80, "10.0.0.1"), (81, "")], rng.choice([0, 0, 0, 1, 2]))
    return [ContainerPort(host_port=port, container_port=1, host_ip=address) for port, address in wanted]


def _claims(rng: Random) -> tuple[Volume, ...]:
    return tuple(claim_volume(name, name) for name in rng.sample(CLAIMS, rng.choice([0, 0, 0, 1, 2])))


def _storage(rng: Random) -> list[KubeObject]:
    """A volume for most claims, and nodes with a low attach limit; a claim without its volume is an error."""
    found: list[KubeObject] = []
    for claim in rng.choice([CLAIMS, CLAIMS, CLAIMS, CLAIMS[1:]]):
        found += [make_claim(claim, volume=f"pv-{claim}"), make_volume(f"pv-{claim}", handle=claim)]
    return [*found, *(make_csi_node(name, csi_example_com=rng.choice([1, 2, 3])) for name in NAMES)]


def _budget(rng: Random, number: int) -> PodDisruptionBudget:
    disrupted = rng.sample(["a0", "a1", "b0", "c0"], rng.choice([0, 2]))
    selector = LabelSelector(match_labels=rng.choice([{"app": "web"}, {"app": "web"}, {"tier": "x"}, {}]))
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=f"pdb{number}", namespace=rng.choice(["default", "default", "other"])),
        spec=PodDisruptionBudgetSpec(selector),
        status=PodDisruptionBudgetStatus(
            disruptions_allowed=rng.randint(0, 2), disrupted_pods=dict.fromkeys(disrupted, CREATED)
        ),
    )


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param((), id="shipped filters"),
        pytest.param((Superstitious(),), id="one that looks at the list"),
        pytest.param((Brittle(),), id="one that breaks"),
    ],
)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_rows_at_once_equal_rows_one_by_one(extra: tuple[Any, ...], seed: int) -> None:
    world = World.drawn(seed)
    found, expected = world.searched(FilterPoints, extra), world.searched(RowByRow, extra)
    assert list(found.candidates.items()) == list(expected.candidates.items())
    assert list(found.statuses.items()) == list(expected.statuses.items())
    names = world.snapshot.nodes.names
    assert (found.errors, found.sentence(names)) == (expected.errors, expected.sentence(names))


# a cluster that changes ------------------------------------------------------------------------------------------

changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "update", "remove", "assume", "node"]),
        st.integers(0, 9),
        st.sampled_from([{}, {"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}, {"x.io/gpu": "1"}]),
        st.sampled_from(STARTS),
    ),
    min_size=1,
    max_size=12,
)


def change(cache: Cache, what: str, number: int, requests: Any, started: Any) -> None:
    """One event; impossible ones are skipped."""
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
    snapshot, kept = cache.snapshot(), PreemptionColumns()
    for events in history:
        for event in events:
            change(cache, *event)
        cache.refresh(snapshot)
        anew = PreemptionColumns()
        kept.update(snapshot)
        anew.update(snapshot)
        slots = np.flatnonzero(snapshot.pods.rows[: snapshot.pods.slots] >= 0)
        for column in ("priorities", "started", "list_positions", "requests", "nonzero", "with_ports"):
            assert np.array_equal(getattr(kept, column)(slots), getattr(anew, column)(slots)), column
        where = snapshot.pods.rows[slots].tolist()
        there = [
            snapshot.nodes.pods[row][place]
            for row, place in zip(where, anew.list_positions(slots).tolist(), strict=True)
        ]
        assert there == [snapshot.pods.infos[slot] for slot in slots.tolist()]
        assert anew.priorities(slots).tolist() == [info.priority for info in there]
