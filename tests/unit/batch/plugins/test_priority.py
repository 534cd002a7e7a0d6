from __future__ import annotations

import pytest

from bayplan.batch.plugins.priority import PriorityPlugin
from bayplan.batch.session.registration import EvictionContext, EvictionKind
from bayplan.objects.core import Pod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, task_names, tasks_of


def ranked(name: str, group: str, priority: int, node: str = "") -> Pod:
    return make_member(name, group, node=node, annotations={"volcano.sh/task-priority": str(priority)})


OBJECTS = [
    PriorityClass(metadata=ObjectMeta(name="high"), value=10),
    make_group("low"),
    make_group("high", priority_class_name="high"),
]
PODS = [ranked("l1", "low", 5, "n"), ranked("l9", "low", 9, "n"), ranked("h1", "high", 1), ranked("h2", "high", 2, "n")]


@pytest.mark.parametrize(
    ("preemptor", "victims"),
    [
        pytest.param("h1", ["l1", "l9"], id="jobs-below"),
        pytest.param("l1", [], id="none-above"),
        pytest.param("l9", ["l1"], id="within-a-job-by-task"),
    ],
)
def test_only_lower_priorities_are_preempted(preemptor: str, victims: list[str]) -> None:
    with open_session(PriorityPlugin, nodes=[make_node("n")], pods=PODS, objects=OBJECTS) as session:
        (task,) = tasks_of(session, preemptor)
        assert task_names(session.preemptable(task, tasks_of(session, "l1", "l9", "h2"))) == victims


@pytest.mark.parametrize(
    ("kind", "victims"), [(EvictionKind.GANG_PREEMPT, ["l1"]), (EvictionKind.GANG_RECLAIM, ["l1", "h2"])]
)
def test_priority_is_ignored_between_queues(kind: EvictionKind, victims: list[str]) -> None:
    with open_session(PriorityPlugin, nodes=[make_node("n")], pods=PODS, objects=OBJECTS) as session:
        context = EvictionContext(kind, session.jobs["default/high"])
        assert task_names(session.unified_evictable(context, tasks_of(session, "l1", "h2"))) == victims


def test_higher_priority_comes_first() -> None:
    with open_session(PriorityPlugin, nodes=[make_node("n")], pods=PODS, objects=OBJECTS) as session:
        low, high = session.jobs["default/low"], session.jobs["default/high"]
        assert session.job_order(high, low)
        assert not session.job_order(low, high)
        one, nine = tasks_of(session, "l1", "l9")
        assert session.task_order(nine, one)
        assert session.compare_tasks(one, one) == 0


def test_a_job_starves_while_a_task_waits() -> None:
    with open_session(PriorityPlugin, nodes=[make_node("n")], pods=PODS, objects=OBJECTS) as session:
        assert session.job_starving(session.jobs["default/high"])
        assert not session.job_starving(session.jobs["default/low"])
