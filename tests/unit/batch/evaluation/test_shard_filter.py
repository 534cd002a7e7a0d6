"""Several schedulers on one cluster: the nodes of each shard, and their effect on sessions."""

from __future__ import annotations

import pytest

from bayplan.batch.evaluation.shard_filter import NOT_IN_SHARD, NOT_SELECTED, Shard, ShardStatus, usable_nodes
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano.types import NodeShard, NodeShardSpec, NodeShardStatus
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine

NODES = [make_node("a", cpu=2), make_node("b", cpu=2)]
HIGH = PriorityClass(metadata=ObjectMeta(name="high"), value=100)
CAREFUL = GANGS.replace("enqueue, allocate, backfill", "enqueue, allocate, preempt, reclaim, backfill")


def shard(name: str, desired: str = "", in_use: str = "") -> NodeShard:
    spec, status = NodeShardSpec(tuple(desired.split())), NodeShardStatus(tuple(in_use.split()))
    return NodeShard(ObjectMeta(name=name), spec, status)


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        pytest.param([shard("mine", "a b")], ShardStatus(frozenset("ab")), id="no other shard"),
        pytest.param(
            [shard("mine", "a b"), shard("other", "", "b")],
            ShardStatus(frozenset("a"), frozenset("b")),
            id="another still uses one",
        ),
        pytest.param([shard("mine", "a"), shard("other", "a", "")], ShardStatus(frozenset("a")), id="wanted by both"),
        pytest.param([shard("mine", "a", "a b")], ShardStatus(frozenset("a")), id="one is to go"),
        pytest.param([shard("other", "a", "a")], ShardStatus(), id="no shard of ours"),
    ],
)
def test_usable_nodes(shards: list[NodeShard], expected: ShardStatus) -> None:
    assert usable_nodes("mine", {each.name: each for each in shards}) == expected


def run_with_shard(names: str, *, is_hard: bool, pods: int, cpu: str = "1") -> SessionResult:
    members = [make_member(f"job-w-{number}", requests={"cpu": cpu}) for number in range(pods)]
    engine = build_engine(conf=CAREFUL, nodes=NODES, pods=members, objects=[make_group("job", min_member=1)])
    engine.handle.shard = Shard(frozenset(names), is_hard)
    return engine.run_session()


def test_hard_mode_uses_only_nodes_of_the_shard() -> None:
    outcome = run_with_shard("b", is_hard=True, pods=3)
    assert sorted(outcome.binds.values()) == ["b", "b"]
    (message,) = outcome.messages.values()
    assert NOT_IN_SHARD in message.message


def test_soft_mode_uses_other_nodes_after_those_of_the_shard() -> None:
    assert sorted(run_with_shard("b", is_hard=False, pods=2).binds.values()) == ["b", "b"]
    assert sorted(run_with_shard("b", is_hard=False, pods=3).binds.values()) == ["a", "b", "b"]


@pytest.mark.parametrize("is_hard", [True, False])
def test_a_pod_without_requests_stays_in_the_shard(is_hard: bool) -> None:
    member = make_member("job-w-0", requests={})
    engine = build_engine(nodes=NODES, pods=[member], objects=[make_group("job", min_member=1)])
    engine.handle.shard = Shard(frozenset("b"), is_hard)
    assert engine.run_session().binds == {"default/job-w-0": "b"}


@pytest.mark.parametrize(("is_hard", "evicted"), [(True, ["default/weak-b"]), (False, ["default/weak-b"])])
def test_victims_are_chosen_in_the_shard(is_hard: bool, evicted: list[str]) -> None:
    weak = [make_member(f"weak-{node}", "weak", node=node, requests={"cpu": "2"}) for node in "ab"]
    groups = [
        make_group("weak", min_member=1, phase="Running"),
        make_group("job", min_member=1, priority_class_name="high"),
    ]
    conf = CAREFUL.replace("  - name: gang\n", "  - name: gang\n    enablePreemptable: false\n")
    engine = build_engine(
        conf=conf, nodes=NODES, pods=[*weak, make_member("job-w-0", requests={"cpu": "2"})], objects=[*groups, HIGH]
    )
    engine.handle.shard = Shard(frozenset("b"), is_hard)
    assert list(engine.run_session().evicts) == evicted


def test_unselected_nodes_are_not_used_and_not_counted() -> None:
    idle = make_member("idle", "idle", requests={})
    members = [make_member(f"job-w-{number}", requests={"cpu": "1"}) for number in range(3)]
    groups = [make_group("job", min_member=1), make_group("idle", min_member=1)]
    engine = build_engine(conf=CAREFUL, nodes=NODES, pods=[*members, idle], objects=groups)
    engine.cluster_state.manages = lambda node: node.name == "b"
    with engine.session() as session:
        assert session.total_resource.milli_cpu == 2000
    outcome = engine.run_session()
    assert outcome.binds == {"default/idle": "b", "default/job-w-0": "b", "default/job-w-1": "b"}
    assert outcome.messages["default/job-w-2"].message == "0/2 nodes are unavailable: 2 Insufficient cpu."


def test_a_pod_without_requests_gets_the_reason_of_unselected_nodes() -> None:
    idle = make_member("idle", "idle", requests={})
    engine = build_engine(conf=CAREFUL, nodes=NODES, pods=[idle], objects=[make_group("idle", min_member=1)])
    engine.cluster_state.manages = lambda _: False
    assert NOT_SELECTED in engine.run_session().messages["default/idle"].message
