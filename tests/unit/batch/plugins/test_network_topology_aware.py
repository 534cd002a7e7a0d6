from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bayplan.batch.model.hypernodes import TOP_HYPERNODE
from bayplan.batch.plugins.network_topology_aware import NetworkTopologyAwarePlugin, TierWeights
from bayplan.batch.session.registration import SearchPurpose
from bayplan.batch.session.session import Session
from bayplan.objects.core import Node
from bayplan.objects.meta import ObjectMeta, ResourceList
from bayplan.objects.volcano.types import (
    ExactMatch,
    HyperNode,
    HyperNodeSpec,
    MemberSelector,
    MemberSpec,
    NetworkTopology,
)
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, tasks_of

GIB = 1 << 30


def hyper(name: str, tier: int, *members: str, kind: str = "Node") -> HyperNode:
    listed = tuple(MemberSpec(kind, MemberSelector(exact_match=ExactMatch(each))) for each in members)
    return HyperNode(metadata=ObjectMeta(name=name), spec=HyperNodeSpec(tier, "", listed))


TREE = [
    hyper("s0", 1, "n0", "n1"),
    hyper("s1", 1, "n2", "n3"),
    hyper("s2", 1, "n4"),
    hyper("b0", 2, "s0", "s1", kind="HyperNode"),
    hyper("b1", 2, "s2", kind="HyperNode"),
]
"""n5 is in no hypernode; the top hypernode has tier 3."""
NODES: list[Node] = [
    make_node(f"n{number}", allocatable={"cpu": "4", "memory": str(8 * GIB), "pods": "10"}) for number in range(6)
]
SMALL: ResourceList = {"cpu": "1", "memory": str(2 * GIB)}


def hard(tier: int) -> NetworkTopology:
    return NetworkTopology(mode="hard", highest_tier_allowed=tier)


def session_with(
    *pods: Any, topology: NetworkTopology | None = None, arguments: dict[str, Any] | None = None, **group: Any
) -> Any:
    objects = [*TREE, make_group(network_topology=topology, phase="Inqueue", **group)]
    return open_session(NetworkTopologyAwarePlugin, nodes=NODES, pods=pods, objects=objects, arguments=arguments)


def gradient(session: Session, purpose: SearchPurpose, start: str = TOP_HYPERNODE) -> list[list[str]]:
    job = session.jobs["default/job"]
    found = session.hyper_node_gradient_for_job(job, session.hyper_nodes[start], purpose)
    return [[place.name for place in places] for places in found]


# Gradients


@pytest.mark.parametrize(
    ("tier", "min_cpu", "found"),
    [
        pytest.param(1, "2", [["s0", "s1", "s2"]], id="leaves-only"),
        pytest.param(2, "2", [["s0", "s1", "s2"], ["b0", "b1"]], id="lowest-tier-first"),
        pytest.param(3, "5", [["s0", "s1"], ["b0"], [TOP_HYPERNODE]], id="too-small-ones-are-left-out"),
        pytest.param(3, "25", [], id="nowhere"),
    ],
)
def test_gradient_for_allocation(tier: int, min_cpu: str, found: list[list[str]]) -> None:
    with session_with(make_member("p"), topology=hard(tier), min_resources={"cpu": min_cpu}) as session:
        assert gradient(session, SearchPurpose.ALLOCATE) == found


def test_allocation_uses_what_was_idle_at_open() -> None:
    pods = [make_member("p", requests={"cpu": "4"}), make_member("here", "", node="n4", requests={"cpu": "3"})]
    with session_with(*pods, topology=hard(1), min_resources={"cpu": "2"}) as session:
        assert gradient(session, SearchPurpose.ALLOCATE) == [["s0", "s1"]]
        assert gradient(session, SearchPurpose.EVICT) == [["s0", "s1", "s2"]]
        statement = session.statement()
        statement.allocate(tasks_of(session, "p")[0], "n0")
        assert gradient(session, SearchPurpose.ALLOCATE) == [["s0", "s1"]]
        statement.discard()


@pytest.mark.parametrize(
    ("max_hypernodes", "found"),
    [
        pytest.param(8, [["b0", "b1"], ["s0", "s1", "s2"]], id="widest-first"),
        pytest.param(4, [["b0", "b1"], ["s1", "s2"]], id="the-last-of-a-tier-that-is-too-long"),
        pytest.param(2, [["b0", "b1"]], id="no-more-tiers"),
        pytest.param(0, [["b0", "b1"], ["s0", "s1", "s2"]], id="zero-means-the-default"),
    ],
)
def test_gradient_for_eviction(max_hypernodes: int, found: list[list[str]]) -> None:
    arguments = {"hypernode.gradient.evict.max-hypernodes": max_hypernodes}
    with session_with(make_member("p"), topology=hard(2), arguments=arguments) as session:
        assert gradient(session, SearchPurpose.EVICT) == found


@pytest.mark.parametrize(
    ("tier", "start", "found"),
    [
        pytest.param(1, TOP_HYPERNODE, [["s0"]], id="its-own-leaf"),
        pytest.param(2, TOP_HYPERNODE, [["s0", "s1"], ["b0"]], id="as-high-as-allowed"),
        pytest.param(2, "s1", [["s1"]], id="within-what-the-caller-allows"),
        pytest.param(2, "b1", [], id="nothing-in-common"),
        pytest.param(0, TOP_HYPERNODE, [], id="higher-than-allowed-already"),
    ],
)
def test_a_running_job_stays_near_its_tasks(tier: int, start: str, found: list[list[str]]) -> None:
    pods = [make_member("p"), make_member("here", node="n1")]
    with session_with(*pods, topology=hard(tier), min_resources={"cpu": "99"}) as session:
        assert gradient(session, SearchPurpose.ALLOCATE, start) == found


def test_a_job_without_a_hard_tier_uses_the_start_hypernode() -> None:
    with session_with(make_member("p")) as session:
        assert gradient(session, SearchPurpose.ALLOCATE, "b1") == [["b1"]]
        assert gradient(session, SearchPurpose.EVICT) == [[TOP_HYPERNODE]]


def test_the_minimum_of_a_sub_job_is_that_of_its_pending_tasks() -> None:
    pods = [make_member(f"p{number}", requests={"cpu": "3"}) for number in range(2)]
    with session_with(*pods, topology=hard(2)) as session:
        sub_job = session.jobs["default/job"].default_sub_job
        assert sub_job is not None
        found = session.hyper_node_gradient_for_sub_job(sub_job, session.hyper_nodes.top, SearchPurpose.ALLOCATE)
        assert [[place.name for place in places] for places in found] == [["s0", "s1"], ["b0"]]


# Hypernode scores


def hyper_scores(session: Session, *names: str) -> dict[str, float]:
    sub_job = session.jobs["default/job"].default_sub_job
    assert sub_job is not None
    return session.hyper_node_scores(sub_job, {name: session.hyper_nodes.nodes_of(name) for name in names})


def test_the_fullest_hypernode_that_fits_is_best() -> None:
    pods = [make_member("p", requests=SMALL), make_member("here", "", node="n3", requests=SMALL)]
    with session_with(*pods, topology=hard(2)) as session:
        assert hyper_scores(session, "s0", "s1", "s2") == {"s0": 12.5, "s1": 25.0, "s2": 25.0}


def test_a_hypernode_that_is_too_small_scores_zero() -> None:
    pods = [make_member("p", requests={"cpu": "2"}), make_member("here", "", node="n4", requests={"cpu": "3"})]
    with session_with(*pods, topology=hard(2)) as session:
        assert hyper_scores(session, "s0", "s2") == {"s0": 25.0, "s2": 0.0}


def test_ties_are_broken_by_the_tasks_of_the_job() -> None:
    pods = [make_member("p"), make_member("here", node="n0"), make_member("other", "", node="n2")]
    with session_with(*pods, topology=hard(2)) as session:
        scores = hyper_scores(session, "s0", "s1")
        assert scores["s0"] - scores["s1"] == pytest.approx(100 * 1 / 2)


def test_weights() -> None:
    pods = [make_member("p", requests={"cpu": "1", "memory": str(4 * GIB), "example.com/gpu": "1"})]
    arguments = {
        "weight": 10,
        "hypernode.binpack.cpu": 3,
        "hypernode.binpack.memory": -1,
        "hypernode.binpack.resources": "example.com/gpu, ,other",
    }
    with session_with(*pods, topology=hard(2), arguments=arguments) as session:
        assert hyper_scores(session, "s2")["s2"] == 0.0  # no node offers the resource
    arguments["hypernode.binpack.resources"] = "other"
    with session_with(*pods, topology=hard(2), arguments=arguments) as session:
        assert hyper_scores(session, "s2")["s2"] == pytest.approx(1000 * (3 * 1 / 4 + 1 * 1 / 2) / 4)


# Node scores


def node_scores(session: Session, name: str) -> list[float]:
    task = tasks_of(session, name)[0]
    totals = session.scores(task, np.ones(len(NODES), dtype=np.bool_))
    assert totals is not None
    found: list[float] = totals.tolist()
    return found


def test_pods_without_a_topology_are_packed_outside_of_hypernodes() -> None:
    pods = [make_member("p", requests=SMALL), make_member("here", "", node="n3", requests=SMALL)]
    with session_with(*pods) as session:
        fading = 1 + 0.8 + 0.64
        root = 0.64 * 2 / 24
        expected = [
            100 * (1 / 8 + 0.8 * 2 / 16 + root) / fading,
            100 * (2 / 8 + 0.8 * 2 / 16 + root) / fading,
            100 * (1 / 4 + 0.8 * 1 / 4 + root) / fading,
            100 * (1 + 0.8 + root) / fading,
        ]
        assert node_scores(session, "p") == pytest.approx([expected[i] for i in (0, 0, 1, 1, 2, 3)])
        session.statement().allocate(tasks_of(session, "p")[0], "n0")
        assert session.plugins["network-topology-aware"]._accounts.used[0].tolist() == [1000.0, 2.0 * GIB]


@pytest.mark.parametrize(
    ("arguments", "outside"),
    [
        pytest.param({"hypernode.binpack.normal-pod.enable": False}, 0.0, id="switched-off"),
        pytest.param({"hypernode.binpack.normal-pod.fading": 0}, 100.0, id="only-the-lowest-tier"),
        pytest.param({"hypernode.binpack.normal-pod.fading": -1}, 100 * (1.8 + 0.64 / 24) / 2.44, id="default"),
    ],
)
def test_settings_for_pods_without_a_topology(arguments: dict[str, Any], outside: float) -> None:
    with session_with(make_member("p", requests=SMALL), arguments=arguments) as session:
        assert node_scores(session, "p")[5] == pytest.approx(outside)


def test_nodes_near_the_job_score_higher() -> None:
    pods = [make_member("p"), make_member("q"), make_member("here", node="n0")]
    with session_with(*pods, topology=hard(3)) as session:
        task = tasks_of(session, "p")[0]
        assert node_scores(session, "p") == [0.0] * 6
        task.job_allocated_hyper_node = "s0"
        assert node_scores(session, "p") == pytest.approx([100 * 4 / 3, 100 * 4 / 3, 50.0, 50.0, 0.0, 0.0])
        task.job_allocated_hyper_node = "b0"
        assert node_scores(session, "p") == pytest.approx([100 * 5 / 6, 100 * 5 / 6, 50.0, 50.0, 0.0, 0.0])


def test_undone_events_restore_the_accounts_exactly() -> None:
    with session_with(make_member("p", requests=SMALL)) as session:
        plugin = session.plugins["network-topology-aware"]
        before = plugin._accounts.used.copy()
        statement = session.statement()
        statement.pipeline(tasks_of(session, "p")[0], "n2")
        assert (plugin._accounts.used != before).any(axis=1).sum() == 3  # s1, b0 and the root
        statement.discard()
        assert (plugin._accounts.used == before).all()


@pytest.mark.parametrize("fading", [0.0, 0.5, 0.8, 0.999999, 1.0, 1.0000001])
@pytest.mark.parametrize("tiers", [[1, 2], [1, 3, 9, 40], [1, 7000], [3, 4, 9000, 20000]], ids=str)
def test_closed_formula_of_tier_weights_equals_their_sum(fading: float, tiers: list[int]) -> None:
    weights = TierWeights(fading, tiers)
    dense = [fading ** (tier - 1) for tier in range(tiers[0], tiers[-1] + 1)]
    empty = [weight for tier, weight in enumerate(dense, tiers[0]) if tier not in tiers]
    assert weights.of == pytest.approx({tier: fading ** (tier - 1) for tier in tiers})
    assert weights.whole == pytest.approx(sum(dense), rel=1e-9)
    assert weights.empty == pytest.approx(sum(empty), rel=1e-9)


@pytest.mark.parametrize("tier", [2_000_000_000, 2**62, 2**70], ids=str)
def test_a_tier_with_a_huge_number_is_supported(tier: int) -> None:
    objects = [*TREE, hyper("far", tier, "b0", "b1", kind="HyperNode"), make_group(phase="Inqueue")]
    pods = [make_member("p", requests=SMALL)]
    with open_session(NetworkTopologyAwarePlugin, nodes=NODES, pods=pods, objects=objects) as session:
        scores = session.evaluate_class(tasks_of(session, "p")[0]).scores(
            tasks_of(session, "p")[0], np.ones(len(NODES), dtype=np.bool_)
        )
    assert scores is not None
    assert np.isfinite(scores).all()
    assert scores[5] == scores.max() > scores[0]
