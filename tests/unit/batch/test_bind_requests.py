"""What plugins hand to the binder from a session: when they are asked, in which order, and what a failure costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batch_builders import make_engine, make_group, make_member, tasks_of
from bayplan.batch.engine import BatchEngine
from bayplan.batch.outcome import Outcome
from bayplan.batch.registration import Misregistered
from bayplan.batch.session import Session
from bayplan.batch.statuses import TaskStatus
from bayplan.batch.tasks import Task
from bayplan.clock import ManualClock
from bayplan.framework.bind_requests import BindRequestDesk
from bayplan.testing.builders import make_node

ASKED: list[tuple[str, str, str]] = []


def handing(plugin: str, **answer: Any) -> type[Any]:
    """A plugin that hands this to the binder."""

    class Handing:
        name = plugin

        def __init__(self, arguments: Any) -> None:
            pass

        def on_session_open(self, session: Session) -> None:
            session.add_bind_request_mutate_fn(self.told, on_error=answer.get("on_error", "skip"))

        def told(self, task: Task, node_name: str) -> Any:
            ASKED.append((plugin, task.name, node_name))
            assert task.node_name == node_name
            if "fault" in answer:
                raise ValueError(answer["fault"])
            return {"x.kai.scheduler/who": plugin, f"{plugin}.kai.scheduler/node": node_name}

    return Handing


def engine_with(*plugins: type[Any], by_binder: bool = True) -> BatchEngine:
    nodes = [make_node("a", cpu=2), make_node("b", cpu=2)]
    pods = [make_member("new"), make_member("next"), make_member("old", "other", node="a")]
    engine = make_engine(*plugins, nodes=nodes, pods=pods, objects=[make_group(), make_group("other")])
    if by_binder:
        engine.handle.desk = BindRequestDesk(ManualClock())
    ASKED.clear()
    return engine


@contextmanager
def opened(engine: BatchEngine, outcome: Outcome | None = None) -> Iterator[Session]:
    with engine.session(outcome) as session:
        yield session


def test_plugins_are_asked_once_for_each_request_at_the_commit_in_the_order_of_the_tiers() -> None:
    outcome = Outcome()
    with opened(engine_with(handing("first"), handing("second")), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert ASKED == []  # not in trials
        assert statement.commit()
        assert ASKED == [("first", "new", "b"), ("second", "new", "b")]
    assert outcome.request_annotations == {
        new.key: {
            "x.kai.scheduler/who": "second",  # the later wins
            "first.kai.scheduler/node": "b",
            "second.kai.scheduler/node": "b",
        }
    }


def test_nobody_is_asked_for_what_is_only_promised_undone_or_evicted() -> None:
    with opened(engine_with(handing("one"))) as session:
        new, following, old = tasks_of(session, "new", "next", "old")
        with session.statement() as trial:
            assert trial.allocate(following, "b")
        statement = session.statement()
        statement.evict(old, "because")
        assert statement.pipeline(new, "a")
        assert statement.commit()
    assert ASKED == []


def test_a_session_has_functions_of_its_own() -> None:
    engine = engine_with(handing("one"))
    for _ in range(2):
        with opened(engine) as session:
            assert [each.plugin for each in session.bind_request_mutate_fns] == ["one"]


def test_one_that_registers_twice_is_asked_twice() -> None:
    with opened(engine_with(handing("one"))) as session:
        (mutator,) = session.bind_request_mutate_fns
        session.add_bind_request_mutate_fn(mutator.fn)
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert ASKED == [("one", "new", "b")] * 2


def test_where_no_function_is_registered_a_request_has_empty_annotations() -> None:
    outcome = Outcome()
    with opened(engine_with(), outcome) as session:
        (new,) = tasks_of(session, "new")
        assert session.mutate_bind_request_annotations(new, "b") == {}
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert outcome.request_annotations == {new.key: {}}


def test_where_pods_are_bound_by_us_nobody_is_asked() -> None:
    outcome = Outcome()
    with opened(engine_with(handing("one"), by_binder=False), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert (ASKED, outcome.request_annotations) == ([], {})
    assert outcome.binds == {new.key: "b"}


def test_a_plugin_that_fails_costs_its_own_annotations() -> None:
    outcome = Outcome()
    with opened(engine_with(handing("bad", fault="oops"), handing("good")), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
        assert new.status is TaskStatus.BINDING
    assert outcome.request_annotations[new.key] == {"x.kai.scheduler/who": "good", "good.kai.scheduler/node": "b"}


def test_a_plugin_that_must_not_fail_undoes_the_placing() -> None:
    outcome = Outcome()
    with opened(engine_with(handing("bad", fault="oops", on_error="fail")), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
        assert (new.status, new.node_name) == (TaskStatus.PENDING, "")
    assert outcome.binds == {}


def test_what_cannot_be_called_is_refused_where_it_is_registered() -> None:
    with opened(engine_with()) as session, pytest.raises(Misregistered, match="cannot be called; pass a function"):
        session.add_bind_request_mutate_fn("text")  # type: ignore[arg-type]
