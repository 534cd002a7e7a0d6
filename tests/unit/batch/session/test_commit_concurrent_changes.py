"""Changes of the cluster, and events, between two statements of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from bayplan.batch.engine import BatchEngine, SessionAlreadyOpen
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import ContainerPort, Pod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.snapshot import PodInfo
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import NOW, make_group, make_member, make_queue
from support.builders.batch_engines import GANGS, add_pod, build_engine

PREEMPTING = GANGS.replace("enqueue, allocate, backfill", "allocate, preempt").replace(
    "  - name: predicates\n", "  - name: conformance\n- plugins:\n  - name: predicates\n"
)


def two_gangs(*pods: Pod, cpu: int = 2, conf: str = GANGS, second: int = 2) -> BatchEngine:
    """A cluster with resources for two gangs on two nodes. The first gang is scheduled, then the cluster changes, then
    the second."""
    members = [make_member("one-0", "one"), *(make_member(f"two-{number}", "two") for number in range(second))]
    groups = [make_group("one", priority_class_name="high"), make_group("two", min_member=second)]
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=10)
    nodes = [make_node("a", cpu=cpu), make_node("b", cpu=cpu)]
    return build_engine(conf=conf, nodes=nodes, pods=[*members, *pods], objects=[high, *groups])


def run_first_statement(engine: BatchEngine, outcome: SessionResult) -> Iterator[None]:
    """A session that has committed its first statement, that of the first gang."""
    turns = engine.run_session_steps(outcome)
    while not outcome.binds:
        next(turns)
    assert set(outcome.binds) == {"default/one-0"}
    return turns


def finish(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def other_node(outcome: SessionResult) -> str:
    """A node that the second gang needs."""
    return "b" if outcome.binds["default/one-0"] == "a" else "a"


def test_a_gang_whose_resources_are_used_meanwhile_starts_completely_or_not_at_all() -> None:
    engine, outcome = two_gangs(second=3), SessionResult()
    turns = run_first_statement(engine, outcome)
    engine.cache.add_pod(make_pod("rival", cpu=1, node=other_node(outcome)))
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}
    assert not engine.cache.is_assumed("pod-two-0")


def test_a_gang_whose_node_is_deleted_meanwhile_does_not_start() -> None:
    engine, outcome = two_gangs(), SessionResult()
    turns = run_first_statement(engine, outcome)
    for name in ("a", "b"):
        engine.cache.remove_node(name)
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}


def test_resources_nominated_to_another_pod_meanwhile_stay_reserved() -> None:
    engine, outcome = two_gangs(second=3), SessionResult()
    turns = run_first_statement(engine, outcome)
    engine.handle.nominator.nominate(PodInfo(make_pod("theirs", cpu=1)), other_node(outcome))
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}


def test_a_host_port_used_meanwhile_is_not_assigned_again() -> None:
    port = (ContainerPort(container_port=80, host_port=80),)

    def with_port(pod: Pod) -> Pod:
        return replace(pod, spec=replace(pod.spec, containers=(replace(pod.spec.containers[0], ports=port),)))

    high = PriorityClass(metadata=ObjectMeta(name="high"), value=10)
    groups = [make_group("one", priority_class_name="high"), make_group("two")]
    pods = [make_member("one-0", "one"), with_port(make_member("two-0", "two"))]
    engine = build_engine(nodes=[make_node("a", cpu=8)], pods=pods, objects=[high, *groups])
    outcome = SessionResult()
    turns = run_first_statement(engine, outcome)
    engine.cache.add_pod(with_port(make_pod("rival", cpu=1, node="a")))
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}


def test_best_effort_tasks_respect_pods_placed_meanwhile() -> None:
    free = [make_member(f"free-{number}", "free", requests={}) for number in range(2)]
    engine = build_engine(nodes=[make_node("a", capacity={"pods": 2})], pods=free, objects=[make_group("free")])
    outcome = SessionResult()
    turns = engine.run_session_steps(outcome)
    while not outcome.binds:
        next(turns)
    engine.cache.add_pod(make_pod("rival", node="a"))
    finish(turns)
    assert len(outcome.binds) == 1
    assert not outcome.allocated  # the other task waits like any task without a node
    columns = engine.cache.snapshot().nodes
    assert columns.pod_count[0] == 2


def test_a_best_effort_task_does_not_use_resources_nominated_meanwhile() -> None:
    free = [make_member("free-0", "free", requests={})]
    engine = build_engine(nodes=[make_node("a", capacity={"pods": 1})], pods=free, objects=[make_group("free")])
    with engine.session() as session:
        (task,) = session.jobs["default/free"].tasks.values()
        engine.handle.nominator.nominate(PodInfo(make_pod("theirs")), "a")
        node = session.node("a")
        assert node is not None
        refused = session.allocate(task, node)
        assert refused is not None
        assert "another engine used its resources meanwhile" in refused.message
    assert not engine.cache.is_assumed("pod-free-0")


def test_a_best_effort_member_waits_with_its_gang() -> None:
    """Volcano counts pending best-effort members as ready; they still do not start before a gang that is not ready."""
    pods = [make_member("free", requests={}), *(make_member(f"w-{number}") for number in range(2))]
    objects = [make_group(min_member=3)]
    outcome = build_engine(nodes=[make_node("a", cpu=1)], pods=pods, objects=objects).run_session()
    assert not outcome.binds
    outcome = build_engine(nodes=[make_node("a", cpu=2)], pods=pods, objects=objects).run_session()
    assert len(outcome.binds) == 3


def test_a_pod_that_is_deleted_meanwhile_is_not_bound_and_its_gang_waits() -> None:
    engine, outcome = two_gangs(), SessionResult()
    turns = run_first_statement(engine, outcome)
    engine.handle_delete(make_member("two-1", "two"))
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}
    assert engine.cluster_state.task("pod-two-1") is None
    assert engine.cluster_state.task("pod-two-0") is not None


@pytest.mark.parametrize("change", ["terminating", "ended"])
def test_a_pod_that_ends_meanwhile_is_not_bound(change: str) -> None:
    engine, outcome = two_gangs(second=1), SessionResult()
    turns = run_first_statement(engine, outcome)
    pod = make_member("two-0", "two", phase="Failed" if change == "ended" else "")
    if change == "terminating":
        pod = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=NOW))
    engine.handle_update(pod)
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}


def test_a_new_version_of_a_pod_is_used_by_the_next_session_and_bound_once() -> None:
    engine, outcome = two_gangs(), SessionResult()
    turns = run_first_statement(engine, outcome)
    for number in range(2):
        engine.handle_update(make_member(f"two-{number}", "two", labels={"new": "yes"}))
    finish(turns)
    assert len(outcome.binds) == 3
    task = engine.cluster_state.task("pod-two-0")
    assert task is not None
    assert task.pod.metadata.labels == {"new": "yes"}
    assert task.node_name == outcome.binds["default/two-0"]
    again = engine.run_session()
    assert not again.binds
    assert not again.faults


def test_a_pod_created_meanwhile_is_in_the_next_session() -> None:
    engine, outcome = two_gangs(cpu=4), SessionResult()
    turns = run_first_statement(engine, outcome)
    add_pod(engine, make_member("two-9", "two"))
    finish(turns)
    assert len(outcome.binds) == 3
    assert set(engine.run_session().binds) == {"default/two-9"}


def test_a_pod_placed_by_another_engine_meanwhile_stays_there() -> None:
    engine, outcome = two_gangs(cpu=8), SessionResult()
    turns = run_first_statement(engine, outcome)
    add_pod(engine, make_member("two-1", "two", node=other_node(outcome)))
    finish(turns)
    assert set(outcome.binds) == {"default/one-0"}
    assert not outcome.faults
    assert set(engine.run_session().binds) == {"default/two-0"}


def preempting_engine() -> BatchEngine:
    """`one` is placed at once. `high`, of 2 CPUs, waits for a victim on the other node, where one CPU is idle."""
    classes = [PriorityClass(metadata=ObjectMeta(name=name), value=value) for name, value in _CLASSES.items()]
    groups = [
        make_group("low", min_member=1, phase="Running", priority_class_name="low"),
        make_group("one", phase="Inqueue", priority_class_name="top"),
        make_group("high", phase="Inqueue", priority_class_name="high"),
    ]
    pods = [
        make_member("low-0", "low", node="a"),
        make_member("low-1", "low", node="a"),
        make_member("one-0", "one", requests={"cpu": "100m"}),
        make_member("high-0", "high", requests={"cpu": "2"}),
    ]
    nodes = [make_node("a", cpu=3), make_node("b", cpu=1)]
    return build_engine(conf=PREEMPTING, nodes=nodes, pods=pods, objects=[*classes, *groups, make_queue("z")])


_CLASSES = {"low": 1, "high": 5, "top": 9}


def test_victims_are_evicted_for_the_preemptor() -> None:
    outcome = preempting_engine().run_session()
    assert len(outcome.evicts) == 1
    assert outcome.pipelined == {"default/high-0": "a"}


@pytest.mark.parametrize("how", ["used", "nominated"])
def test_no_pod_is_evicted_when_concurrent_changes_leave_too_few_resources(how: str) -> None:
    engine, outcome = preempting_engine(), SessionResult()
    turns = run_first_statement(engine, outcome)
    rival = make_pod("rival", cpu=1, node="a")
    if how == "used":
        engine.cache.add_pod(rival)
    else:
        engine.handle.nominator.nominate(PodInfo(make_pod("theirs", cpu=1)), "a")
        engine.cache.add_pod(make_pod("crumb", cpu="1m", node="b"))  # a nomination comes with a change of the cluster
    finish(turns)
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_victim_that_is_already_deleted_is_not_evicted() -> None:
    engine, outcome = preempting_engine(), SessionResult()
    turns = run_first_statement(engine, outcome)
    for name in ("low-0", "low-1"):
        pod = make_member(name, "low", node="a")
        engine.cache.remove_pod(pod)
        engine.handle_delete(pod)
    finish(turns)
    assert not outcome.evicts
    assert engine.run_session().binds == {"default/high-0": "a"}


def test_only_one_session_can_be_open() -> None:
    engine = two_gangs()
    with engine.session(), pytest.raises(SessionAlreadyOpen, match="still open"), engine.session():
        pass
    turns = run_first_statement(engine, SessionResult())
    turns.close()  # type: ignore[attr-defined]  # broken off: the next one can begin
    assert len(engine.run_session().binds) == 2
