"""Placement attempts: every placement is tried, and the best one that fits the group is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.app import known_plugins
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import Placement, PreFilterResult
from bayplan.framework.api.status import Status, unschedulable
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Node, Pod, PodSchedulingGroup
from bayplan.objects.workloads import PodGroup
from bayplan.snapshot import NodeTable
from support.builders.framework import from_api, make_node, make_pod, replace_fields
from support.harness.async_tests import async_test
from support.harness.live_scheduler import LiveSchedulerHarness, run_live_scheduler

GATES = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling")
ZONE = "topology.kubernetes.io/zone"
IN_ORDER = BayplanSettings(ties="inOrder")


def ring(count: int = 2, key: str | None = ZONE) -> PodGroup:
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": count}}}
    if key is not None:
        spec["schedulingConstraints"] = {"topology": [{"key": key}]}
    return from_api(
        PodGroup, {"metadata": {"name": "ring", "namespace": "default", "uid": "uid-of-ring"}, "spec": spec}
    )


def member(name: str, **fields: Any) -> Pod:
    return replace_fields(
        make_pod(name, **fields), spec={"scheduling_group": PodSchedulingGroup(pod_group_name="ring")}
    )


def node(name: str, zone: str, cpu: str = "2") -> Node:
    return make_node(name, cpu=cpu, labels={ZONE: zone})


def written_conditions(harness: LiveSchedulerHarness) -> list[tuple[str, str, str]]:
    written = [patch["status"]["conditions"][-1] for patch in harness.sent("PATCH", "/podgroups/ring/status")]
    return [(each["status"], each["reason"], each["message"]) for each in written]


SPLIT = (node("x1", "x", "1"), node("y1", "y", "1"), node("z1", "z", "1"), node("z2", "z", "1"))
"""Only one zone fits two pods that request one CPU each."""


@async_test
async def test_a_group_is_placed_within_one_domain() -> None:
    async with run_live_scheduler(*SPLIT, ring(), member("a", cpu="1"), member("b", cpu="1"), gates=GATES) as harness:
        assert set(harness.bound().values()) == {"z1", "z2"}
        assert written_conditions(harness) == [("True", "Scheduled", "")]
        assert harness.live.engine.cache.pod_count == 2  # the other trials are undone


@async_test
async def test_without_the_feature_gate_a_group_is_placed_on_any_nodes() -> None:
    nodes = SPLIT[:2]
    pods = member("a", cpu="1"), member("b", cpu="1")
    async with run_live_scheduler(*nodes, ring(), *pods, gates=GATES[:2]) as harness:
        assert harness.bound().keys() == {"a", "b"}


@async_test
async def test_no_placement_fits() -> None:
    pods = [member(name, cpu="1") for name in "abc"]
    async with run_live_scheduler(*SPLIT, ring(3), *pods, gates=GATES, settings=IN_ORDER) as harness:
        assert harness.bound() == {}
        assert harness.live.engine.cache.pod_count == 0
        message = "0/3 placements are available, first placement status: pod group is unschedulable"
        assert written_conditions(harness) == [("False", "Unschedulable", message)]
        notes = [event.note for event in harness.events.recorded]
        refused = [each for each in notes if each.startswith("0/1 nodes are available: 1 Insufficient cpu.")]
        assert (len(notes), len(refused)) == (3, 2), notes  # of the first placement, and its one node
        latest = harness.live.engine.records.latest("default/c")
        assert latest is not None
        assert latest.nodes == 1


@async_test
async def test_no_preemption_for_a_single_placement() -> None:
    """Otherwise each placement would evict pods."""
    weak, strong = make_pod("weak", cpu="1", node="x1"), member("strong", cpu="1", priority=9)
    async with run_live_scheduler(node("x1", "x", "1"), weak, ring(1), strong, gates=GATES) as harness:
        (event,) = harness.events.recorded
        assert event.note.endswith("not eligible due to placement-based pod group scheduling limitation")
        assert harness.sent("DELETE", "/pods/weak") == []


@async_test
async def test_a_group_without_a_topology_has_one_placement() -> None:
    async with run_live_scheduler(
        *SPLIT, ring(9, None), *(member(str(n), cpu="1") for n in range(9)), gates=GATES
    ) as harness:
        assert harness.bound() == {}
        message = "0/1 placements are available, first placement status: pod group is unschedulable"
        assert written_conditions(harness) == [("False", "Unschedulable", message)]
        assert any(
            event.note.startswith("0/4 nodes are available: 4 Insufficient cpu.") for event in harness.events.recorded
        )


@async_test
async def test_no_node_has_the_topology_key() -> None:
    kept = replace_fields(member("a"), status={"nominated_node_name": "x1"})
    async with run_live_scheduler(*SPLIT, ring(1, "rack"), kept, gates=GATES) as harness:
        assert harness.bound() == {}
        assert written_conditions(harness) == [("False", "Unschedulable", "no feasible placements found")]
        assert {event.note for event in harness.events.recorded} == {"no feasible placements found"}
        assert all("nominatedNodeName" not in each["status"] for each in harness.sent("PATCH", "/pods/a/status"))


@async_test
async def test_later_members_join_the_domain_of_the_group() -> None:
    big = node("x1", "x", "8"), node("y1", "y", "8")
    async with run_live_scheduler(*big, ring(1), member("old", node="y1", cpu="1"), gates=GATES) as harness:
        harness.deliver(member("new", cpu="1"))
        await harness.idle()
        assert harness.bound() == {"new": "y1"}


@async_test
async def test_members_in_two_domains_are_an_error() -> None:
    apart = member("p", node="x1", cpu="0"), member("q", node="y1", cpu="0")
    async with run_live_scheduler(*SPLIT, ring(1), *apart, gates=GATES) as harness:
        harness.deliver(member("new"))
        await harness.idle()
        ((status, reason, message),) = written_conditions(harness)
        assert (status, reason) == ("False", "SchedulerError")
        assert message.startswith("cannot determine domain for already scheduled pods: more than 1 domain found")


@pytest.mark.parametrize("fuller", ["x", "y"])
def test_the_fuller_placement_is_better(fuller: str) -> None:
    @async_test
    async def run() -> None:
        nodes = [node(f"{zone}{number}", zone, "8") for zone in "xy" for number in range(2)]
        taken = make_pod("there", node=f"{fuller}0", cpu="6")
        async with run_live_scheduler(
            *nodes, taken, ring(), member("a", cpu="2"), member("b", cpu="2"), gates=GATES
        ) as harness:
            assert {each[0] for each in harness.bound().values()} == {fuller}

    run()


@async_test
async def test_more_members_are_better_than_a_fuller_placement() -> None:
    """The small zone takes two of four and is full then (100, and 50 for the count); the large one takes all (50 + 100
    and what it has of memory)."""
    nodes = node("small", "x", "2"), node("large", "y", "5")
    pods = [member(name, cpu="1") for name in "abcd"]
    async with run_live_scheduler(*nodes, ring(2), *pods, gates=GATES) as harness:
        assert harness.bound() == dict.fromkeys("abcd", "large")


@pytest.mark.parametrize(("settings", "expected"), [(IN_ORDER, {"a"}), (None, {"a", "b"})])
def test_ties_between_placements(settings: BayplanSettings | None, expected: set[str]) -> None:
    """Each group has its own topology key with two equal domains."""
    numbers = range(12)
    nodes = [make_node(f"{name}{number}", labels={f"key-{number}": name}) for number in numbers for name in "ab"]

    @async_test
    async def run() -> None:
        async with run_live_scheduler(*nodes, gates=GATES, settings=settings) as harness:
            for number in numbers:
                name = f"ring-{number}"
                group = replace_fields(ring(1, f"key-{number}"), metadata={"name": name, "uid": name})
                pod = replace_fields(
                    make_pod(f"p{number}"), spec={"scheduling_group": PodSchedulingGroup(pod_group_name=name)}
                )
                harness.deliver(group, pod)
            await harness.idle()
            found = harness.bound()
            assert len(found) == len(numbers)
            assert {node_name[0] for node_name in found.values()} == expected

    run()


class Watching:
    """Records the nodes that it gets."""

    name = "Watching"

    def __init__(self) -> None:
        self.at_pre_filter: set[int] = set()
        self.at_filter: list[tuple[str, ...]] = []

    def pre_filter(self, cycle: Cycle) -> Status | None:
        self.at_pre_filter.add(len(cycle.snapshot))
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> tuple[()]:
        del cycle
        self.at_filter.append(tuple(sorted(nodes.names)))
        return ()


class Narrowing:
    """Narrows to one node of each zone, or to none."""

    name = "Narrowing"

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def pre_filter(self, cycle: Cycle) -> PreFilterResult | Status:
        del cycle
        return PreFilterResult(self.names) if self.names else unschedulable("not today")


class Broken:
    """Returns invalid scores of placements."""

    name = "Broken"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def score_placement(self, cycle: Cycle, group: object, placement: Placement, assigned: Mapping[str, str]) -> Any:
        del cycle, group, placement, assigned
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Elsewhere:
    """Generates a placement with a node that does not exist."""

    name = "Elsewhere"

    def generate_placements(self, cycle: Cycle, group: object) -> list[Placement]:
        del cycle, group
        return [Placement("moon", frozenset({"x1", "moon"}))]


def add_plugin(plugin: Any, *, disabled: str = "") -> tuple[Registry, str]:
    made = type(plugin.name, (type(plugin),), {"factory": staticmethod(lambda *_: plugin)})
    registry = known_plugins().with_plugins(made)
    off = f", disabled: [{{name: {disabled}}}]" if disabled else ""
    return registry, (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: {plugin.name}}}]{off}}}}}}}]"
    )


@async_test
async def test_pre_filter_sees_all_nodes_and_filter_those_of_the_placement() -> None:
    watching = Watching()
    registry, config = add_plugin(watching)
    async with run_live_scheduler(
        *SPLIT, ring(1), member("a", cpu="0"), gates=GATES, registry=registry, config=config, settings=IN_ORDER
    ) as harness:
        assert harness.bound().keys() == {"a"}
    assert watching.at_pre_filter == {4}
    assert watching.at_filter == [("x1",), ("y1",), ("z1", "z2")]


@async_test
async def test_nodes_that_pre_filter_excludes_are_in_the_message_of_the_placement() -> None:
    registry, config = add_plugin(Narrowing("z1"))
    pods = member("a", cpu="2"), member("b", cpu="2")
    async with run_live_scheduler(
        *SPLIT[2:], node("w1", "w"), ring(2), *pods, gates=GATES, registry=registry, config=config, settings=IN_ORDER
    ) as harness:
        assert harness.bound() == {}
        (notes,) = {event.note for event in harness.events.recorded}
        why = "1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [Narrowing]. no new claims to deallocate"
        refused = "preemption: not eligible due to placement-based pod group scheduling limitation"
        assert notes == f"0/2 nodes are available: {why}, {refused}"


@async_test
async def test_a_nominated_node_outside_the_placement_is_not_evaluated() -> None:
    here = replace_fields(member("a", cpu="1"), status={"nominated_node_name": "x1"})
    async with run_live_scheduler(*SPLIT, ring(), here, member("b", cpu="1"), gates=GATES) as harness:
        assert set(harness.bound().values()) == {"z1", "z2"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (101, 'plugin "Broken" returns an invalid score 101, it should in the range of [0, 100] after normalizing'),
        ("many", "plugin \"Broken\" failed with: a score must be an integer; got 'many'"),
        (unschedulable("no"), 'plugin "Broken" failed with: no'),
        (ValueError("oh"), 'plugin "Broken" failed with: ValueError: oh'),
    ],
)
def test_invalid_scores(answer: object, text: str) -> None:
    registry, config = add_plugin(Broken(answer))

    @async_test
    async def run() -> None:
        async with run_live_scheduler(
            *SPLIT, ring(1), member("a"), gates=GATES, registry=registry, config=config
        ) as harness:
            assert harness.bound() == {}
            ((status, reason, message),) = written_conditions(harness)
            assert (status, reason) == ("False", "SchedulerError")
            stage = "applying score defaultWeights on" if answer == 101 else "running"
            assert message.startswith(f"{stage} PlacementScore plugins: {text}")

    run()


@async_test
async def test_a_placement_with_a_node_that_does_not_exist() -> None:
    registry, config = add_plugin(Elsewhere(), disabled="TopologyPlacementGenerator")
    async with run_live_scheduler(
        *SPLIT, ring(1), member("a"), gates=GATES, registry=registry, config=config
    ) as harness:
        message = "failed to assume pod group placement: node moon in placement is not present in snapshot"
        assert written_conditions(harness) == [("False", "SchedulerError", message)]
