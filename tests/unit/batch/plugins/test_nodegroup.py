from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption
from bayplan.batch.plugins.nodegroup import GROUP_LABEL, NO_AFFINITY, NO_LABEL, UNSATISFIED, NodeGroupPlugin
from bayplan.framework.api.status import Code
from bayplan.objects.volcano.types import NodeGroupAffinity, Queue, QueueAffinity
from bayplan.testing.builders import make_node
from support.builders.batch import (
    make_engine,
    make_group,
    make_member,
    make_queue,
    open_session,
)
from support.builders.batch_scores import predicate_rejections, scores

NODES = [
    make_node("a", labels={GROUP_LABEL: "a"}),
    make_node("b", labels={GROUP_LABEL: "b"}),
    make_node("c", labels={GROUP_LABEL: "c"}),
    make_node("none"),
]


def queue(name: str = "q", *, near: Any = None, away: Any = None, parent: str = "") -> Queue:
    """`near` and `away` are (required, preferred)."""
    if near is None and away is None:
        return make_queue(name, parent=parent)
    affinity = QueueAffinity(
        node_group_affinity=NodeGroupAffinity(*near) if near is not None else None,
        node_group_anti_affinity=NodeGroupAffinity(*away) if away is not None else None,
    )
    return make_queue(name, parent=parent, affinity=affinity)


@pytest.mark.parametrize(
    ("wishes", "arguments", "expected"),
    [
        pytest.param(
            queue(), {}, {"a": NO_AFFINITY, "b": NO_AFFINITY, "c": NO_AFFINITY, "none": NO_LABEL}, id="no-wish-nowhere"
        ),
        pytest.param(
            queue(),
            {"strict": False},
            {"a": NO_AFFINITY, "b": NO_AFFINITY, "c": NO_AFFINITY},
            id="not-strict-the-rest-is-free",
        ),
        pytest.param(
            queue(near=((), ())),
            {"strict": False},
            {"a": NO_AFFINITY, "b": NO_AFFINITY, "c": NO_AFFINITY},
            id="an-empty-wish-is-none",
        ),
        pytest.param(
            queue(near=(("a",), ("b",))),
            {"strict": False},
            {"c": UNSATISFIED, "none": NO_LABEL},
            id="required-or-preferred",
        ),
        pytest.param(
            queue(near=(("a", "b"), ()), away=(("b",), ())),
            {},
            {"b": UNSATISFIED, "c": UNSATISFIED, "none": NO_LABEL},
            id="away-is-stronger",
        ),
        pytest.param(
            queue(away=(("a", "b"), ("b",))),
            {},
            {"a": UNSATISFIED, "c": UNSATISFIED, "none": NO_LABEL},
            id="only-away-leaves-those-that-are-merely-disliked",
        ),
    ],
)
def test_where_a_queue_may_go(wishes: Queue, arguments: dict[str, Any], expected: dict[str, str]) -> None:
    world = {"nodes": NODES, "pods": [make_member("p")], "objects": [wishes, make_group()]}
    with open_session(NodeGroupPlugin, arguments=arguments, **world) as session:
        assert predicate_rejections(session, "p") == {
            name: (Code.UNRESOLVABLE, reason) for name, reason in expected.items()
        }


@pytest.mark.parametrize(
    ("wishes", "ordered", "expected"),
    [
        pytest.param(queue(), False, {"a": 0, "b": 0, "c": 0, "none": 0}, id="no-wish"),
        pytest.param(queue(near=(("a", "b"), ("b",))), False, {"a": 100, "b": 150, "c": 0, "none": 0}, id="adds-up"),
        pytest.param(
            queue(near=(("a",), ()), away=((), ("a", "c"))),
            False,
            {"a": -1, "b": 0, "c": -1, "none": 0},
            id="disliked",
        ),
        pytest.param(queue(near=((), ("b", "a"))), False, {"a": 50, "b": 50, "c": 0, "none": 0}, id="all-the-same"),
        pytest.param(queue(near=((), ("b", "a"))), True, {"a": 25, "b": 50, "c": 0, "none": 0}, id="in-order"),
        pytest.param(
            queue(near=((), ("b", "a", "b"))), True, {"a": 25, "b": 0, "c": 0, "none": 0}, id="named-twice-counts-last"
        ),
    ],
)
def test_scores(wishes: Queue, ordered: bool, expected: dict[str, float]) -> None:
    world = {"nodes": NODES, "pods": [make_member("p")], "objects": [wishes, make_group()]}
    with open_session(NodeGroupPlugin, arguments={"enablePreferredOrder": ordered}, **world) as session:
        assert scores(session, "p") == pytest.approx(expected)


LIKES_A = (("a",), ())
LIKES_B = (("b",), ())


@pytest.mark.parametrize(
    ("queues", "liked"),
    [
        pytest.param([queue(near=LIKES_A), queue("root", near=LIKES_B)], "a", id="its-own-wish"),
        pytest.param([queue(), queue("root", near=LIKES_B)], "b", id="the-root-is-above-all"),
        pytest.param(
            [queue(parent="up"), queue("up", near=LIKES_A), queue("root", near=LIKES_B)], "a", id="the-nearest-decides"
        ),
        pytest.param(
            [queue(parent="up"), queue("up", parent="q"), queue("root", near=LIKES_B)], "", id="a-circle-has-no-root"
        ),
        pytest.param([queue(parent="up"), queue("up", near=LIKES_A, parent="q")], "a", id="a-circle-with-a-wish-in-it"),
        pytest.param([queue(parent="gone"), queue("root", near=LIKES_B)], "", id="no-such-parent"),
    ],
)
def test_wishes_are_inherited(queues: list[Queue], liked: str) -> None:
    engine = make_engine(NodeGroupPlugin, nodes=NODES, pods=[make_member("p")], objects=[*queues, make_group()])
    option = PluginOption(NodeGroupPlugin.name, flags={"enableHierarchy": True}).with_default_flags()
    engine.configuration = BatchConfiguration(tiers=((option,),))
    with engine.session() as session:
        assert {name for name, score in scores(session, "p").items() if score} == ({liked} if liked else set())


def test_a_task_without_a_job_is_an_error() -> None:
    with open_session(NodeGroupPlugin, nodes=NODES, pods=[make_member("p")], objects=[make_group()]) as session:
        job = session.jobs.pop("default/job")
        (task,) = job.tasks.values()
        (status,) = session.predicate(task, session.nodes[0])
        assert (status.code, status.message) == (Code.ERROR, "job default/job not found in session")
