from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.plugins.numa_aware import NO_CPUS, NO_INFO, NOT_STATIC, POLICY, NumaAwarePlugin
from bayplan.batch.session.session import Session
from bayplan.framework.api.status import Code
from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano.types import CpuLocation, NumaResource, Numatopology, NumatopologySpec
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, open_session, tasks_of
from support.builders.batch_scores import predicate_rejections, scores

NODES = [make_node("n1", cpu="16"), make_node("n2", cpu="16")]


def report(
    name: str, policy: str = "single-numa-node", *, free: str | None = "0-7", manager: str = "static"
) -> Numatopology:
    """Two NUMA nodes of four CPUs."""
    detail = {str(cpu): CpuLocation(numa=cpu // 4, socket=0, core=cpu) for cpu in range(8)}
    spec = NumatopologySpec(
        policies={"CPUManagerPolicy": manager, "TopologyManagerPolicy": policy},
        numares={"cpu": NumaResource(allocatable=free, capacity=8)} if free is not None else {},
        cpu_detail=detail,
    )
    return Numatopology(metadata=ObjectMeta(name=name), spec=spec)


def pod(name: str, cpu: str = "2", *, policy: str = "single-numa-node", limits: str | None = None, **more: Any) -> Pod:
    """Guaranteed, unless the limits differ."""
    member = make_member(name, annotations={POLICY: policy} if policy else {}, **more)
    amounts = ResourceRequirements(
        requests={"cpu": cpu, "memory": "1Gi"}, limits={"cpu": limits or cpu, "memory": "1Gi"}
    )
    return replace(member, spec=replace(member.spec, containers=(Container(name="main", resources=amounts),)))


def place(session: Session, name: str, node: str) -> None:
    (task,) = tasks_of(session, name)
    found = session.node(node)
    assert found is not None
    assert session.statement().allocate(task, found)


@pytest.mark.parametrize(
    ("task", "reports", "expected"),
    [
        pytest.param(pod("p"), [report("n1")], {"n2": (Code.ERROR, NO_INFO)}, id="no-report"),
        pytest.param(
            pod("p"),
            [report("n1", manager="none"), report("n2", free="")],
            {"n1": (Code.ERROR, NOT_STATIC), "n2": (Code.ERROR, NO_CPUS)},
            id="not-static-and-no-cpus",
        ),
        pytest.param(
            pod("p"),
            [report("n1", "restricted"), report("n2", free=None)],
            {
                "n1": (Code.ERROR, "task topology policy[single-numa-node] is different with node[restricted]"),
                "n2": (Code.ERROR, NO_CPUS),
            },
            id="another-policy",
        ),
        pytest.param(
            pod("p", "5"),
            [report("n1"), report("n2", free="0-6")],
            dict.fromkeys(("n1", "n2"), (Code.UNRESOLVABLE, "container main cannot be assigned by numa")),
            id="too-large-for-one-numa-node",
        ),
        pytest.param(pod("p", "5", limits="6"), [report("n1")], {}, id="not-guaranteed"),
        pytest.param(pod("p", policy=""), [report("n1", manager="none"), report("n2", "none")], {}, id="no-policy"),
        pytest.param(
            pod("p", "5", policy="none"),
            [report("n1"), report("n2", "best-effort")],
            {"n1": (Code.UNRESOLVABLE, "container main cannot be assigned by numa")},
            id="policy-of-the-node",
        ),
        pytest.param(pod("p", "4500m"), [report("n1"), report("n2")], {}, id="shares-cpus"),
    ],
)
def test_rejected_nodes(task: Pod, reports: list[Numatopology], expected: dict[str, tuple[Code, str]]) -> None:
    with open_session(NumaAwarePlugin, nodes=NODES, pods=[task], objects=[make_group(), *reports]) as session:
        assert predicate_rejections(session, "p") == expected


@pytest.mark.parametrize(
    ("policy", "weight", "expected"),
    [
        pytest.param("best-effort", 1, {"n1": 50.0, "n2": 0.0}, id="fewer-numa-nodes-are-better"),
        pytest.param("best-effort", 3, {"n1": 150.0, "n2": 0.0}, id="weight"),
        pytest.param("", 1, {"n1": 0.0, "n2": 0.0}, id="no-policy"),
    ],
)
def test_scores(policy: str, weight: int, expected: dict[str, float]) -> None:
    reports = [report("n1", "best-effort"), report("n2", "best-effort", free="2-5")]
    objects = [make_group(), *reports]
    task = pod("p", "4", policy=policy)
    with open_session(
        NumaAwarePlugin, arguments={"weight": weight}, nodes=NODES, pods=[task], objects=objects
    ) as session:
        assert scores(session, "p") == expected


def test_all_nodes_score_100_if_the_pod_takes_no_exclusive_cpus() -> None:
    reports = [report("n1", "best-effort"), report("n2", "best-effort")]
    task = pod("p", "500m", policy="best-effort")
    with open_session(NumaAwarePlugin, nodes=NODES, pods=[task], objects=[make_group(), *reports]) as session:
        assert scores(session, "p") == {"n1": 100.0, "n2": 100.0}


def test_cpus_are_taken_by_allocate_and_returned_by_undo() -> None:
    pods = [pod(name, "3") for name in ("a", "b", "c")]
    with open_session(NumaAwarePlugin, nodes=NODES[:1], pods=pods, objects=[make_group(), report("n1")]) as session:
        place(session, "a", "n1")
        with session.statement() as trial:
            (second,) = tasks_of(session, "b")
            trial.allocate(second, session.nodes[0])
            assert predicate_rejections(session, "c")
        assert not predicate_rejections(session, "c")


def test_tasks_of_earlier_sessions_neither_free_nor_take_cpus() -> None:
    pods = [pod("old", "4", node="n1"), pod("p", "4")]
    objects = [make_group(), report("n1", free="4-7")]
    with open_session(NumaAwarePlugin, nodes=NODES[:1], pods=pods, objects=objects) as session:
        (old,) = tasks_of(session, "old")
        with session.statement() as trial:
            trial.evict(old, "test")
            assert not predicate_rejections(session, "p")
        assert not predicate_rejections(session, "p")


def test_without_enable_predicate_the_scores_are_zero() -> None:
    reports = [report("n1", "best-effort"), report("n2", "best-effort", free="2-5")]
    task = pod("p", "4", policy="best-effort")
    engine = make_engine(NumaAwarePlugin, nodes=NODES, pods=[task], objects=[make_group(), *reports])
    option = PluginOption(NumaAwarePlugin.name, flags={"enablePredicate": False}).with_default_flags()
    engine.configuration = BatchConfiguration(tiers=((option,),))
    with engine.session() as session:
        assert scores(session, "p") == {"n1": 0.0, "n2": 0.0}


def run_one(engine: Any, name: str, *, bound: bool) -> None:
    """Run a session that places one task, and optionally binds it."""
    with engine.session() as session:
        place(session, name, "n1")
        if bound:
            session.set_task_status(*tasks_of(session, name), TaskStatus.BINDING)
        session.plugins[NumaAwarePlugin.name].on_session_close(session)


@pytest.mark.parametrize(
    ("bound", "later", "room"),
    [
        pytest.param(True, None, 1, id="bound-cpus-stay-taken"),
        pytest.param(False, None, 2, id="unbound-ones-do-not"),
        pytest.param(True, "0-7", 2, id="a-report-with-as-many-is-trusted"),
        pytest.param(True, "0-3,5-7", 1, id="a-late-report-is-not-trusted"),
        pytest.param(True, "4-6", 0, id="a-report-with-even-fewer-is-trusted"),
    ],
)
def test_free_cpus_between_sessions(bound: bool, later: str | None, room: int) -> None:
    engine = make_engine(
        NumaAwarePlugin, nodes=NODES[:1], pods=[pod(name, "4") for name in "abc"], objects=[make_group(), report("n1")]
    )
    run_one(engine, "a", bound=bound)
    if later is not None:
        engine.cache.upsert(report("n1", free=later))
    placed = 0
    with engine.session() as session:
        while placed < 2 and not predicate_rejections(session, "bc"[placed]):
            place(session, "bc"[placed], "n1")
            placed += 1
    assert placed == room


def test_a_node_with_a_deleted_report_is_removed() -> None:
    engine = make_engine(NumaAwarePlugin, nodes=NODES[:1], pods=[pod("p")], objects=[make_group(), report("n1")])
    run_one(engine, "p", bound=False)
    engine.cache.delete(report("n1"))
    with engine.session() as session:
        assert predicate_rejections(session, "p") == {"n1": (Code.ERROR, NO_INFO)}
