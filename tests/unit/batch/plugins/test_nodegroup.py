from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption
from bayplan.batch.plugins.nodegroup import GROUP_LABEL, NO_AFFINITY, NO_LABEL, UNSATISFIED, NodeGroupPlugin
from bayplan.framework.api.status import Code
from bayplan.objects.volcano.types import NodeGroupAffinity, Queue, QueueAffinity
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, make_queue, open_session
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
    ("queue_object", "arguments", "expected"),
    [
        pytest.param(
            queue(), {}, {"a": NO_AFFINITY, "b": NO_AFFINITY, "c": NO_AFFINITY, "none": NO_LABEL}, id="no-affinity"
        ),
        pytest.param(
            queue(), {"strict": False}, {"a": NO_AFFINITY, "b": NO_AFFINITY, "c": NO_AFFINITY}, id="not-strict"
        ),
        pytest.param(
            queue(near=((), ())),
            {"strict": False},
            {"a": NO_AFFINITY, "b": NO_AFFINITY, "c": NO_AFFINITY},
            id="empty-affinity",
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
            id="anti-affinity-wins",
        ),
        pytest.param(
            queue(away=(("a", "b"), ("b",))),
            {},
            {"a": UNSATISFIED, "c": UNSATISFIED, "none": NO_LABEL},
            id="preferred-anti-affinity-stays-allowed",
        ),
    ],
)
def test_allowed_groups(queue_object: Queue, arguments: dict[str, Any], expected: dict[str, str]) -> None:
    cluster = {"nodes": NODES, "pods": [make_member("p")], "objects": [queue_object, make_group()]}
    with open_session(NodeGroupPlugin, arguments=arguments, **cluster) as session:
        assert predicate_rejections(session, "p") == {
            name: (Code.UNRESOLVABLE, reason) for name, reason in expected.items()
        }


@pytest.mark.parametrize(
    ("queue_object", "ordered", "expected"),
    [
        pytest.param(queue(), False, {"a": 0, "b": 0, "c": 0, "none": 0}, id="no-affinity"),
        pytest.param(queue(near=(("a", "b"), ("b",))), False, {"a": 100, "b": 150, "c": 0, "none": 0}, id="adds-up"),
        pytest.param(
            queue(near=(("a",), ()), away=((), ("a", "c"))),
            False,
            {"a": -1, "b": 0, "c": -1, "none": 0},
            id="preferred-anti-affinity",
        ),
        pytest.param(queue(near=((), ("b", "a"))), False, {"a": 50, "b": 50, "c": 0, "none": 0}, id="all-the-same"),
        pytest.param(queue(near=((), ("b", "a"))), True, {"a": 25, "b": 50, "c": 0, "none": 0}, id="in-order"),
        pytest.param(
            queue(near=((), ("b", "a", "b"))), True, {"a": 25, "b": 0, "c": 0, "none": 0}, id="named-twice-counts-last"
        ),
    ],
)
def test_scores(queue_object: Queue, ordered: bool, expected: dict[str, float]) -> None:
    cluster = {"nodes": NODES, "pods": [make_member("p")], "objects": [queue_object, make_group()]}
    with open_session(NodeGroupPlugin, arguments={"enablePreferredOrder": ordered}, **cluster) as session:
        assert scores(session, "p") == pytest.approx(expected)


AFFINITY_TO_A = (("a",), ())
AFFINITY_TO_B = (("b",), ())


@pytest.mark.parametrize(
    ("queues", "preferred"),
    [
        pytest.param([queue(near=AFFINITY_TO_A), queue("root", near=AFFINITY_TO_B)], "a", id="own-affinity"),
        pytest.param([queue(), queue("root", near=AFFINITY_TO_B)], "b", id="inherited-from-root"),
        pytest.param(
            [queue(parent="up"), queue("up", near=AFFINITY_TO_A), queue("root", near=AFFINITY_TO_B)],
            "a",
            id="nearest-ancestor",
        ),
        pytest.param(
            [queue(parent="up"), queue("up", parent="q"), queue("root", near=AFFINITY_TO_B)],
            "",
            id="cycle-without-root",
        ),
        pytest.param([queue(parent="up"), queue("up", near=AFFINITY_TO_A, parent="q")], "a", id="cycle-with-affinity"),
        pytest.param([queue(parent="gone"), queue("root", near=AFFINITY_TO_B)], "", id="no-such-parent"),
    ],
)
def test_affinities_are_inherited(queues: list[Queue], preferred: str) -> None:
    engine = make_engine(NodeGroupPlugin, nodes=NODES, pods=[make_member("p")], objects=[*queues, make_group()])
    option = PluginOption(NodeGroupPlugin.name, flags={"enableHierarchy": True}).with_default_flags()
    engine.configuration = BatchConfiguration(tiers=((option,),))
    with engine.session() as session:
        assert {name for name, score in scores(session, "p").items() if score} == ({preferred} if preferred else set())


def test_a_task_without_a_job_is_an_error() -> None:
    with open_session(NodeGroupPlugin, nodes=NODES, pods=[make_member("p")], objects=[make_group()]) as session:
        job = session.jobs.pop("default/job")
        (task,) = job.tasks.values()
        (status,) = session.predicate(task, session.nodes[0])
        assert (status.code, status.message) == (Code.ERROR, "job default/job not found in session")
