from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.actions.gangreclaim import GangReclaim
from bayplan.batch.model.tasks import PREEMPTABLE, TASK_SPEC
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Pod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano.types import (
    ExactMatch,
    HyperNode,
    HyperNodeSpec,
    MemberSelector,
    MemberSpec,
    NetworkTopology,
)
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

CLASSES = [
    PriorityClass(metadata=ObjectMeta(name=name), value=value) for name, value in (("low", 1), ("mid", 5), ("high", 9))
]
LOW, HIGH = {"priority_class_name": "low"}, {"priority_class_name": "high"}
PREEMPTING = """\
actions: "gangpreempt"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: predicates
  - name: network-topology-aware
  - name: binpack
"""
RECLAIMING = PREEMPTING.replace("gangpreempt", "gangreclaim")


def gang(name: str, count: int, node: str = "", **pod: Any) -> list[Pod]:
    return [make_member(f"{name}-{number}", name, node=node, **pod) for number in range(count)]


def group(name: str, min_member: int, **spec: Any) -> Any:
    return make_group(
        name, min_member=min_member, phase="Running" if "phase" not in spec else spec.pop("phase"), **spec
    )


def run(conf: str, *, nodes: Any, pods: list[Pod], objects: list[Any]) -> SessionResult:
    queues = [make_queue("other"), make_queue("shut", reclaimable=False)]
    outcome = build_engine(conf=conf, nodes=nodes, pods=pods, objects=[*CLASSES, *queues, *objects]).run_session()
    assert outcome.faults == []
    return outcome


def evicted(outcome: SessionResult) -> list[str]:
    return sorted(key.partition("/")[2] for key in outcome.evicts)


# Action gangpreempt


def test_surplus_tasks_are_evicted_before_gangs_are_broken() -> None:
    pods = [*gang("rich", 3, "n"), *gang("poor", 1, "n"), *gang("new", 2)]
    groups = [group("rich", 1, **LOW), group("poor", 1, **LOW), group("new", 2, **HIGH)]
    outcome = run(PREEMPTING, nodes=[make_node("n", cpu=4)], pods=pods, objects=groups)
    assert evicted(outcome) == ["rich-0", "rich-1"]
    assert set(outcome.evicts.values()) == {"gangpreempt"}
    assert outcome.pipelined == {"default/new-0": "n", "default/new-1": "n"}
    assert outcome.messages["default/new-0"].nominated_node == "n"


def test_a_bundle_is_evicted_completely_even_if_fewer_tasks_suffice() -> None:
    pods = [*gang("old", 3, "n"), *gang("new", 1)]
    groups = [group("old", 3, **LOW), group("new", 1, **HIGH)]
    outcome = run(PREEMPTING, nodes=[make_node("n", cpu=3)], pods=pods, objects=groups)
    assert evicted(outcome) == ["old-0", "old-1", "old-2"]
    without_whole_bundles = (
        f"{PREEMPTING}configurations:\n- name: gangpreempt\n  arguments:\n    allowWholeBundle: false\n"
    )
    assert not run(without_whole_bundles, nodes=[make_node("n", cpu=3)], pods=pods, objects=groups).evicts


@pytest.mark.parametrize(
    ("victim", "pod"),
    [
        pytest.param(HIGH, {}, id="not-below"),
        pytest.param({**LOW, "queue": "other"}, {}, id="another-queue"),
        pytest.param({**LOW, "annotations": {PREEMPTABLE: "false"}}, {}, id="group-not-preemptable"),
        pytest.param(LOW, {"annotations": {PREEMPTABLE: "false"}}, id="pods-not-preemptable"),
        pytest.param(LOW, {"namespace": "kube-system"}, id="protected-by-a-plugin"),
    ],
)
def test_tasks_that_are_not_evicted(victim: dict[str, Any], pod: dict[str, Any]) -> None:
    namespace = pod.get("namespace", "default")
    pods = [*gang("old", 2, "n", **pod), *gang("new", 2)]
    groups = [group("old", 1, namespace=namespace, **victim), group("new", 2, **HIGH)]
    outcome = run(PREEMPTING, nodes=[make_node("n", cpu=2)], pods=pods, objects=groups)
    assert not outcome.evicts
    assert not outcome.pipelined


def test_the_last_job_in_job_order_loses_its_tasks_first() -> None:
    pods = [*gang("mid", 1, "n"), *gang("low", 1, "n"), *gang("new", 1)]
    groups = [group("mid", 1, priority_class_name="mid"), group("low", 1, **LOW), group("new", 1, **HIGH)]
    outcome = run(PREEMPTING, nodes=[make_node("n", cpu=2)], pods=pods, objects=groups)
    assert evicted(outcome) == ["low-0"]


def test_nothing_is_evicted_if_the_gang_cannot_start() -> None:
    pods = [*gang("old", 2, "n"), *gang("new", 3)]
    groups = [group("old", 1, **LOW), group("new", 3, **HIGH)]
    outcome = run(PREEMPTING, nodes=[make_node("n", cpu=2)], pods=pods, objects=groups)
    assert not outcome.evicts
    assert not outcome.pipelined


def test_the_next_bundle_is_added_if_the_sum_suffices_but_no_node_does() -> None:
    """Half of the need on each of two nodes does not place a task, so the next bundle is added."""
    pods = [*gang("a", 1, "x"), *gang("b", 1, "y"), *gang("c", 1, "y"), *gang("new", 1, requests={"cpu": "2"})]
    groups = [group(name, 1, **LOW) for name in "abc"] + [group("new", 1, **HIGH)]
    outcome = run(PREEMPTING, nodes=[make_node("x", cpu=1), make_node("y", cpu=2)], pods=pods, objects=groups)
    assert outcome.pipelined == {"default/new-0": "y"}
    assert {"b-0", "c-0"} <= set(evicted(outcome))


def test_a_role_that_failed_on_a_node_is_not_tried_there_again() -> None:
    pods = [
        *gang("old", 1, "n"),
        *gang("fix", 1, "n"),
        make_member("new-0", "new", annotations={TASK_SPEC: "w"}, requests={"cpu": "2"}),
        make_member("new-1", "new", annotations={TASK_SPEC: "w"}, requests={"cpu": "1"}),
    ]
    groups = [group("old", 1, **LOW), group("fix", 1, **HIGH), group("new", 2, **HIGH)]
    nodes = [make_node("n", cpu=3), make_node("m", cpu=1)]
    assert not run(PREEMPTING, nodes=nodes, pods=pods, objects=groups).pipelined
    without_cache = (
        f"{PREEMPTING}configurations:\n- name: allocate\n  arguments:\n    predicateErrorCacheEnable: false\n"
    )
    assert len(run(without_cache, nodes=nodes, pods=pods, objects=groups).pipelined) == 2


def test_a_ready_job_evicts_for_one_sub_job_and_gated_tasks_wait() -> None:
    pods = [
        *gang("old", 3, "n"),
        *gang("new", 1, "n"),
        make_member("more", "new"),
        make_member("g", "new", gates=["x"]),
    ]
    groups = [group("old", 1, **LOW), group("new", 1, **HIGH)]
    starving = PREEMPTING.replace("  - name: gang\n", "  - name: gang\n    enableJobStarving: false\n")
    outcome = run(starving, nodes=[make_node("n", cpu=4)], pods=pods, objects=groups)
    assert outcome.pipelined == {"default/more": "n"}


# Domains


def hyper(name: str, tier: int, *members: str, kind: str = "Node") -> HyperNode:
    listed = tuple(MemberSpec(kind, MemberSelector(exact_match=ExactMatch(each))) for each in members)
    return HyperNode(metadata=ObjectMeta(name=name), spec=HyperNodeSpec(tier, "", listed))


TREE = [hyper("s0", 1, "n0", "n1"), hyper("s1", 1, "n2", "n3"), hyper("b0", 2, "s0", "s1", kind="HyperNode")]
HARD = NetworkTopology(mode="hard", highest_tier_allowed=1)


def test_evictions_stay_within_one_hypernode_which_the_sub_job_nominates() -> None:
    nodes = [make_node(f"n{number}", cpu=1) for number in range(4)]
    pods = [*(make_member(f"old-{i}", "old", node=f"n{i}") for i in range(3)), *gang("fix", 1, "n3"), *gang("new", 2)]
    groups = [group("old", 1, **LOW), group("fix", 1, **HIGH), group("new", 2, network_topology=HARD, **HIGH)]
    queues = [make_queue("other"), make_queue("shut", reclaimable=False)]
    engine = build_engine(conf=PREEMPTING, nodes=nodes, pods=pods, objects=[*CLASSES, *queues, *TREE, *groups])
    with engine.session() as session:
        action = engine._actions.get("gangpreempt")
        assert action is not None
        list(action.execute(session) or ())
        job = session.jobs["default/new"]
        assert job.default_sub_job is not None
        assert job.default_sub_job.nominated_hyper_node == "s0"
        assert sorted(task.node_name for task in job.tasks.values()) == ["n0", "n1"]


def test_allocate_keeps_pipelined_tasks_of_an_eviction() -> None:
    nodes = [make_node(f"n{number}", cpu=1) for number in range(4)]
    pods = [*(make_member(f"old-{i}", "old", node=f"n{i}") for i in range(3)), *gang("fix", 1, "n3"), *gang("new", 2)]
    groups = [group("old", 1, **LOW), group("fix", 1, **HIGH), group("new", 2, network_topology=HARD, **HIGH)]
    alone = run(PREEMPTING, nodes=nodes, pods=pods, objects=[*TREE, *groups])
    conf = PREEMPTING.replace('"gangpreempt"', '"gangpreempt, allocate"')
    followed = run(conf, nodes=nodes, pods=pods, objects=[*TREE, *groups])
    assert sorted(alone.pipelined.values()) == ["n0", "n1"]
    assert (followed.pipelined, followed.evicts, followed.binds) == (alone.pipelined, alone.evicts, {})


@pytest.mark.parametrize(("max_domains", "pipelined"), [(1, False), (2, True), (-1, True)])
def test_the_number_of_domains_is_limited(max_domains: int, pipelined: bool) -> None:
    nodes = [make_node(f"n{number}", cpu=1) for number in range(4)]
    pods = [*gang("old", 1, "n2"), *gang("older", 1, "n3"), *gang("fix", 1, "n0"), *gang("new", 2)]
    groups = [group("old", 1, **LOW), group("older", 1, **LOW), group("fix", 1, **HIGH)]
    groups.append(group("new", 2, network_topology=HARD, **HIGH))
    conf = f"{PREEMPTING}configurations:\n- name: gangpreempt\n  arguments:\n    maxDomains: {max_domains}\n"
    outcome = run(conf, nodes=nodes, pods=pods, objects=[*TREE, *groups])
    assert bool(outcome.pipelined) is pipelined


# Action gangreclaim


@pytest.mark.parametrize(
    ("victim", "is_evicted"),
    [
        pytest.param({"queue": "other", **HIGH}, True, id="another-queue-whatever-its-priority"),
        pytest.param({"queue": "q", **LOW}, False, id="its-own-queue"),
        pytest.param({"queue": "shut", **LOW}, False, id="not-reclaimable-queue"),
    ],
)
def test_reclaim_between_queues(victim: dict[str, Any], is_evicted: bool) -> None:
    pods = [*gang("old", 2, "n"), *gang("new", 1)]
    groups = [group("old", 1, **victim), group("new", 1, **LOW)]
    outcome = run(RECLAIMING, nodes=[make_node("n", cpu=2)], pods=pods, objects=groups)
    assert evicted(outcome) == (["old-0"] if is_evicted else [])
    assert set(outcome.evicts.values()) == ({"gangreclaim"} if is_evicted else set())


def test_an_overused_queue_does_not_reclaim() -> None:
    pods = [*gang("mine", 1, "n"), *gang("old", 1, "n"), *gang("new", 1)]
    groups = [group("mine", 1), group("old", 1, queue="other"), group("new", 1)]
    proportional = RECLAIMING.replace("  - name: binpack\n", "  - name: proportion\n  - name: binpack\n")
    assert evicted(run(RECLAIMING, nodes=[make_node("n", cpu=2)], pods=pods, objects=groups)) == ["old-0"]
    assert not run(proportional, nodes=[make_node("n", cpu=2)], pods=pods, objects=groups).evicts


def test_a_removed_argument_keeps_its_last_value() -> None:
    pods = [*gang("old", 1, "n"), *gang("new", 1)]
    objects = [*CLASSES, make_queue("other"), group("old", 1, queue="other"), group("new", 1)]
    action = GangReclaim()
    with_argument = f"{RECLAIMING}configurations:\n- name: gangreclaim\n  arguments:\n    allowWholeBundle: false\n"
    for conf in (with_argument, RECLAIMING):
        engine = build_engine(conf=conf, nodes=[make_node("n", cpu=1)], pods=pods, objects=objects)
        with engine.session() as session:
            list(action.execute(session))
            assert not session.jobs["default/new"].waiting_task_num
