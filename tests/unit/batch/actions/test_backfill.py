from __future__ import annotations

from bayplan.objects.meta import ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine

BACKFILL_ONLY = GANGS.replace("enqueue, allocate, backfill", "backfill")


def test_best_effort_tasks_are_placed_on_feasible_nodes() -> None:
    nodes = [make_node("tainted", taints=["gpu:NoSchedule"]), make_node("a", cpu=0)]
    pods = [make_member("free", requests={}), make_member("asks")]
    group = make_group(phase="Inqueue", min_member=0)
    outcome = build_engine(conf=BACKFILL_ONLY, nodes=nodes, pods=pods, objects=[group]).run_session()
    assert outcome.binds == {"default/free": "a"}


def test_pending_groups_wait() -> None:
    outcome = build_engine(
        conf=BACKFILL_ONLY, nodes=[make_node("a")], pods=[make_member("p", requests={})], objects=[make_group()]
    ).run_session()
    assert not outcome.binds


def test_a_task_without_a_feasible_node_gets_a_message() -> None:
    nodes = [make_node("a", taints=["gpu:NoSchedule"]), make_node("b", unschedulable=True)]
    pods = [make_member("p", requests={})]
    group = make_group(phase="Inqueue", min_member=1)
    outcome = build_engine(conf=BACKFILL_ONLY, nodes=nodes, pods=pods, objects=[group]).run_session()
    assert outcome.messages["default/p"].message == (
        "0/2 nodes are unavailable: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable."
    )


def test_gated_tasks_wait() -> None:
    pods = [make_member("p", requests={}, gates=["example.com/hold"])]
    group = make_group(phase="Inqueue", min_member=1)
    assert not build_engine(conf=BACKFILL_ONLY, nodes=[make_node("a")], pods=pods, objects=[group]).run_session().binds


def test_a_rejected_bind_leaves_the_task_allocated_and_records_an_event() -> None:
    conf = BACKFILL_ONLY.replace("  - name: predicates\n", "")
    nodes = [make_node("a", capacity={"pods": 0})]
    group = make_group(phase="Inqueue", min_member=1)
    pods = [make_member("p", requests={})]
    outcome = build_engine(conf=conf, nodes=nodes, pods=pods, objects=[group]).run_session()
    assert not outcome.binds
    assert outcome.allocated == {"default/p": "a"}
    (event,) = outcome.events
    assert "Origin reason is p: 0/1 nodes are unavailable: 1 node a resources [pods] are not enough" in event.text


def test_a_bind_is_rejected_on_a_node_with_pipelined_tasks() -> None:
    conf = BACKFILL_ONLY.replace("backfill", "preempt, backfill")
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
    assert not outcome.binds  # the victims still run, although predicates ignore them
    assert outcome.allocated == {"default/p": "a"}
