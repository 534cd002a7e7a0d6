from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from unittest import mock

import pytest
from msgspec.structs import replace

from bayplan.batch import cluster_state as ledger_module
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.objects.core import Pod
from bayplan.objects.workloads import PriorityClass
from bayplan.snapshot import PodInfo
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import make_engine, make_group, make_member, make_queue, tasks_of
from support.builders.batch_engines import account_rows, add_pod, build_engine


def status_of(engine: BatchEngine, name: str) -> TaskStatus:
    task = engine.cluster_state.task(f"pod-{name}")
    assert task is not None
    return task.status


def idle(engine: BatchEngine, node: str) -> float:
    with engine.session() as session:
        found = session.node(node)
        assert found is not None
        return found.idle.milli_cpu


def terminating(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=datetime(2024, 1, 1, tzinfo=UTC)))


def test_an_assumed_pod_is_binding_until_the_api_server_shows_its_node() -> None:
    engine = build_engine(nodes=[make_node("a", cpu=2)], pods=[make_member("p")], objects=[make_group()])
    assert engine.run_session().binds == {"default/p": "a"}
    assert status_of(engine, "p") is TaskStatus.BINDING
    assert idle(engine, "a") == 1000
    engine.handle_update(make_member("p"))  # a late version without a node
    assert status_of(engine, "p") is TaskStatus.BINDING
    running = make_member("p", node="a")
    engine.cache.add_pod(running)
    engine.handle_update(running)
    assert status_of(engine, "p") is TaskStatus.RUNNING
    assert idle(engine, "a") == 1000
    assert not engine.run_session().binds


def test_a_pod_without_a_group_only_uses_resources() -> None:
    engine = make_engine(nodes=[make_node("a", cpu=2)])
    stranger = make_pod("stranger", cpu=1, node="a")
    add_pod(engine, stranger)
    assert idle(engine, "a") == 1000
    with engine.session() as session:
        assert not session.jobs
    engine.cache.remove_pod(stranger)
    engine.handle_delete(stranger)
    assert idle(engine, "a") == 2000


def test_a_terminating_pod_is_releasing() -> None:
    engine = make_engine(nodes=[make_node("a", cpu=2)], pods=[make_member("p", node="a")], objects=[make_group()])
    assert idle(engine, "a") == 1000
    leaving = terminating(make_member("p", node="a"))
    engine.cache.update_pod(leaving)
    engine.handle_update(leaving)
    with engine.session() as session:
        node = session.node("a")
        assert node is not None
        assert (node.idle.milli_cpu, node.releasing.milli_cpu, node.future_idle.milli_cpu) == (1000, 1000, 2000)


def test_the_cache_can_be_updated_before_or_after_the_cluster_state() -> None:
    for cache_first in (True, False):
        engine = make_engine(nodes=[make_node("a", cpu=2)], pods=[make_member("p", node="a")], objects=[make_group()])
        idle(engine, "a")
        leaving = terminating(make_member("p", node="a"))
        if cache_first:
            engine.cache.update_pod(leaving)
            idle(engine, "a")
            engine.handle_update(leaving)
        else:
            engine.handle_update(leaving)
            idle(engine, "a")
            engine.cache.update_pod(leaving)
        with engine.session() as session:
            assert session.nodes.accounts.releasing[0, 0] == 1000


def test_nodes_are_added_changed_and_removed() -> None:
    engine = make_engine(nodes=[make_node("a", cpu=2), make_node("b", cpu=4)])
    add_pod(engine, make_pod("p", cpu=1, node="b"))
    assert idle(engine, "b") == 3000
    engine.cache.remove_node("a")  # the last row moves to its position
    assert idle(engine, "b") == 3000
    engine.cache.update_node(make_node("b", cpu=8))
    assert idle(engine, "b") == 7000
    engine.cache.add_node(make_node("c", cpu=1))
    assert (idle(engine, "b"), idle(engine, "c")) == (7000, 1000)


def test_oversubscribed_amounts_are_allocatable() -> None:
    node = make_node("a", cpu=2)
    notes = {"volcano.sh/oversubscription-cpu": "500", "volcano.sh/oversubscription-memory": "much"}
    engine = make_engine(nodes=[replace(node, metadata=replace(node.metadata, annotations=notes))])
    assert idle(engine, "a") == 2500


def test_jobs_need_a_group_and_a_queue() -> None:
    pods = [make_member("a", "known"), make_member("b", "unknown"), make_member("c", "queueless")]
    engine = make_engine(pods=pods, objects=[make_group("known"), make_group("queueless", queue="nowhere")])
    with engine.session() as session:
        assert set(session.jobs) == {"default/known"}
    engine.cache.upsert(make_queue("nowhere"))
    engine.cache.upsert(make_group("unknown", queue=""))  # the default queue, which does not exist here
    with engine.session() as session:
        assert set(session.jobs) == {"default/known", "default/queueless"}
    engine.cache.delete(make_group("known"))
    with engine.session() as session:
        assert set(session.jobs) == {"default/queueless"}


def test_the_priority_of_a_job_is_that_of_its_priority_class() -> None:
    groups = [make_group("high", priority_class_name="high"), make_group("other", priority_class_name="gone")]
    engine = make_engine(objects=groups)
    with engine.session() as session:
        assert {job.name: job.priority for job in session.jobs.values()} == {"high": 0, "other": 0}
    engine.cache.upsert(PriorityClass(metadata=groups[0].metadata.__class__(name="high"), value=10))
    engine.cache.upsert(
        PriorityClass(metadata=groups[0].metadata.__class__(name="usual"), value=3, global_default=True)
    )
    with engine.session() as session:
        assert {job.name: job.priority for job in session.jobs.values()} == {"high": 10, "other": 3}


def test_pods_of_other_schedulers_are_ignored_until_they_have_a_node() -> None:
    pod = make_member("p")
    other = replace(pod, spec=replace(pod.spec, scheduler_name="other"))
    engine = make_engine(pods=[other], objects=[make_group()])
    with engine.session() as session:
        assert not session.jobs["default/job"].tasks


def test_a_session_without_decisions_changes_nothing() -> None:
    pods = [make_member("p"), make_member("r", node="a")]
    engine = build_engine(nodes=[make_node("a", cpu=2)], pods=pods, objects=[make_group()])
    with engine.session() as session:
        before = account_rows(session.nodes.accounts)
    with engine.session() as session:
        assert account_rows(session.nodes.accounts) == before


def test_resources_used_by_another_engine_meanwhile_are_not_assigned_again() -> None:
    pods = [make_member(f"job-w-{number}") for number in range(2)]
    engine = build_engine(nodes=[make_node("a", cpu=2)], pods=pods, objects=[make_group(min_member=2)])
    with engine.session() as session:
        job = session.jobs["default/job"]
        statement = session.statement()
        for task in list(job.pending.values()):
            assert session.pre_predicate(task) is None
            assert statement.allocate(task, "a")
        engine.cache.add_pod(make_pod("rival", cpu=1, node="a"))
        assert not statement.commit()
        assert job.count(TaskStatus.PENDING) == 2
    assert idle(engine, "a") == 1000
    engine.cache.remove_pod(make_pod("rival", cpu=1, node="a"))
    assert len(engine.run_session().binds) == 2


def test_unrelated_changes_of_another_engine_do_not_matter() -> None:
    nodes = [make_node("a", cpu=2), make_node("b", cpu=2)]
    engine = build_engine(nodes=nodes, pods=[make_member("p")], objects=[make_group()])
    with engine.session() as session:
        (task,) = session.jobs["default/job"].tasks.values()
        session.pre_predicate(task)
        statement = session.statement()
        assert statement.allocate(task, "a")
        engine.cache.add_pod(make_pod("rival", cpu=1, node="b"))
        assert statement.commit()
    assert (idle(engine, "a"), idle(engine, "b")) == (1000, 1000)


def test_resources_of_nominated_pods_are_reserved() -> None:
    engine = build_engine(nodes=[make_node("a", cpu=2)], pods=[make_member("p")], objects=[make_group()])
    nominations = engine.handle.nominator
    theirs = PodInfo(make_pod("theirs", cpu=2))
    nominations.nominate(theirs, "a")
    assert not engine.run_session().binds
    nominations.delete_nomination(theirs.uid)
    assert engine.run_session().binds == {"default/p": "a"}


def future_idle_after(engine: BatchEngine, change: Callable[[], None], step: int) -> float:
    """The future idle amount of a node when a change happens in one step of the opening."""
    opening = engine._open_session(SessionResult())
    session: Session | None = None
    while session is None:
        if step == 0:
            change()
        step -= 1
        try:
            next(opening)
        except StopIteration as opened:
            session = opened.value
    assert session is not None
    node = session.node("a")
    assert node is not None
    return node.future_idle.get("cpu")


@pytest.mark.parametrize("step", range(12))
def test_a_nomination_is_not_counted_without_its_victim(step: int) -> None:
    """While a session opens, a victim is chosen or deleted. No second pod must be evicted for the same purpose."""
    theirs, weak = PodInfo(make_pod("theirs", cpu=1)), make_pod("weak", cpu=1, node="a")

    def choose_victim(engine: BatchEngine) -> None:
        engine.handle.nominator.nominate(theirs, "a")
        engine.handle.nominator.add_victim(weak.uid, "a", theirs.key)

    def delete_victim(engine: BatchEngine) -> None:
        engine.handle.nominator.remove_victim(weak.uid)
        engine.cache.remove_pod(weak)

    engine = build_engine(nodes=[make_node("a", cpu=1)], pods=[weak], objects=[make_group()])
    assert future_idle_after(engine, lambda: choose_victim(engine), step) >= 0  # commits detect the pod
    engine = build_engine(nodes=[make_node("a", cpu=1)], pods=[weak], objects=[make_group()])
    choose_victim(engine)
    assert future_idle_after(engine, lambda: delete_victim(engine), step) == 0


def test_pipelined_tasks_are_nominated_until_they_are_placed() -> None:
    pods = [make_member("p"), terminating(make_member("old", "", node="a"))]
    engine = build_engine(nodes=[make_node("a", cpu=1)], pods=pods, objects=[make_group()])
    assert engine.run_session().pipelined == {"default/p": "a"}
    assert [info.uid for info in engine.handle.nominator.on_node("a")] == ["pod-p"]
    engine.cache.remove_pod(pods[1])
    assert engine.run_session().binds == {"default/p": "a"}
    assert not engine.handle.nominator.nodes()


def test_a_node_with_only_cpu_and_memory_counts_pods_after_the_first_one_leaves() -> None:
    """Volcano's `Resource.sub` ignores scalars when the left side has no map of them; `Add` creates the map."""
    bare = make_node("a", allocatable={"cpu": "4", "memory": "4Gi"})
    engine = make_engine(nodes=[bare], pods=[make_member(f"p{n}", node="a") for n in range(3)], objects=[make_group()])
    for _ in range(2):  # every session starts anew
        with engine.session() as session:
            node = session.node("a")
            assert node is not None
            assert (node.idle.get("pods"), node.used.get("pods"), node.future_idle.get("pods")) == (0, 3, 0)
            statement = session.statement()
            for task in tasks_of(session, "p0", "p1"):
                statement.evict(task, "test")
            assert (node.idle.get("pods"), node.future_idle.get("pods")) == (0, 2)
            statement.discard()
            assert (node.idle.get("pods"), node.idle.milli_cpu, node.future_idle.get("pods")) == (0, 1000, 0)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda engine: add_pod(engine, make_pod("late", cpu="1", node="a")), id="pod-comes"),
        pytest.param(lambda engine: engine.cache.remove_pod(make_pod("s0", node="a")), id="pod-goes"),
        pytest.param(lambda engine: engine.cache.add_node(make_node("d", cpu=1)), id="node-comes"),
        pytest.param(lambda engine: engine.cache.remove_node("a"), id="node-goes"),
        pytest.param(lambda engine: engine.cache.update_node(make_node("a", cpu=6)), id="node-grows"),
    ],
)
def test_an_interrupted_opening_counts_the_same_as_a_new_engine(
    turns: int, goes_on: bool, change: Callable[[BatchEngine], None]
) -> None:
    """A change happens after each of its steps; then the opening continues or is abandoned."""
    cluster = [make_node(name, cpu=4) for name in "abc"]
    pods = [make_member("p"), make_member("q", node="c")]
    engine = build_engine(nodes=cluster, pods=pods, objects=[make_group()])
    with mock.patch.multiple(ledger_module, _CHANGES_PER_STEP=1, _ROWS_PER_STEP=1):
        assert engine.run_session().binds
        with engine.session() as session:  # leaves a row that only this session changed
            session.statement().evict(*tasks_of(session, "q"), "test")
        for number, node in enumerate("ab"):
            add_pod(engine, make_pod(f"s{number}", cpu="250m", node=node))
        opening = engine.run_session_steps(SessionResult())
        for _ in islice(opening, turns):
            pass
        change(engine)
        if not goes_on:
            opening.close()
        for _ in opening:
            pass
    assert used(engine) == used(build_engine(cache=engine.cache))


def used(engine: BatchEngine) -> dict[str, tuple[str, str, int]]:
    with engine.session() as session:
        columns = session.snapshot.nodes
        counts = {name: int(columns.pod_count[row]) for row, name in enumerate(columns.names)}
        return {node.name: (str(node.used), str(node.idle), counts[node.name]) for node in session.nodes}
