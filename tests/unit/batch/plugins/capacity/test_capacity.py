from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bayplan.batch.plugins.capacity.plugin import CapacityPlugin
from bayplan.batch.session.registration import EvictionContext, EvictionKind
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.objects.core import Pod
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import Guarantee, Queue, QueueStatus
from bayplan.testing.builders import make_node
from support.builders.batch import (
    make_group,
    make_member,
    make_queue,
    open_session,
    pod_group_messages,
    task_names,
    tasks_of,
)
from support.builders.batch_engines import build_engine

GPU = "nvidia.com/gpu"
NODE = make_node("n", allocatable={"cpu": "12", "memory": "12Gi", "pods": "100", GPU: "4"})


def cluster(*queues: Queue, running: dict[str, int] | None = None, waiting: tuple[str, ...] = ()) -> dict[str, Any]:
    """Queues with one job each: `running` one-core tasks by queue, `waiting` queues have a pending task."""
    running = running or {}
    names = {queue.name for queue in queues if queue.name in running or queue.name in waiting}
    groups = [make_group(f"job-{name}", queue=name, phase="Inqueue") for name in sorted(names)]
    pods = [
        make_member(f"{name}-{n}", f"job-{name}", node="n") for name, count in running.items() for n in range(count)
    ]
    pods += [make_member(f"{name}-w", f"job-{name}") for name in waiting]
    return {"nodes": [NODE], "pods": pods, "objects": [*queues, *groups]}


def guarantee(**amounts: str) -> Guarantee:
    return Guarantee(resource=dict(amounts))


def ordered(session: Session, *names: str) -> list[str]:
    """Names of two queues as the session serves them."""
    left, right = (session.queues[name] for name in names)
    return list(names) if session.queue_order(left, right) else list(names[::-1])


# Flat queues


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        pytest.param({"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "8"}}, ["b", "a"], id="smaller-share"),
        pytest.param({"deserved": {"cpu": "2"}}, {}, ["a", "b"], id="equal-but-one-deserves-something"),
        pytest.param({"deserved": {"cpu": "1"}}, {}, ["b", "a"], id="more-than-deserved-goes-last"),
        pytest.param({"priority": 3}, {"deserved": {"cpu": "8"}}, ["a", "b"], id="priority-before-share"),
    ],
)
def test_order_of_queues(left: dict[str, Any], right: dict[str, Any], expected: list[str]) -> None:
    queues = [make_queue("a", **left), make_queue("b", **right)]
    with open_session(CapacityPlugin, **cluster(*queues, running={"a": 2, "b": 2})) as session:
        assert ordered(session, "a", "b") == expected


@pytest.mark.parametrize(
    ("spec", "other_spec", "fits"),
    [
        pytest.param({}, {}, True, id="no-limit-but-the-cluster"),
        pytest.param({"capability": {"cpu": "3"}}, {}, True, id="within-the-capability"),
        pytest.param({"capability": {"cpu": "2"}}, {}, False, id="above-the-capability"),
        pytest.param({"capability": {"memory": "1Gi"}}, {}, True, id="a-capability-of-other-things"),
        pytest.param({}, {"guarantee": guarantee(cpu="10")}, False, id="guarantee-of-another-queue"),
        pytest.param({"guarantee": guarantee(cpu="3")}, {"guarantee": guarantee(cpu="9")}, True, id="own-guarantee"),
        pytest.param({"deserved": {"cpu": "1"}}, {}, True, id="more-than-deserved"),
    ],
)
def test_limits(spec: dict[str, Any], other_spec: dict[str, Any], fits: bool) -> None:
    queues = [make_queue("a", **spec), make_queue("b", **other_spec)]
    with open_session(CapacityPlugin, **cluster(*queues, running={"a": 2}, waiting=("a",))) as session:
        (task,) = tasks_of(session, "a-w")
        assert session.allocatable(session.queues["a"], task) is fits


def test_limits_follow_placements() -> None:
    with open_session(
        CapacityPlugin, **cluster(make_queue("a", capability={"cpu": "3"}), running={"a": 2}, waiting=("a",))
    ) as session:
        queue, (task, victim) = session.queues["a"], tasks_of(session, "a-w", "a-0")
        statement = session.statement()
        statement.allocate(task, "n")
        assert not session.allocatable(queue, task)
        statement.evict(victim, "test")
        assert session.allocatable(queue, task)
        statement.discard()
        assert session.allocatable(queue, task)


@pytest.mark.parametrize(
    ("deserved", "running", "preemptive"),
    [
        pytest.param({"cpu": "3"}, 2, True, id="would-deserve-it"),
        pytest.param({"cpu": "2"}, 2, False, id="has-its-deserved-share"),
        pytest.param({"memory": "1Gi"}, 0, False, id="deserves-other-resources-only"),
        pytest.param({}, 0, False, id="deserves-nothing"),
    ],
)
def test_preemptive(deserved: ResourceList, running: int, preemptive: bool) -> None:
    queues = [make_queue("a", deserved=deserved)]
    with open_session(CapacityPlugin, **cluster(*queues, running={"a": running}, waiting=("a",))) as session:
        assert session.preemptive(session.queues["a"], tasks_of(session, "a-w")) is preemptive


def test_a_closed_queue_is_not_allocatable() -> None:
    base = make_queue("a", deserved={"cpu": "9"})
    closed = Queue(metadata=base.metadata, spec=base.spec, status=QueueStatus(state="Closing"))
    with open_session(CapacityPlugin, **cluster(closed, waiting=("a",))) as session:
        queue, tasks = session.queues["a"], tasks_of(session, "a-w")
        assert not session.allocatable(queue, tasks[0])
        assert not session.preemptive(queue, tasks)
        assert not session.job_enqueueable(session.jobs["default/job-a"])


@pytest.mark.parametrize(
    ("spec", "victims"),
    [
        pytest.param({"deserved": {"cpu": "2"}}, 2, id="down-to-the-deserved-share"),
        pytest.param({"deserved": {"cpu": "4"}}, 0, id="at-the-deserved-share"),
        pytest.param({}, 4, id="deserves-nothing"),
        pytest.param({"guarantee": guarantee(cpu="3")}, 1, id="never-below-the-guarantee"),
    ],
)
def test_victims(spec: dict[str, Any], victims: int) -> None:
    queues = [make_queue("a", deserved={"cpu": "6"}), make_queue("b", **spec)]
    with open_session(CapacityPlugin, **cluster(*queues, running={"b": 4}, waiting=("a",))) as session:
        reclaimer, *running = tasks_of(session, "a-w", "b-0", "b-1", "b-2", "b-3")
        assert len(session.reclaimable(reclaimer, running)) == victims
        context = EvictionContext(EvictionKind.GANG_RECLAIM, session.jobs["default/job-a"])
        assert len(session.unified_evictable(context, running)) == victims
        context = EvictionContext(EvictionKind.GANG_PREEMPT, session.jobs["default/job-a"])
        assert session.unified_evictable(context, running) == running


def test_tasks_without_a_needed_resource_are_no_victims() -> None:
    pods = [
        make_member("a-w", "job-a", requests={GPU: "1"}),
        make_member("b-0", "job-b", node="n"),
        make_member("b-1", "job-b", node="n", requests={"cpu": "1", GPU: "1"}),
    ]
    groups = [make_group("job-a", queue="a"), make_group("job-b", queue="b")]
    objects = [make_queue("a"), make_queue("b"), *groups]
    with open_session(CapacityPlugin, nodes=[NODE], pods=pods, objects=objects) as session:
        reclaimer, *running = tasks_of(session, "a-w", "b-0", "b-1")
        assert task_names(session.reclaimable(reclaimer, running)) == ["b-1"]


def test_job_enqueueable() -> None:
    groups = [
        make_group("runs", phase="Running", min_resources={"cpu": "1"}),
        make_group("new", min_resources={"cpu": "5"}),
        make_group("next", min_resources={"cpu": "1", "memory": "1Gi"}),
        make_group("free", min_resources=None),
    ]
    pods = [make_member("p", "runs", node="n", requests={"cpu": "2"})]
    with open_session(
        CapacityPlugin, nodes=[NODE], pods=pods, objects=[make_queue(capability={"cpu": "6"}), *groups]
    ) as session:
        assert session.job_enqueueable(session.jobs["default/new"])  # one core of the running job is elastic
        assert not session.job_enqueueable(session.jobs["default/next"])
        assert session.job_enqueueable(session.jobs["default/free"])
        assert pod_group_messages(session) == ["next: queue resource quota insufficient: insufficient cpu"]


def test_simulation_without_a_victim() -> None:
    queue = make_queue("a", capability={"cpu": "2"})
    with open_session(CapacityPlugin, **cluster(queue, running={"a": 2}, waiting=("a",))) as session:
        (mine, victim), node = tasks_of(session, "a-w", "a-0"), session.node("n")
        assert node is not None
        simulation = Simulation(mine, node)
        assert not session.simulate_allocatable(simulation, session.queues["a"])
        session.simulate_remove_task(simulation, victim)
        assert session.simulate_allocatable(simulation, session.queues["a"])
        session.simulate_add_task(simulation, victim)
        assert not session.simulate_allocatable(simulation, session.queues["a"])


def test_gauges_of_queues_with_and_without_jobs() -> None:
    queues = [
        make_queue("a", deserved={"cpu": "20"}, capability={"cpu": "8"}, guarantee=guarantee(memory="2Gi")),
        make_queue("b", deserved={"cpu": "20"}, capability={"memory": "1Gi"}),
    ]
    with open_session(CapacityPlugin, **cluster(*queues, running={"a": 2})) as session:
        a, b = session.queue_gauges["a"], session.queue_gauges["b"]
    assert a["deserved_milli_cpu"] == 8000  # at most the capability
    assert a["deserved_memory_bytes"] == 2 * 2**30  # at least the guarantee
    assert (a["capacity_milli_cpu"], a["real_capacity_milli_cpu"]) == (8000, 8000)
    assert a["real_capacity_scalar_resources/nvidia.com/gpu"] == 4000
    assert a["share"] == 0.25
    assert b["deserved_milli_cpu"] == 20000
    assert (b["capacity_milli_cpu"], b["real_capacity_milli_cpu"]) == (0, 0)
    assert "share" not in b


def test_gauges_after_the_session() -> None:
    queues = [make_queue("a", deserved={"cpu": "2"}), make_queue("b", deserved={"cpu": "2"})]
    with open_session(CapacityPlugin, **cluster(*queues, running={"a": 2, "b": 1}, waiting=("a",))) as session:
        assert session.statement().allocate(tasks_of(session, "a-w")[0], "n")
        session.plugins["capacity"].on_session_close(session)
        a, b = session.queue_gauges["a"], session.queue_gauges["b"]
    assert (a["allocated_milli_cpu"], a["share"], a["overused"]) == (3000, 1.5, 1)
    assert (b["allocated_milli_cpu"], b["share"], b["overused"]) == (1000, 0.5, 0)


# Tree of queues

TREE = """\
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: capacity
    enableHierarchy: true
    arguments:
      ancestorReclaimLevel: {level}
"""

FAMILY = (
    make_queue("root"),
    make_queue("east", capability={"cpu": "6"}, deserved={"cpu": "6"}),
    make_queue("west", parent="root", deserved={"cpu": "6"}),
    make_queue("e1", parent="east", deserved={"cpu": "4"}),
    make_queue("e2", parent="east", deserved={"cpu": "2"}),
    make_queue("w1", parent="west", deserved={"cpu": "6"}),
)


@contextmanager
def in_tree(*queues: Queue, level: int = 0, **rest: Any) -> Iterator[Session]:
    options = cluster(*queues, **rest)
    with build_engine(conf=TREE.format(level=level), **options).session() as session:
        yield session


def test_accounts_of_parents_are_sums_of_their_children() -> None:
    with in_tree(*FAMILY, running={"e1": 2, "e2": 1, "w1": 3}, waiting=("e1",)) as session:
        gauges = session.queue_gauges
        assert [gauges[name]["allocated_milli_cpu"] for name in ("root", "east", "west")] == [6000, 3000, 3000]
        assert gauges["east"]["request_milli_cpu"] == 4000
        assert gauges["root"]["deserved_milli_cpu"] == 12000
        assert gauges["e2"]["capacity_milli_cpu"] == 6000, "inherited"
        assert gauges["root"]["real_capacity_milli_cpu"] > 1e308


def test_a_parents_limit_binds_its_children() -> None:
    with in_tree(*FAMILY, running={"e1": 3, "e2": 3}, waiting=("e1", "w1")) as session:
        mine, theirs = tasks_of(session, "e1-w", "w1-w")
        assert not session.allocatable(session.queues["e1"], mine)
        assert session.allocatable(session.queues["w1"], theirs)
        assert not session.allocatable(session.queues["west"], theirs), "only leaf queues are allocatable"


def test_the_guarantee_of_a_child_limits_its_siblings() -> None:
    family = [*FAMILY[:4], make_queue("e2", parent="east", guarantee=guarantee(cpu="3")), FAMILY[5]]
    with in_tree(*family, running={"e1": 3}, waiting=("e1", "e2")) as session:
        mine, theirs = tasks_of(session, "e1-w", "e2-w")
        assert not session.allocatable(session.queues["e1"], mine)
        assert session.allocatable(session.queues["e2"], theirs)


def test_admitted_jobs_count_for_all_ancestors() -> None:
    options = cluster(*FAMILY)
    options["objects"] += [
        make_group("one", queue="e1", min_resources={"cpu": "4"}),
        make_group("two", queue="e2", min_resources={"cpu": "3"}),
        make_group("inner", queue="w1", min_resources={"cpu": "3"}),
    ]
    with build_engine(conf=TREE.format(level=0), **options).session() as session:
        answers = {name: session.job_enqueueable(session.jobs[f"default/{name}"]) for name in ("one", "two", "inner")}
    assert answers == {"one": True, "two": False, "inner": True}


def test_order_compares_the_first_different_ancestors() -> None:
    with in_tree(*FAMILY, running={"e1": 1, "e2": 1, "w1": 3}) as session:
        assert ordered(session, "e1", "w1") == ["e1", "w1"]  # east has 2 of 6, west 3 of 6
        assert ordered(session, "e1", "e2") == ["e1", "e2"]  # 1 of 4, 1 of 2
        assert ordered(session, "east", "w1") == ["w1", "east"], "leaves first"
        assert ordered(session, "east", "west") == ["east", "west"]


def test_a_leaf_below_the_root_is_compared_with_other_branches() -> None:
    family = [*FAMILY, make_queue("solo", parent="root", deserved={"cpu": "1"})]
    with in_tree(*family, running={"e1": 1, "solo": 1}) as session:
        assert ordered(session, "e1", "solo") == ["e1", "solo"]  # 1 of 6, 1 of 1
        assert ordered(session, "solo", "e1") == ["e1", "solo"]


def test_shares_of_parents_keep_their_value_from_open() -> None:
    with in_tree(*FAMILY, running={"e1": 1, "w1": 2}, waiting=("e1", "e2")) as session:
        statement = session.statement()
        for task in tasks_of(session, "e1-w", "e2-w"):
            statement.allocate(task, "n")
        assert ordered(session, "e1", "w1") == ["e1", "w1"]
        assert ordered(session, "e1", "e2") == ["e1", "e2"], "shares of leaves are updated: 2 of 4, 1 of 2"


def test_queues_with_a_closer_common_ancestor_lose_tasks_first() -> None:
    with in_tree(*FAMILY, running={"e1": 1, "e2": 1, "w1": 1}) as session:
        e1, e2, w1 = (session.queues[name] for name in ("e1", "e2", "w1"))
        assert session.victim_queue_order(e2, w1, e1)
        assert not session.victim_queue_order(w1, e2, e1)


@pytest.mark.parametrize(
    ("level", "running", "victims"),
    [
        pytest.param(0, {"e2": 3}, 1, id="above-the-deserved-share"),
        pytest.param(1, {"e2": 3}, 1, id="same-parent-nothing-more-to-check"),
        pytest.param(0, {"w1": 7}, 1, id="another-branch"),
        pytest.param(1, {"w1": 7}, 1, id="its-parent-exceeds-too"),
    ],
)
def test_reclaim_in_a_tree(level: int, running: dict[str, int], victims: int) -> None:
    with in_tree(*FAMILY, level=level, running=running, waiting=("e1",)) as session:
        (name,) = running
        reclaimer, *theirs = tasks_of(session, "e1-w", *(f"{name}-{n}" for n in range(running[name])))
        assert len(session.reclaimable(reclaimer, theirs)) == victims


@pytest.mark.parametrize(("level", "victims"), [(0, 2), (1, 0), (2, 0)])
def test_a_parent_within_its_deserved_share_protects_its_children(level: int, victims: int) -> None:
    family = [*FAMILY[:5], make_queue("w1", parent="west", deserved={"cpu": "1"})]
    with in_tree(*family, level=level, running={"w1": 3}, waiting=("e1",)) as session:
        reclaimer, *theirs = tasks_of(session, "e1-w", "w1-0", "w1-1", "w1-2")
        assert len(session.reclaimable(reclaimer, theirs)) == victims


@pytest.mark.parametrize(("level", "victims"), [(0, 3), (1, 0)])
def test_siblings_without_deserved_share_do_not_reclaim_from_each_other(level: int, victims: int) -> None:
    family = [*FAMILY[:3], make_queue("e1", parent="east"), make_queue("e2", parent="east")]
    with in_tree(*family, level=level, running={"e2": 3}, waiting=("e1",)) as session:
        reclaimer, *theirs = tasks_of(session, "e1-w", "e2-0", "e2-1", "e2-2")
        assert len(session.reclaimable(reclaimer, theirs)) == victims


@pytest.mark.parametrize(("level", "preemptive"), [(0, False), (1, True)])
def test_an_ancestor_within_the_level_can_make_a_queue_preemptive(level: int, preemptive: bool) -> None:
    with in_tree(*FAMILY, level=level, running={"e2": 2}, waiting=("e2",)) as session:
        assert session.preemptive(session.queues["e2"], tasks_of(session, "e2-w")) is preemptive


BROKEN = [
    pytest.param([make_queue("a", parent="root")], "a", "there is no queue named root; create it", id="no-root"),
    pytest.param(
        [make_queue("root"), make_queue("a"), make_queue("b", parent="nowhere")],
        "a",
        "the parent nowhere of queue b does not exist; create it, or give b another parent",
        id="missing-parent",
    ),
    pytest.param(
        [make_queue("root"), make_queue("a"), make_queue("b", parent="a")],
        "a",
        "queue a has jobs and is the parent of b; move the jobs to a queue without children, or give b another parent",
        id="jobs-in-a-parent",
    ),
]


@pytest.mark.parametrize(("queues", "used", "fault"), BROKEN)
def test_an_invalid_tree_blocks_all_queues_and_is_reported(queues: list[Queue], used: str, fault: str) -> None:
    groups = [make_group("job", queue=used, min_resources={"cpu": "1"})]
    engine = build_engine(conf=TREE.format(level=0), nodes=[NODE], pods=[make_member("p")], objects=[*queues, *groups])
    with engine.session() as session:
        assert session.faults == [f"capacity: {fault}; no queue gets anything until this is fixed"]
        (task,) = tasks_of(session, "p")
        queue, job = session.queues[used], session.jobs["default/job"]
        assert not session.allocatable(queue, task)
        assert not session.preemptive(queue, [task])
        assert not session.job_enqueueable(job)
        assert session.reclaimable(task, [task]) == []


def test_a_cycle_of_queues_is_reported_and_other_queues_work() -> None:
    ring = [make_queue("x", parent="y"), make_queue("y", parent="x")]
    pods: list[Pod] = [make_member("p"), make_member("lost", "ring")]
    groups = [make_group("job", queue="w1", phase="Inqueue"), make_group("ring", queue="x", min_resources={"cpu": "1"})]
    engine = build_engine(conf=TREE.format(level=0), nodes=[NODE], pods=pods, objects=[*FAMILY, *ring, *groups])
    with engine.session() as session:
        faults = sorted(fault for fault in session.faults if "own ancestor" in fault)
        assert [fault.split()[2] for fault in faults] == ["x", "y"]
        task, lost = tasks_of(session, "p", "lost")
        assert session.allocatable(session.queues["w1"], task)
        assert not session.allocatable(session.queues["x"], lost)
        assert not session.job_enqueueable(session.jobs["default/ring"])


def test_a_negative_level_is_reported() -> None:
    with in_tree(*FAMILY, level=-1) as session:
        assert session.faults == ["capacity: ancestorReclaimLevel should be non-negative, got -1; 0 is used"]


def test_usage_of_jobs_in_the_root_queue_counts_twice() -> None:
    """Upstream adds usage to the parent of every queue, and treats the root as its own parent."""
    options = cluster(make_queue("root"), running={"root": 2})
    outcome = build_engine(conf=TREE.format(level=0), **options).run_session()
    assert str(outcome.queues["root"]["cpu"]) == "4"
