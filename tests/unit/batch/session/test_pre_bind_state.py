"""Bind request annotations of plugins: when they are collected, in which order, and the effect of a failure."""

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
from support.builders.batch import make_engine, make_group, make_member, tasks_of

ASKED: list[tuple[str, str, str]] = []


def annotating_plugin(plugin: str, **answer: Any) -> type[Any]:
    """A plugin that adds annotations to bind requests."""

    class Handing:
        name = plugin

        def __init__(self, arguments: Any) -> None:
            pass

        def on_session_open(self, session: Session) -> None:
            session.add_bind_request_mutate_fn(self.annotations, on_error=answer.get("on_error", "skip"))

        def annotations(self, task: Task, node_name: str) -> Any:
            ASKED.append((plugin, task.name, node_name))
            assert task.node_name == node_name
            if "fault" in answer:
                raise ValueError(answer["fault"])
            return {"x.kai.scheduler/who": plugin, f"{plugin}.kai.scheduler/node": node_name}

    return Handing


def answering_plugin(plugin: str, answer: Any, on_error: str = "skip") -> type[Any]:
    """A plugin that returns a value or raises an exception."""

    class Saying(annotating_plugin(plugin, on_error=on_error)):  # type: ignore[misc]
        def annotations(self, task: Task, node_name: str) -> Any:  # noqa: ARG002
            if isinstance(answer, BaseException):
                raise answer
            return answer

    return Saying


def failing_plugin(name: str) -> type[Any]:
    """A plugin that must not fail, and fails for one task."""

    class Failing(annotating_plugin("bad", on_error="fail")):  # type: ignore[misc]
        def annotations(self, task: Task, node_name: str) -> Any:
            if task.name == name:
                raise ValueError("no parameters for this one")
            return super().annotations(task, node_name)

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


def test_plugins_are_called_once_per_request_at_the_commit_in_tier_order() -> None:
    outcome = SessionResult()
    with opened(engine_with(annotating_plugin("first"), annotating_plugin("second")), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert ASKED == []  # not in trials
        assert statement.commit()
        assert ASKED == [("first", "new", "b"), ("second", "new", "b")]
    assert outcome.request_annotations == {
        new.key: {
            "x.kai.scheduler/who": "second",  # the last plugin wins
            "first.kai.scheduler/node": "b",
            "second.kai.scheduler/node": "b",
        }
    }


def test_plugins_are_not_called_for_pipelined_undone_or_evicted_tasks() -> None:
    with opened(engine_with(annotating_plugin("one"))) as session:
        new, following, old = tasks_of(session, "new", "next", "old")
        with session.statement() as trial:
            assert trial.allocate(following, "b")
        statement = session.statement()
        statement.evict(old, "because")
        assert statement.pipeline(new, "a")
        assert statement.commit()
    assert ASKED == []


def test_each_session_has_its_own_functions() -> None:
    engine = engine_with(annotating_plugin("one"))
    for _ in range(2):
        with opened(engine) as session:
            assert [each.plugin for each in session.bind_request_mutate_fns] == ["one"]


def test_a_function_registered_twice_is_called_twice() -> None:
    with opened(engine_with(annotating_plugin("one"))) as session:
        (mutator,) = session.bind_request_mutate_fns
        session.add_bind_request_mutate_fn(mutator.fn)
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert ASKED == [("one", "new", "b")] * 2


def test_without_functions_a_request_has_empty_annotations() -> None:
    outcome = SessionResult()
    with opened(engine_with(), outcome) as session:
        (new,) = tasks_of(session, "new")
        assert session.mutate_bind_request_annotations(new, "b") == {}
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert outcome.request_annotations == {new.key: {}}


def test_without_the_binder_plugins_are_not_called() -> None:
    outcome = SessionResult()
    with opened(engine_with(annotating_plugin("one"), by_binder=False), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
    assert (ASKED, outcome.request_annotations) == ([], {})
    assert outcome.binds == {new.key: "b"}


def test_a_failing_plugin_loses_its_own_annotations() -> None:
    outcome = SessionResult()
    with opened(engine_with(annotating_plugin("bad", fault="oops"), annotating_plugin("good")), outcome) as session:
        (new,) = tasks_of(session, "new")
        statement = session.statement()
        statement.allocate(new, "b")
        statement.commit()
        assert new.status is TaskStatus.BINDING
    assert outcome.request_annotations[new.key] == {"x.kai.scheduler/who": "good", "good.kai.scheduler/node": "b"}


def test_a_failing_required_plugin_undoes_the_placement() -> None:
    outcome = SessionResult()
    engine = engine_with(annotating_plugin("bad", fault="oops", on_error="fail"))
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
def test_a_gang_does_not_start_when_a_required_plugin_fails_for_one_task(least: int, bound: list[str]) -> None:
    outcome = SessionResult()
    engine = engine_with(GangPlugin, failing_plugin("next"), least=least)
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


def test_directly_allocated_tasks_wait_when_a_required_plugin_fails_for_one_task() -> None:
    outcome = SessionResult()
    with opened(engine_with(GangPlugin, failing_plugin("new"), least=2), outcome) as session:
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
def test_invalid_answers_do_not_stop_the_rest_of_the_statement(answer: Any) -> None:
    outcome = SessionResult()
    with opened(engine_with(answering_plugin("bad", answer), annotating_plugin("good")), outcome) as session:
        new, following = tasks_of(session, "new", "next")
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert statement.allocate(following, "b")
        assert statement.commit()
        assert [each.status for each in (new, following)] == [TaskStatus.BINDING] * 2
    assert outcome.binds == {new.key: "b", following.key: "b"}
    assert outcome.request_annotations[new.key] == {"x.kai.scheduler/who": "good", "good.kai.scheduler/node": "b"}


def test_a_task_is_bound_where_it_was_allocated_even_if_a_plugin_changes_it() -> None:
    def elsewhere(task: Task, node_name: str) -> None:  # noqa: ARG001
        task.node_name = "a"

    def change_original_task(task: Task, node_name: str) -> dict[str, str]:
        found = next(each for each in (new, following) if each == task)
        found.node_name = "a"
        return {"second.kai.scheduler/was": f"{task.node_name} {node_name}"}

    outcome = SessionResult()
    engine = engine_with(annotating_plugin("first"))
    with opened(engine, outcome) as session:
        new, following = tasks_of(session, "new", "next")
        session.bind_request_mutate_fns[:] = [Mutator("first", elsewhere), Mutator("second", change_original_task)]
        statement = session.statement()
        assert statement.allocate(new, "b")
        assert statement.commit()
        assert new.node_name == "b"
    assert outcome.binds == {new.key: "b"}
    assert outcome.request_annotations[new.key] == {"second.kai.scheduler/was": "b b"}
    assert engine.handle.bind_request_factory is not None
    assert engine.handle.bind_request_factory.mutation.errors.labels("first").value == 1


def test_a_read_only_task_equals_its_task() -> None:
    task = Task(make_member("new-1-7"))
    shown = ReadOnlyTask(task)
    assert {task: "found"}[shown] == "found"
    assert isinstance(shown, Task)
    assert (shown.index, shown.info.pod, shown.demand_key) == (7, task.pod, task.demand_key)
    assert shown != ReadOnlyTask(Task(make_member("other")))
    with pytest.raises(AttributeError, match="is read-only here"):
        shown.status = TaskStatus.BINDING
    assert task.status is TaskStatus.PENDING


def test_a_function_that_is_not_callable_is_rejected_at_registration() -> None:
    with opened(engine_with()) as session, pytest.raises(RegistrationError, match="is not callable; pass a function"):
        session.add_bind_request_mutate_fn("text")  # type: ignore[arg-type]
