from __future__ import annotations

from bayplan.objects.meta import ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine

ALONE = GANGS.replace("enqueue, allocate, backfill", "backfill")


def test_tasks_that_ask_for_nothing_go_where_they_may() -> None:
    nodes = [make_node("tainted", taints=["gpu:NoSchedule"]), make_node("a", cpu=0)]
    pods = [make_member("free", requests={}), make_member("asks")]
    group = make_group(phase="Inqueue", min_member=0)
    outcome = build_engine(conf=ALONE, nodes=nodes, pods=pods, objects=[group]).run_session()
    assert outcome.binds == {"default/free": "a"}


def test_groups_that_are_not_in_their_queue_wait() -> None:
    outcome = build_engine(
        conf=ALONE, nodes=[make_node("a")], pods=[make_member("p", requests={})], objects=[make_group()]
    ).run_session()
    assert not outcome.binds


def test_a_task_that_fits_nowhere_is_told_why() -> None:
    nodes = [make_node("a", taints=["gpu:NoSchedule"]), make_node("b", unschedulable=True)]
    pods = [make_member("p", requests={})]
    group = make_group(phase="Inqueue", min_member=1)
    outcome = build_engine(conf=ALONE, nodes=nodes, pods=pods, objects=[group]).run_session()
    assert outcome.messages["default/p"].message == (
        "0/2 nodes are unavailable: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable."
    )


def test_gated_tasks_wait() -> None:
    pods = [make_member("p", requests={}, gates=["example.com/hold"])]
    group = make_group(phase="Inqueue", min_member=1)
    assert not build_engine(conf=ALONE, nodes=[make_node("a")], pods=pods, objects=[group]).run_session().binds


def test_a_bind_that_is_refused_leaves_the_task_allocated_and_says_so() -> None:
    conf = ALONE.replace("  - name: predicates\n", "")
    nodes = [make_node("a", capacity={"pods": 0})]
    group = make_group(phase="Inqueue", min_member=1)
    pods = [make_member("p", requests={})]
    outcome = build_engine(conf=conf, nodes=nodes, pods=pods, objects=[group]).run_session()
    assert not outcome.binds
    assert outcome.allocated == {"default/p": "a"}
    (event,) = outcome.events
    assert "Origin reason is p: 0/1 nodes are unavailable: 1 node a resources [pods] are not enough" in event.text


def test_a_bind_is_refused_too_where_the_session_itself_has_promised_room_there() -> None:
    conf = ALONE.replace("backfill", "preempt, backfill")
    old = [make_member(f"old-{number}", "old", node="a") for number in range(2)]
    pods = [*old, make_member("new", "new", requests={"cpu": "2"}), make_member("p", requests={})]
    classes = [PriorityClass(metadata=ObjectMeta(name="high"), value=9)]
    groups = [
        make_group("old", phase="Running", min_member=0),
        make_group("new", phase="Inqueue", min_member=1, priority_class_name="high"),
        make_group(phase="Inqueue", min_member=1),
    ]
    nodes = [make_node("a", cpu=2, capacity={"pods": 2})]
    outcome = build_engine(conf=conf, nodes=nodes, pods=pods, objects=[*classes, *groups]).run_session()
    assert (len(outcome.evicts), outcome.pipelined) == (2, {"default/new": "a"})
    assert not outcome.binds  # the victims are still there, though predicates no longer see them
    assert outcome.allocated == {"default/p": "a"}
