"""What plugins hand to the binder from a session: when they are asked, in which order, and what a failure costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import ReadOnlyTask, Task
from bayplan.batch.plugins.gang import GangPlugin
from bayplan.batch.session.close_session import fit_error, task_reason
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.registration import RegistrationError
from bayplan.batch.session.session import Session
from bayplan.clock import ManualClock
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.bind_request_mutation import Mutator
from bayplan.testing.builders import make_node
from support.builders.batch import (
    make_engine,
    make_group,
    make_member,
    tasks_of,
)

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


def saying(plugin: str, said: Any, on_error: str = "skip") -> type[Any]:
    """A plugin that answers this, or raises it."""

    class Saying(handing(plugin, on_error=on_error)):  # type: ignore[misc]
        def told(self, task: Task, node_name: str) -> Any:  # noqa: ARG002
            if isinstance(said, BaseException):
                raise said
            return said

    return Saying


def failing_for(name: str) -> type[Any]:
    """A plugin that must not fail, and does for one task."""

    class Failing(handing("bad", on_error="fail")):  # type: ignore[misc]
        def told(self, task: Task, node_name: str) -> Any:
            if task.name == name:
                raise ValueError("no parameters for this one")
            return super().told(task, node_name)

    return Failing


def engine_with(*plugins: type[Any], by_binder: bool = True, least: int = 1) -> BatchEngine:
    nodes = [make_node("a", cpu=2), make_node("b", cpu=2)]
    pods = [make_member("new"), make_member("next"), make_member("old", "other", node="a")]
    engine = make_engine(*plugins, nodes=nodes, pods=pods, objects=[make_group(min_member=least), make_group("other")])
    if by_binder:
        engine.handle.bind_request_factory = BindRequestFactory(ManualClock())
    ASKED.clear()
    return engine


@contextmanager
def opened(engine: BatchEngine, outcome: SessionResult | None = None) -> Iterator[Session]:
    with engine.session(outcome) as session:
        yield session


def test_plugins_are_asked_once_for_each_request_at_the_commit_in_the_order_of_the_tiers() -> None:
    outcome = SessionResult()
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
    outcome = SessionResult()
    with opened(engine_with(), outcome) as session:
        (new,) = tasks_of(session, "new")
        assert session.mutate_bind_request_annotations(new, "b") == {}
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert outcome.request_annotations == {new.key: {}}


def test_where_pods_are_bound_by_us_nobody_is_asked() -> None:
    outcome = SessionResult()
    with opened(engine_with(handing("one"), by_binder=False), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert (ASKED, outcome.request_annotations) == ([], {})
    assert outcome.binds == {new.key: "b"}


def test_a_plugin_that_fails_costs_its_own_annotations() -> None:
    outcome = SessionResult()
    with opened(engine_with(handing("bad", fault="oops"), handing("good")), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
        assert new.status is TaskStatus.BINDING
    assert outcome.request_annotations[new.key] == {"x.kai.scheduler/who": "good", "good.kai.scheduler/node": "b"}


def test_a_plugin_that_must_not_fail_undoes_the_placing() -> None:
    outcome = SessionResult()
    engine = engine_with(handing("bad", fault="oops", on_error="fail"))
    with opened(engine, outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
        assert (new.status, new.node_name) == (TaskStatus.PENDING, "")
    assert outcome.binds == outcome.request_annotations == {}
    assert engine.handle.bind_request_factory is not None
    assert engine.handle.bind_request_factory.mutation.errors.labels("bad").value == 1


@pytest.mark.parametrize(("least", "bound"), [(2, []), (1, ["new"])], ids=["gang", "one is enough"])
def test_tasks_start_together_or_not_at_all_where_a_plugin_that_must_not_fails_for_one(
    least: int, bound: list[str]
) -> None:
    outcome = SessionResult()
    engine = engine_with(GangPlugin, failing_for("next"), least=least)
    with opened(engine, outcome) as session:
        new, following = tasks_of(session, "new", "next")
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert statement.allocate(following, "b")
        assert statement.commit() == bool(bound)
        assert following.status is TaskStatus.PENDING
        assert session.node("b").used.milli_cpu == 1000 * len(bound)
        why = 'plugin "bad" at mutate_bind_request: ValueError: no parameters for this one'
        job = session.jobs[following.job]
        assert task_reason(job, following).message == why
        assert fit_error(job).endswith(f"Origin reason is: {why}")
    assert list(outcome.binds) == [f"default/{name}" for name in bound]


def test_what_is_allocated_at_once_waits_too_where_a_plugin_that_must_not_fails_for_one() -> None:
    outcome = SessionResult()
    with opened(engine_with(GangPlugin, failing_for("new"), least=2), outcome) as session:
        new, following = tasks_of(session, "new", "next")
        assert session.allocate(new, session.node("b")) is None
        refused = session.allocate(following, session.node("b"))
        assert refused is not None
        assert "no parameters for this one" in refused.message
    assert outcome.binds == {}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"bad.kai.scheduler/x": "\udcff"}, id="what cannot be written"),
        pytest.param(asyncio.CancelledError(), id="cancelled"),
    ],
)
def test_whatever_a_plugin_does_the_rest_of_the_statement_is_carried_out(answer: Any) -> None:
    outcome = SessionResult()
    with opened(engine_with(saying("bad", answer), handing("good")), outcome) as session:
        new, following = tasks_of(session, "new", "next")
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert statement.allocate(following, "b")
        assert statement.commit()
        assert [each.status for each in (new, following)] == [TaskStatus.BINDING] * 2
    assert outcome.binds == {new.key: "b", following.key: "b"}
    assert outcome.request_annotations[new.key] == {"x.kai.scheduler/who": "good", "good.kai.scheduler/node": "b"}


def test_a_task_is_bound_where_it_was_allocated_whatever_plugins_do_to_it() -> None:
    def elsewhere(task: Task, node_name: str) -> None:  # noqa: ARG001
        task.node_name = "a"

    def by_another_way(task: Task, node_name: str) -> dict[str, str]:
        found = next(each for each in (new, following) if each == task)
        found.node_name = "a"
        return {"second.kai.scheduler/was": f"{task.node_name} {node_name}"}

    outcome = SessionResult()
    engine = engine_with(handing("first"))
    with opened(engine, outcome) as session:
        new, following = tasks_of(session, "new", "next")
        session.bind_request_mutate_fns[:] = [Mutator("first", elsewhere), Mutator("second", by_another_way)]
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert statement.commit()
        assert new.node_name == "b"
    assert outcome.binds == {new.key: "b"}
    assert outcome.request_annotations[new.key] == {"second.kai.scheduler/was": "b b"}
    assert engine.handle.bind_request_factory is not None
    assert engine.handle.bind_request_factory.mutation.errors.labels("first").value == 1


def test_a_shown_task_is_the_task_for_whoever_looks() -> None:
    task = Task(make_member("new-1-7"))
    shown = ReadOnlyTask(task)
    assert {task: "found"}[shown] == "found"
    assert isinstance(shown, Task)
    assert (shown.index, shown.info.pod, shown.demand_key) == (7, task.pod, task.demand_key)
    assert shown != ReadOnlyTask(Task(make_member("other")))
    with pytest.raises(AttributeError, match="is read-only here"):
        shown.status = TaskStatus.BINDING
    assert task.status is TaskStatus.PENDING


def test_what_cannot_be_called_is_refused_where_it_is_registered() -> None:
    with opened(engine_with()) as session, pytest.raises(RegistrationError, match="is not callable; pass a function"):
        session.add_bind_request_mutate_fn("text")  # type: ignore[arg-type]
