from __future__ import annotations

import pytest

from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.plugins.gang import GangPlugin
from bayplan.batch.session.registration import EvictionContext, EvictionKind
from bayplan.objects.core import Pod
from bayplan.objects.volcano.types import SubGroupPolicy
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, task_names, tasks_of

NODE = make_node("n")
RUNNING = [make_member(f"job-w-{number}", node="n") for number in range(3)]
DONE = make_member("job-w-3", node="n", phase="Succeeded")


@pytest.mark.parametrize(
    ("min_member", "victims"),
    [
        pytest.param(2, ["job-w-0", "job-w-1"], id="down-to-the-minimum"),
        pytest.param(4, [], id="none-at-the-minimum"),
        pytest.param(0, ["job-w-0", "job-w-1", "job-w-2"], id="no-minimum"),
    ],
)
def test_a_gang_is_not_evicted_below_its_minimum(min_member: int, victims: list[str]) -> None:
    cluster = {"nodes": [NODE], "pods": [*RUNNING, DONE, make_member("e", "other")]}
    with open_session(
        GangPlugin, **cluster, objects=[make_group(min_member=min_member), make_group("other")]
    ) as session:
        (evictor,) = tasks_of(session, "e")
        candidates = tasks_of(session, "job-w-0", "job-w-1", "job-w-2")
        assert task_names(session.preemptable(evictor, candidates)) == victims
        assert task_names(session.reclaimable(evictor, candidates)) == victims
        context = EvictionContext(EvictionKind.GANG_PREEMPT, session.jobs["default/other"])
        assert session.unified_evictable(context, candidates) == candidates


@pytest.mark.parametrize(
    ("pods", "spec", "reason"),
    [
        pytest.param(1, {"min_member": 2}, "NotEnoughTasks", id="too-few-tasks"),
        pytest.param(2, {"min_member": 2, "min_task_member": {"ps": 1}}, "NotEnoughPodsOfTask", id="a-role-is-missing"),
        pytest.param(
            2,
            {"sub_group_policy": (SubGroupPolicy(name="x", match_label_keys=("x",), min_sub_groups=1),)},
            "NotEnoughPodsOfTask",
            id="a-sub-group-is-missing",
        ),
        pytest.param(2, {"min_member": 2}, None, id="valid"),
    ],
)
def test_validity(pods: int, spec: dict[str, object], reason: str | None) -> None:
    members = [make_member(f"job-w-{number}") for number in range(pods)]
    with open_session(GangPlugin, pods=members, objects=[make_group(**spec)]) as session:
        found = session.job_invalid(session.jobs["default/job"])
        assert (found.reason if found else None) == reason


def test_the_message_has_the_number_of_valid_tasks() -> None:
    with open_session(GangPlugin, pods=[make_member("a")], objects=[make_group(min_member=3)]) as session:
        found = session.job_invalid(session.jobs["default/job"])
        assert found is not None
        assert found.message == "Not enough valid tasks for gang-scheduling, valid: 1, min: 3"


def test_gangs_that_are_not_ready_come_first() -> None:
    pods: list[Pod] = [make_member("a", "ready", node="n"), make_member("b", "waiting")]
    with open_session(
        GangPlugin, nodes=[NODE], pods=pods, objects=[make_group("ready"), make_group("waiting")]
    ) as session:
        ready, waiting = session.jobs["default/ready"], session.jobs["default/waiting"]
        assert session.compare_jobs(waiting, ready) < 0
        assert session.compare_jobs(ready, waiting) > 0
        assert session.compare_jobs(ready, ready) == 0
        assert session.job_ready(ready)
        assert not session.job_ready(waiting)
        assert not session.job_pipelined(waiting)
        assert session.job_starving(waiting)
        session.set_task_status(next(iter(waiting.tasks.values())), TaskStatus.PIPELINED)
        assert session.job_pipelined(waiting)
        assert not session.job_starving(waiting)
