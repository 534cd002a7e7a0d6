from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.plugins.overcommit import OvercommitPlugin
from bayplan.objects.meta import ResourceList
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, pod_group_messages

GPU = "nvidia.com/gpu"
NODE = make_node("n", allocatable={"cpu": "10", "memory": "10Gi", "pods": "10"})


@pytest.mark.parametrize(
    ("wanted", "arguments", "admitted"),
    [
        pytest.param({"cpu": "12"}, {}, True, id="up-to-120-percent"),
        pytest.param({"cpu": "12001m"}, {}, False, id="above-120-percent"),
        pytest.param({"cpu": "20"}, {"overcommit-factor": 2}, True, id="factor"),
        pytest.param({"cpu": "11"}, {"overcommit-factor": 1.0}, False, id="no-overcommitment"),
        pytest.param({"cpu": "12"}, {"overcommit-factor": 0.5}, True, id="below-one-is-refused"),
        pytest.param({"cpu": "12"}, {"overcommit-factor": "2"}, True, id="a-text-is-refused"),
        pytest.param({GPU: 1}, {}, False, id="unavailable-resource"),
        pytest.param({"pods": 100}, {}, True, id="pods-are-ignored"),
        pytest.param(None, {}, True, id="no-minimum"),
    ],
)
def test_one_job(wanted: ResourceList | None, arguments: dict[str, Any], admitted: bool) -> None:
    with open_session(
        OvercommitPlugin, arguments=arguments, nodes=[NODE], objects=[make_group(min_resources=wanted)]
    ) as session:
        assert session.job_enqueueable(session.jobs["default/job"]) is admitted


def test_invalid_factors_are_reported() -> None:
    with open_session(OvercommitPlugin, arguments={"overcommit-factor": 0.5}) as session:
        assert session.faults == ["overcommit: overcommit-factor 0.5 is below 1; 1.2 is used"]


def test_running_and_admitted_jobs_count() -> None:
    pods = [make_member("mine", "running", node="n"), make_member("foreign", "", node="n", requests={"cpu": "2"})]
    groups = [
        make_group("running", phase="Running", min_resources={"cpu": "2"}),
        make_group("inqueue", phase="Inqueue", min_resources={"cpu": "3"}),
        make_group("first", min_resources={"cpu": "5"}),
        make_group("second", min_resources={"cpu": "1"}),
    ]
    with open_session(OvercommitPlugin, nodes=[NODE], pods=pods, objects=groups) as session:
        first, second = session.jobs["default/first"], session.jobs["default/second"]
        assert session.job_enqueueable(first)  # 12 - 3 used - 4 reserved leaves 5
        session.job_enqueued(first)
        assert not session.job_enqueueable(second)
        assert pod_group_messages(session) == ["second: resource in cluster is overused: overused cpu"]
        assert session.events[0][1:3] == ("Normal", "Unschedulable")


def test_gated_tasks_reserve_nothing() -> None:
    groups = [make_group("gated", min_resources={"cpu": "12"}), make_group("other", min_resources={"cpu": "12"})]
    pods = [make_member("g", "gated", gates=["x"], requests={"cpu": "12"})]
    with open_session(OvercommitPlugin, nodes=[NODE], pods=pods, objects=groups) as session:
        session.job_enqueued(session.jobs["default/gated"])
        assert session.job_enqueueable(session.jobs["default/other"])
