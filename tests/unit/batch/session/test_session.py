from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bayplan.batch.config.scheduler_conf import PluginOption
from bayplan.batch.evaluation.node_points import NODE_STATIC, ROW_LOCAL, ScoredRows, same_for_all
from bayplan.batch.model.nodes import Node, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import BatchPluginSet
from bayplan.batch.session import extension_points
from bayplan.batch.session.session import Session
from bayplan.errors import PluginError
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.status import Status, error, unresolvable, unschedulable
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, make_queue, open_session, tasks_of
from support.builders.batch_engines import GANGS, build_engine


def test_every_point_has_a_method_to_register_and_a_method_to_call() -> None:
    callers = {"job_valid": "job_invalid", "node_map": "reduced_scores", "node_reduce": "reduced_scores"}
    callers |= dict.fromkeys(("predicate",), "evaluate_class") | dict.fromkeys(
        ("node_order", "batch_node_order"), "scores"
    )
    callers |= {"hyper_node_order": "hyper_node_scores", "cluster_order": "call_point", "namespace_order": "call_point"}
    for point in extension_points.POINTS:
        assert hasattr(Session, f"add_{point.name}_fn") or hasattr(Session, f"add_{point.name}_fns"), point.name
        assert hasattr(Session, callers.get(point.name, point.name)), point.name


@pytest.mark.parametrize(
    ("point", "flags", "open_"),
    [
        pytest.param(extension_points.JOB_ORDER, {"enableJobOrder": True}, True, id="on"),
        pytest.param(extension_points.JOB_ORDER, {"enableJobOrder": False}, False, id="off"),
        pytest.param(extension_points.JOB_ORDER, {}, False, id="unset-is-off"),
        pytest.param(extension_points.JOB_VALID, {}, True, id="no-switch"),
        pytest.param(extension_points.SIMULATE_ADD_TASK, {"enabledAllocatable": True}, True, id="either-of-two"),
        pytest.param(extension_points.JOB_ENQUEUEABLE, {"enableJobEnqueued": True}, True, id="its-own-spelling"),
        pytest.param(extension_points.CLUSTER_ORDER, {"EnabledClusterOrder": True}, True, id="a-capital"),
    ],
)
def test_switches(point: extension_points.SessionPoint[Any], flags: dict[str, bool], open_: bool) -> None:
    assert point.is_enabled_for(PluginOption("p", flags)) is open_


class RegisteringPlugin:
    """Calls a function of the test to register."""

    name = "asker"
    registering: Any = None

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        type(self).registering(session)


def with_fns(register: Any, **world: Any) -> Any:
    class TestPlugin(RegisteringPlugin):
        registering = staticmethod(register)

    nodes = world.pop("nodes", [make_node(name, cpu=4) for name in "abc"])
    pods = world.pop("pods", [make_member("p")])
    return open_session(TestPlugin, nodes=nodes, pods=pods, objects=[make_group()], **world)


def test_a_failing_plugin_is_reported_and_the_session_continues() -> None:
    class FailingPlugin(RegisteringPlugin):
        name = "broken"

        def on_session_open(self, session: Session) -> None:
            session.add_overused_fn(self.name, lambda _: 1 / 0 > 0)
            raise LookupError("my file is gone")

    with make_engine(FailingPlugin).session() as session:
        (fault,) = session.faults
        assert fault.startswith('plugin "broken" at on_session_open: LookupError: my file is gone (test_session.py:')
        assert session.overused(session.queues["q"]) is False
        assert 'plugin "broken" at overused: ZeroDivisionError: division by zero' in session.faults[1]


def test_an_unknown_plugin_is_ignored() -> None:
    conf = GANGS.replace("name: priority", "name: unknown")
    outcome = build_engine(
        conf=conf, nodes=[make_node("a")], pods=[make_member("p")], objects=[make_group()]
    ).run_session()
    assert outcome.faults == ["Failed to get plugin unknown; `bayplan plugin list --batch` lists the known ones"]
    assert outcome.binds == {"default/p": "a"}


def test_a_plugin_needs_a_name_and_on_session_open() -> None:
    with pytest.raises(PluginError, match="has no `name`"):
        BatchPluginSet([type("Nameless", (), {"on_session_open": lambda *_: None})])
    with pytest.raises(PluginError, match="on_session_open"):
        BatchPluginSet([type("Mute", (), {"name": "mute"})])
    with pytest.raises(PluginError, match='two batch plugins are called "gang"'):
        default_batch_plugins().with_plugins(type("Gang", (), {"name": "gang", "on_session_open": lambda *_: None}))


# Node functions


def feasible(session: Session) -> list[str]:
    (task,) = tasks_of(session, "p")
    mask = session.evaluate_class(task).rows_to_allocate(task)
    return [name for name, yes in zip(session.nodes.names, mask, strict=True) if yes]


def test_predicates_in_both_forms_give_equal_results() -> None:
    def by_node(task: Task, node: Node) -> Status | None:  # noqa: ARG001
        return unresolvable("not b") if node.name == "b" else None

    def by_table(task: Task, nodes: Nodes) -> Any:  # noqa: ARG001
        yield Rejection(np.array([name == "b" for name in nodes.names]), "not b", resolvable=False)

    for register in (
        lambda session: session.add_predicate_fn("asker", by_node),
        lambda session: session.add_predicate_nodes_fn("asker", by_table),
        lambda session: session.add_predicate_nodes_fn("asker", by_table, signature=same_for_all, depends_on=ROW_LOCAL),
    ):
        with with_fns(register) as session:
            assert feasible(session) == ["a", "c"]
            (task,) = tasks_of(session, "p")
            node = session.node("b")
            assert node is not None
            assert [status.message for status in session.predicate(task, node)] == ["not b"]


def test_a_resolvable_rejection_does_not_prevent_preemption() -> None:
    def rejecting(task: Task, node: Node) -> Status | None:  # noqa: ARG001
        return {"a": unschedulable("full"), "b": unresolvable("never"), "c": error("no idea")}.get(node.name)

    with with_fns(lambda session: session.add_predicate_fn("asker", rejecting)) as session:
        (task,) = tasks_of(session, "p")
        evaluation = session.evaluate_class(task)
        assert evaluation.rows_to_allocate(task).tolist() == [False, False, False]
        assert evaluation.rows_to_preempt(task).tolist() == [True, False, False]


def test_a_predicate_that_raises_rejects_no_node() -> None:
    def broken(task: Task, node: Node) -> Status | None:  # noqa: ARG001
        raise RuntimeError(node.name)

    with with_fns(lambda session: session.add_predicate_fn("asker", broken)) as session:
        assert feasible(session) == ["a", "b", "c"]
        assert any('plugin "asker"' in fault for fault in session.faults)


def test_scores_of_all_forms_are_summed() -> None:
    def register(session: Session) -> None:
        session.add_node_order_fn("asker", lambda _, node: {"a": 1.0, "b": 2.0}.get(node.name, 0.5))
        session.add_batch_node_order_fn("asker", lambda _, nodes: dict.fromkeys(nodes.names, 10.0))
        session.add_node_map_fn("asker", lambda _, node: 3.9 if node.name == "c" else 0.0)
        session.add_node_reduce_fn("asker", lambda _, raw: {name: float(100 * score) for name, score in raw.items()})

    with with_fns(register) as session:
        (task,) = tasks_of(session, "p")
        totals = session.scores(task, np.ones(3, dtype=np.bool_))
        assert totals is not None
        assert totals.tolist() == [11.0, 12.0, 310.5]
        chosen = session.choose(task, np.ones(3, dtype=np.bool_))
        assert chosen is not None
        assert chosen.name == "c"


def test_column_scores_are_updated_only_for_touched_rows() -> None:
    calls: list[list[str]] = []

    def score(task: Task, nodes: Nodes) -> Any:  # noqa: ARG001
        calls.append(nodes.names)
        return nodes.used("cpu")

    def register(session: Session) -> None:
        session.add_node_order_nodes_fn("asker", score, signature=same_for_all, depends_on=ROW_LOCAL)

    with with_fns(register, pods=[make_member("p"), make_member("other")]) as session:
        task, other = tasks_of(session, "p", "other")
        everywhere = np.ones(3, dtype=np.bool_)
        session.scores(task, everywhere)
        session.statement().allocate(other, "b")
        totals = session.scores(other, everywhere)
        assert totals is not None
        assert totals.tolist() == [0.0, 1000.0, 0.0]
        assert calls == [["a", "b", "c"], ["b"]]


def test_a_score_that_depends_only_on_the_node_is_computed_once() -> None:
    calls: list[list[str]] = []

    def score(task: Task, nodes: Nodes) -> Any:  # noqa: ARG001
        calls.append(nodes.names)
        return np.zeros(len(nodes))

    def register(session: Session) -> None:
        session.add_node_order_nodes_fn("asker", score, signature=same_for_all, depends_on=NODE_STATIC)

    with with_fns(register, pods=[make_member("p"), make_member("other")]) as session:
        task, other = tasks_of(session, "p", "other")
        session.scores(task, np.ones(3, dtype=np.bool_))
        session.statement().allocate(other, "b")
        session.scores(task, np.ones(3, dtype=np.bool_))
        assert len(calls) == 1


def test_a_row_with_a_failed_score_loses_its_per_node_scores() -> None:
    def register(session: Session) -> None:
        session.add_node_order_nodes_fn(
            "asker", lambda _, nodes: ScoredRows(np.full(len(nodes), 5.0), np.array([True, False, False]))
        )
        session.add_batch_node_order_fn("asker", lambda _, nodes: dict.fromkeys(nodes.names, 1.0))

    with with_fns(register) as session:
        (task,) = tasks_of(session, "p")
        totals = session.scores(task, np.ones(3, dtype=np.bool_))
        assert totals is not None
        assert totals.tolist() == [1.0, 6.0, 6.0]


def test_a_batch_scorer_that_fails_leaves_no_node() -> None:
    with with_fns(lambda session: session.add_batch_node_order_fn("asker", lambda *_: error("down"))) as session:
        (task,) = tasks_of(session, "p")
        assert session.choose(task, np.ones(3, dtype=np.bool_)) is None
        only = session.choose(task, np.array([False, True, False]))
        assert only is not None
        assert only.name == "b"  # a single candidate is not scored


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        pytest.param([np.nan, 1.0, 0.0], "b", id="not-a-number-is-never-the-best"),
        pytest.param([np.nan, np.nan, np.nan], None, id="none-can-be-compared"),
        pytest.param([-np.inf, -np.inf, -5.0], "c", id="minus-infinity"),
    ],
)
def test_scores_that_are_not_finite(scores: list[float], chosen: str | None) -> None:
    def register(session: Session) -> None:
        session.add_node_order_nodes_fn("asker", lambda _, nodes: np.array(scores)[nodes.rows])

    with with_fns(register) as session:
        (task,) = tasks_of(session, "p")
        found = session.choose(task, np.ones(3, dtype=np.bool_))
        assert (found.name if found else None) == chosen


def test_the_best_node_can_be_overruled() -> None:
    def register(session: Session) -> None:
        session.add_best_node_fn("asker", lambda _, by_score: by_score[0.0][-1])

    with with_fns(register) as session:
        (task,) = tasks_of(session, "p")
        found = session.choose(task, np.ones(3, dtype=np.bool_))
        assert found is not None
        assert found.name == "c"


def test_defaults_without_registered_functions() -> None:
    pods = [make_member("a", "one"), make_member("b", "two")]
    objects = [make_queue("z"), make_group("one"), make_group("two")]
    with open_session(nodes=[make_node("n")], pods=pods, objects=objects) as session:
        one, two = session.jobs["default/one"], session.jobs["default/two"]
        assert session.job_order(one, two)
        assert session.queue_order(session.queues["q"], session.queues["z"])
        assert session.victim_queue_order(session.queues["z"], session.queues["q"], session.queues["q"])
        assert session.job_ready(one)
        assert session.job_pipelined(one)
        assert not session.job_starving(one)
        assert session.job_enqueueable(one)
        assert not session.overused(session.queues["q"])
        (task,) = tasks_of(session, "a")
        assert session.allocatable(session.queues["q"], task)
        assert session.preemptable(task, [task]) == []


def test_an_aborted_action_is_reported_and_the_next_one_runs() -> None:
    class FailingAction:
        name = "enqueue"

        def initialize(self) -> None: ...
        def uninitialize(self) -> None: ...
        def execute(self, session: Session) -> None:
            raise RuntimeError(f"{len(session.jobs)} jobs are too many")

    engine = build_engine(nodes=[make_node("a")], pods=[make_member("p")], objects=[make_group(phase="Inqueue")])
    engine._actions = engine._actions.with_actions(FailingAction())
    outcome = engine.run_session()
    assert outcome.faults == ["action enqueue was aborted: RuntimeError: 1 jobs are too many (test_session.py:288)"]
    assert outcome.binds == {"default/p": "a"}
