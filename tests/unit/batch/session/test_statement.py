from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import save_operations
from bayplan.framework.api.status import Status, error
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, tasks_of
from support.builders.batch_engines import account_rows


class Recorder:
    """Records every event; rejects tasks whose name starts with `bad`."""

    name = "recorder"

    def __init__(self, arguments: Any) -> None:  # noqa: ARG002
        self.events: list[str] = []

    def on_session_open(self, session: Session) -> None:
        session.add_event_handler(self.name, allocate=self._allocate, deallocate=self._deallocate)

    def _allocate(self, task: Task) -> Status | None:
        self.events.append(f"+{task.name}")
        return error("not that one") if task.name.startswith("bad") else None

    def _deallocate(self, task: Task) -> None:
        self.events.append(f"-{task.name}")


@pytest.fixture
def engine() -> BatchEngine:
    pods = [
        make_member("new"),
        make_member("bad"),
        make_member("next"),
        make_member("old", "other", node="a"),
        make_member("bound", "other", node="b", phase="Pending"),
    ]
    nodes = [make_node("a", cpu=2), make_node("b", cpu=2)]
    return make_engine(Recorder, nodes=nodes, pods=pods, objects=[make_group(), make_group("other")])


@pytest.fixture
def outcome() -> SessionResult:
    return SessionResult()


@pytest.fixture
def session(engine: BatchEngine, outcome: SessionResult) -> Iterator[Session]:
    with engine.session(outcome) as session:
        yield session


def recorded_events(session: Session) -> list[str]:
    found: list[str] = session.plugins["recorder"].events
    return found


def idle(session: Session, node: str) -> float:
    found = session.node(node)
    assert found is not None
    return found.idle.milli_cpu


def test_operations_take_effect_at_once_and_reach_the_cluster_at_the_commit(
    session: Session, outcome: SessionResult
) -> None:
    new, old = tasks_of(session, "new", "old")
    statement = session.statement()
    assert statement.allocate(new, "b")
    assert (new.status, new.node_name, idle(session, "b")) == (TaskStatus.ALLOCATED, "b", 0)
    statement.evict(old, "because")
    node = session.node("a")
    assert node is not None
    assert (old.status, node.releasing.milli_cpu, node.future_idle.milli_cpu) == (TaskStatus.RELEASING, 1000, 2000)
    assert not outcome.binds
    assert statement.commit()
    assert (outcome.binds, outcome.evicts) == ({"default/new": "b"}, {"default/old": "because"})
    assert new.status is TaskStatus.BINDING
    assert recorded_events(session) == ["+new", "-old"]


def test_a_discarded_statement_only_leaves_its_last_transaction(session: Session) -> None:
    new, bound = tasks_of(session, "new", "bound")
    before = account_rows(session.nodes.accounts)
    statement = session.statement()
    statement.evict(bound, "because")
    assert statement.pipeline(new, "b", eviction_occurred=True)
    statement.discard()
    assert account_rows(session.nodes.accounts) == before
    assert (new.status, new.node_name) == (TaskStatus.PENDING, "")
    assert bound.status is TaskStatus.RUNNING  # Volcano does not restore Bound
    assert new.last_transaction is not None
    assert (new.last_transaction.node_name, new.last_transaction.eviction_occurred) == ("b", True)
    assert recorded_events(session) == ["-bound", "+new", "-new", "+bound"]


def test_a_with_block_discards_without_a_commit(session: Session, outcome: SessionResult) -> None:
    new, other = tasks_of(session, "new", "next")
    with session.statement() as trial:
        trial.allocate(new, "a")
    assert new.status is TaskStatus.PENDING
    with session.statement() as trial:
        trial.allocate(other, "a")
        trial.commit()
    assert outcome.binds == {"default/next": "a"}


def test_a_rejected_operation_is_undone_alone(session: Session) -> None:
    new, bad = tasks_of(session, "new", "bad")
    statement = session.statement()
    assert statement.allocate(new, "a")
    assert not statement.allocate(bad, "b")
    assert (bad.status, bad.node_name, idle(session, "b")) == (TaskStatus.PENDING, "", 1000)
    assert [each.task.name for each in statement.operations] == ["new"]
    assert recorded_events(session) == ["+new", "+bad", "-bad"]


def test_an_unknown_node_rejects_the_operation(session: Session) -> None:
    (new,) = tasks_of(session, "new")
    assert not session.statement().pipeline(new, "nowhere")
    assert new.status is TaskStatus.PENDING


def test_saved_operations_can_be_repeated(session: Session, outcome: SessionResult) -> None:
    new, old = tasks_of(session, "new", "old")
    trial = session.statement()
    trial.evict(old, "because")
    trial.pipeline(new, "a", eviction_occurred=True)
    steps = save_operations(trial)
    trial.discard()
    assert new.last_transaction is not None
    final = session.statement()
    assert final.recover_operations(steps)
    assert (new.status, new.node_name, new.eviction_occurred) == (TaskStatus.PIPELINED, "a", True)
    assert new.last_transaction is None  # as it was when the trial was saved
    final.commit()
    assert outcome.evicts == {"default/old": "because"}


def test_merged_operations_belong_to_the_merging_statement(session: Session) -> None:
    new, other = tasks_of(session, "new", "next")
    one, two = session.statement(), session.statement()
    one.allocate(new, "a")
    two.allocate(other, "b")
    one.merge(two)
    assert (len(one), len(two)) == (2, 0)
    one.discard()
    assert {new.status, other.status} == {TaskStatus.PENDING}


def test_a_refused_bind_is_undone_and_the_rest_stay(session: Session, outcome: SessionResult) -> None:
    new, other = tasks_of(session, "new", "next")
    statement = session.statement()
    statement.allocate(new, "a")
    statement.allocate(other, "a")  # without a check of its resources
    assert statement.commit()
    assert outcome.binds == {"default/new": "a"}
    assert (other.status, other.node_name) == (TaskStatus.PENDING, "")


def test_allocate_binds_all_tasks_of_a_ready_job(session: Session, outcome: SessionResult) -> None:
    new, other = tasks_of(session, "new", "next")
    session.statement().allocate(other, "b")
    node = session.node("a")
    assert node is not None
    assert session.allocate(new, node) is None
    assert outcome.binds == {"default/new": "a", "default/next": "b"}


def test_after_the_session_tasks_have_the_state_of_the_cluster(engine: BatchEngine) -> None:
    with engine.session() as session:
        new, old, other = tasks_of(session, "new", "old", "next")
        statement = session.statement()
        statement.evict(old, "because")
        statement.pipeline(new, "a")
        committed = session.statement()
        committed.allocate(other, "b")
        committed.commit()
    assert (new.status, new.node_name) == (TaskStatus.PENDING, "")
    assert old.status is TaskStatus.RUNNING
    assert (other.status, other.node_name) == (TaskStatus.BINDING, "b")
    with engine.session() as session:
        assert idle(session, "b") == 0
        assert idle(session, "a") == 1000
