"""Sessions repeat their choices between equal nodes and hypernodes, so that pending pods keep their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.batch.engine import BatchEngine
from bayplan.batch.evaluation.node_sampling import FeasibleNodeSampling
from bayplan.batch.session.last_choices import LastChoices
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, LabelSelector, ObjectMeta
from bayplan.objects.volcano import types as volcano
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import add_pod, build_engine

ALLOCATE = """\
actions: "allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: nodeorder
"""
NODES = [make_node(f"n{number}", cpu=4) for number in range(4)]
GANG = [make_member(f"job-w-{number}") for number in range(20)]
SESSIONS = 8


def waiting_gang(**more: Any) -> BatchEngine:
    """20 pods of which 16 fit: the gang waits, and the messages of those 16 name a node."""
    group = make_group(min_member=20, phase="Inqueue")
    return build_engine(conf=ALLOCATE, nodes=NODES, pods=GANG, objects=[group], **more)


def messages(engine: BatchEngine) -> dict[str, str]:
    return {key: message.message for key, message in engine.run_session().waiting.items()}


def with_last_choices(engine: BatchEngine) -> BatchEngine:
    engine.handle.last_choices = LastChoices()
    return engine


def distinct_messages(engine: BatchEngine) -> int:
    """The number of different sets of messages in some sessions on an unchanged cluster."""
    return len({tuple(sorted(messages(engine).items())) for _ in range(SESSIONS)})


def test_a_pending_gang_keeps_its_messages() -> None:
    assert distinct_messages(with_last_choices(waiting_gang())) == 1
    assert distinct_messages(waiting_gang()) > 1, "without the memory they are drawn: else this test could not fail"


def test_other_messages_stay_when_a_node_is_added_or_removed() -> None:
    engine = with_last_choices(waiting_gang())
    before = messages(engine)
    engine.cache.add_node(make_node("new", cpu=4))  # it becomes the emptiest node only after 16 pods
    with_room = [key for key, message in before.items() if "can possibly" in message]
    assert len(with_room) == 16
    add_pod(engine, make_member("elsewhere", "", node="n0", requests={"cpu": "4"}))
    after = messages(engine)
    unchanged = [key for key in with_room if after[key] == before[key]]
    assert not any("to n0," in after[key] for key in with_room), "it is full now"
    assert unchanged, "those that fit as before stay where they were"
    assert distinct_messages(engine) == 1


def test_a_gang_is_bound_to_the_nodes_of_the_last_messages() -> None:
    engine = with_last_choices(waiting_gang())
    before = messages(engine)
    last = [make_node(f"m{number}", cpu=1, labels={"late": "yes"}) for number in range(4)]
    for node in last:
        engine.cache.add_node(node)
    binds = engine.run_session().binds
    assert len(binds) == 20
    nodes = {
        key: message.split("assigned to ")[1].split(",")[0]
        for key, message in before.items()
        if "can possibly" in message
    }
    unchanged = [key for key, node in nodes.items() if binds[key] == node]
    assert len(unchanged) >= 4


TRIALS = """\
actions: "allocate, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: nodeorder
configurations:
- name: preempt
  arguments: {enableTopologyAwarePreemption: true, minCandidateNodesPercentage: 1, minCandidateNodesAbsolute: 1}
"""


def preempting_gang() -> BatchEngine:
    """A gang of six that could preempt four tasks: every session evicts in a statement that is discarded."""

    def pod(name: str, group: str, priority: int, **more: Any) -> Pod:
        member = make_member(name, group, **more)
        return replace(member, spec=replace(member.spec, priority=priority))

    nodes = [make_node(f"n{number}", cpu=1) for number in range(4)]
    low = [pod(f"low-w-{number}", "low", 1, node=f"n{number}") for number in range(4)]
    high = [pod(f"high-w-{number}", "high", 100) for number in range(6)]
    objects: list[KubeObject] = [
        PriorityClass(metadata=ObjectMeta(name="high"), value=100),
        PriorityClass(metadata=ObjectMeta(name="low"), value=1),
        make_group("low", phase="Running", priority_class_name="low", min_member=0),
        make_group("high", phase="Inqueue", priority_class_name="high", min_member=6),
    ]
    return build_engine(conf=TRIALS, nodes=nodes, pods=[*low, *high], objects=objects)


def test_a_gang_with_discarded_evictions_keeps_the_nodes_of_its_messages() -> None:
    engine = with_last_choices(preempting_gang())
    assert any("resource is released" in message for message in messages(engine).values())
    assert distinct_messages(engine) == 1
    assert distinct_messages(preempting_gang()) > 1


def switches() -> Iterator[KubeObject]:
    for name, tier, kind, members in (
        *((f"s{number}", 1, "Node", [f"s{number}-a", f"s{number}-b"]) for number in range(4)),
        ("t", 2, "HyperNode", [f"s{number}" for number in range(4)]),
    ):
        listed = tuple(
            volcano.MemberSpec(kind, volcano.MemberSelector(exact_match=volcano.ExactMatch(each))) for each in members
        )
        yield volcano.HyperNode(metadata=ObjectMeta(name=name), spec=volcano.HyperNodeSpec(tier, "", listed))


def gang_with_sub_groups() -> BatchEngine:
    """Three sub-groups of two pods, each limited to one switch, in a gang that lacks a member: switches are equal."""
    policy = volcano.SubGroupPolicy(
        name="parts",
        label_selector=LabelSelector(),
        match_label_keys=("part",),
        sub_group_size=2,
        network_topology=volcano.NetworkTopology("hard", 1),
    )
    group = make_group(
        phase="Inqueue",
        min_member=6,
        network_topology=volcano.NetworkTopology("soft", None),
        sub_group_policy=(policy,),
    )
    pods = [make_member(f"job-w-{number}", labels={"part": str(number // 2)}) for number in range(5)]
    pods.append(make_member("job-w-5", labels={"part": "2"}, requests={"cpu": "9"}))
    conf = ALLOCATE + "  - name: network-topology-aware\n"
    nodes = [make_node(f"s{number}-{half}", cpu=1) for number in range(4) for half in "ab"]
    return build_engine(conf=conf, nodes=nodes, pods=pods, objects=[*switches(), group])


def test_a_gang_with_sub_groups_keeps_its_hypernodes() -> None:
    engine = with_last_choices(gang_with_sub_groups())
    assert any("can possibly" in message for message in messages(engine).values())
    assert distinct_messages(engine) == 1
    assert distinct_messages(gang_with_sub_groups()) > 1


def test_a_gang_keeps_its_messages_with_node_sampling() -> None:
    engine, other = with_last_choices(waiting_gang()), waiting_gang()
    for each in (engine, other):
        each.handle.node_sampling = FeasibleNodeSampling(50, 1)
    for _ in range(SESSIONS):
        messages(engine)  # sampling begins at the best node of the last session, so it soon contains the best of all
    assert distinct_messages(engine) == 1
    assert distinct_messages(other) > 1


@pytest.mark.parametrize(
    ("first", "found", "then"),
    [
        pytest.param(None, [0, 1, 2], [3, 4, 5], id="goes on"),
        pytest.param(4, [0, 4, 5], [0, 1, 2], id="begins there, and later searches continue where they were"),
    ],
)
def test_the_first_row_of_sampling(first: int | None, found: list[int], then: list[int]) -> None:
    share, feasible = FeasibleNodeSampling(50, 1), np.ones(6, dtype=np.bool_)
    assert np.flatnonzero(share.sample(feasible, None, first)).tolist() == found
    assert np.flatnonzero(share.sample(feasible, None)).tolist() == then


def test_sampling_does_not_begin_at_a_row_that_is_no_longer_feasible() -> None:
    feasible = np.array([True, True, True, True, False, True])
    assert np.flatnonzero(FeasibleNodeSampling(50, 1).sample(feasible, None, 4)).tolist() == [0, 1, 2]
