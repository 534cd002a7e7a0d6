from __future__ import annotations

from functools import cmp_to_key
from typing import Any

import pytest

from bayplan.batch.plugins.task_topology.buckets import AFFINITY, ANTI_AFFINITY, TASK_ORDER
from bayplan.batch.plugins.task_topology.plugin import TaskTopologyPlugin
from bayplan.batch.session.session import Session
from bayplan.objects.core import Pod
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, task_names, tasks_of
from support.builders.batch_scores import scores

NODES = [make_node(name, allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"}) for name in ("n1", "n2")]


def member(name: str, *, cpu: str = "1", node: str = "", group: str = "job") -> Pod:
    """A task whose role is the first word of its name."""
    role = {"volcano.sh/task-spec": name.partition("-")[0]}
    return make_member(name, group, requests={"cpu": cpu}, node=node, annotations=role)


def cluster(pods: list[Pod], **annotations: str) -> dict[str, Any]:
    keys = {"near": AFFINITY, "away": ANTI_AFFINITY, "order": TASK_ORDER}
    annotations = {keys[key]: text for key, text in annotations.items()}
    return {"nodes": NODES, "pods": pods, "objects": [make_group(annotations=annotations)]}


def buckets(session: Session) -> list[list[str]]:
    """Waiting tasks by bucket."""
    plugin: TaskTopologyPlugin = session.plugins["task-topology"]
    return [task_names(bucket.waiting.values()) for bucket in plugin._jobs["default/job"].buckets]


PS_AND_WORKERS = [member("ps-0"), member("ps-1"), member("worker-0"), member("worker-1")]


@pytest.mark.parametrize(
    ("pods", "annotations", "expected"),
    [
        pytest.param(PS_AND_WORKERS, {"near": "ps"}, [["ps-0", "ps-1"]], id="a-role-with-itself"),
        pytest.param(
            PS_AND_WORKERS,
            {"near": "ps,worker"},
            [["ps-0", "ps-1", "worker-0", "worker-1"]],
            id="affinity-of-two-roles",
        ),
        pytest.param(PS_AND_WORKERS, {"away": "ps"}, [["ps-0"], ["ps-1"]], id="anti-affinity-with-itself"),
        pytest.param(
            PS_AND_WORKERS,
            {"near": "ps,worker", "away": "ps"},
            [["ps-0", "worker-0"], ["ps-1", "worker-1"]],
            id="one-of-each",
        ),
        pytest.param(
            [*PS_AND_WORKERS[:3], member("worker-1", cpu="3"), member("worker-2")],
            {"near": "ps,worker", "away": "ps", "order": "worker,ps"},
            [["worker-0", "worker-1", "worker-2", "ps-0", "ps-1"]],
            id="user-order-and-more-affinity-than-anti-affinity",
        ),
        pytest.param(
            [member("ps-0", cpu="2"), member("ps-1"), member("worker-0")],
            {"near": "ps,worker", "away": "ps"},
            [["ps-0"], ["ps-1", "worker-0"]],
            id="lightest-of-equal-buckets",
        ),
        pytest.param(
            [member("ps-0", node="n2"), member("ps-1", node="n1"), member("worker-0")],
            {"near": "ps,worker", "away": "ps"},
            [["worker-0"], []],
            id="a-bucket-for-each-node-in-use",
        ),
        pytest.param(PS_AND_WORKERS, {"order": "worker,ps"}, [], id="order-only"),
    ],
)
def test_buckets(pods: list[Pod], annotations: dict[str, str], expected: list[list[str]]) -> None:
    with open_session(TaskTopologyPlugin, **cluster(pods, **annotations)) as session:
        assert buckets(session) == expected


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        pytest.param({"near": "ps,chief"}, "names the role chief, of which the job has no task", id="no-such-role"),
        pytest.param({"away": "ps;worker,worker"}, "names the role worker twice in one group", id="twice"),
        pytest.param({"order": "chief"}, "names the role chief, of which the job has no task", id="in-the-order"),
    ],
)
def test_a_job_with_invalid_annotations_is_ignored(annotations: dict[str, str], message: str) -> None:
    with open_session(TaskTopologyPlugin, **cluster(PS_AND_WORKERS, **annotations)) as session:
        assert not session.plugins["task-topology"]._jobs
        assert [fault for fault in session.faults if message in fault and "default/job" in fault]


@pytest.mark.parametrize(
    ("pods", "annotations"),
    [
        pytest.param(PS_AND_WORKERS, {}, id="no-annotations"),
        pytest.param([member("ps-0", node="n1")], {"near": "ps"}, id="no-waiting-task"),
    ],
)
def test_ignored_jobs(pods: list[Pod], annotations: dict[str, str]) -> None:
    with open_session(TaskTopologyPlugin, **cluster(pods, **annotations)) as session:
        assert not session.plugins["task-topology"]._jobs


def ordered(session: Session, *names: str) -> list[str]:
    return task_names(sorted(tasks_of(session, *names), key=cmp_to_key(session.compare_tasks)))


def test_the_fullest_bucket_goes_first() -> None:
    pods = [member("ps-0"), member("ps-1"), member("worker-0"), member("worker-1"), member("worker-2"), member("x-0")]
    annotations = {"near": "ps,worker", "away": "ps"}
    with open_session(TaskTopologyPlugin, **cluster(pods, **annotations)) as session:
        assert buckets(session) == [["ps-0", "worker-0", "worker-2"], ["ps-1", "worker-1"]]
        found = ordered(session, "x-0", "worker-1", "worker-2", "ps-1", "worker-0", "ps-0")
        assert found == ["ps-0", "worker-2", "worker-0", "ps-1", "worker-1", "x-0"]


def test_jobs_do_not_compare_tasks_with_each_other_unless_one_has_no_bucket() -> None:
    groups = [make_group(name, annotations={AFFINITY: "ps"}) for name in ("a", "b")]
    pods = [member("ps-0", group="a"), member("ps-1", group="a"), member("ps-2", group="b"), member("x-0", group="b")]
    with open_session(TaskTopologyPlugin, nodes=NODES, pods=pods, objects=groups) as session:
        first, other, stray = tasks_of(session, "ps-0", "ps-2", "x-0")
        assert session.compare_tasks(first, other) == 0
        assert session.compare_tasks(first, stray) < 0
        assert session.compare_tasks(stray, first) > 0


def place(session: Session, name: str, node: str) -> None:
    (task,) = tasks_of(session, name)
    found = session.node(node)
    assert found is not None
    assert session.statement().allocate(task, found)


def test_tasks_with_affinity_score_each_others_nodes_higher() -> None:
    pods = [member("ps-0"), member("worker-0"), member("worker-1")]
    with open_session(TaskTopologyPlugin, **cluster(pods, near="ps,worker")) as session:
        assert scores(session, "ps-0") == pytest.approx({"n1": 100.0, "n2": 100.0})
        place(session, "ps-0", "n2")
        assert scores(session, "worker-0") == pytest.approx({"n1": 200 / 3, "n2": 100.0})


def test_placed_tasks_with_anti_affinity_lower_the_score() -> None:
    pods = [member("ps-0"), member("ps-1")]
    with open_session(TaskTopologyPlugin, arguments={"task-topology.weight": 2}, **cluster(pods, away="ps")) as session:
        place(session, "ps-0", "n2")
        assert scores(session, "ps-1") == {"n1": 200.0, "n2": 0.0}


def test_tasks_of_the_bucket_that_do_not_fit_do_not_count() -> None:
    pods = [*(member(f"ps-{number}") for number in range(5)), make_member("old", "", node="n1", requests={"cpu": "2"})]
    with open_session(TaskTopologyPlugin, **cluster(pods, near="ps")) as session:
        assert scores(session, "ps-0") == {"n1": 40.0, "n2": 80.0}


def test_a_node_that_is_too_small_for_the_task_scores_zero() -> None:
    pods = [member("ps-0", cpu="3"), member("ps-1"), make_member("old", "", node="n1", requests={"cpu": "2"})]
    with open_session(TaskTopologyPlugin, **cluster(pods, near="ps")) as session:
        assert scores(session, "ps-0") == {"n1": 0.0, "n2": 100.0}


def test_a_missing_resource_scores_zero_even_if_requested_with_zero() -> None:
    pod = make_member("ps-0", requests={"cpu": "1", "a.b/c": 0}, annotations={"volcano.sh/task-spec": "ps"})
    with open_session(TaskTopologyPlugin, **cluster([pod], near="ps")) as session:
        assert scores(session, "ps-0") == {"n1": 0.0, "n2": 0.0}
