from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.sub_jobs import sub_job_id
from bayplan.batch.model.tasks import Task
from bayplan.objects.meta import LabelSelector
from bayplan.objects.volcano.types import NetworkTopology, PodGroup, SubGroupPolicy
from support.builders.batch import make_group, make_member

PENDING, RUNNING, PIPELINED = TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PIPELINED


def task(name: str, status: TaskStatus = PENDING, *, role: str = "", **pod: Any) -> Task:
    notes = {"volcano.sh/task-spec": role} if role else {}
    created = Task(make_member(name, annotations=notes, **pod))
    created.status = status
    return created


def job_of(*tasks: Task, group: PodGroup | None = None, **spec: Any) -> Job:
    job = Job("default/job")
    job.set_group(group or make_group("job", **spec))
    for each in tasks:
        job.add_task(each)
    return job


def test_sums_and_counts_follow_every_status_change() -> None:
    one, two = task("a"), task("b", RUNNING)
    job = job_of(one, two, min_member=2)
    assert (job.allocated.milli_cpu, job.total_request.milli_cpu) == (1000, 2000)
    assert (job.ready_task_num, job.waiting_task_num, job.valid_task_num) == (1, 0, 2)
    assert not job.is_ready()
    assert job.is_starving()
    job.set_status(one, PIPELINED)
    assert (job.is_ready(), job.is_pipelined(), job.is_starving()) == (False, True, False)
    job.set_status(one, TaskStatus.ALLOCATED)
    assert job.is_ready()
    assert job.allocated.milli_cpu == 2000
    job.set_status(one, PENDING)
    assert job.allocated.milli_cpu == 1000
    job.remove_task(two)
    assert (job.allocated.milli_cpu, job.total_request.milli_cpu) == (0, 1000)


def test_pending_tasks_without_requests_count_as_ready_but_not_against_starving() -> None:
    job = job_of(task("a", requests={}), min_member=1)
    assert job.is_ready()
    assert job.is_pipelined()
    assert job.is_starving()


@pytest.mark.parametrize(
    ("least", "min_member", "valid", "ready", "pipelined"),
    [
        pytest.param({"w": 2}, 2, True, False, True, id="one-of-two-runs"),
        pytest.param({"w": 1, "ps": 0}, 1, True, True, True, id="zero-is-no-minimum"),
        pytest.param({"w": 1, "ps": 1}, 2, False, False, False, id="a-role-is-missing"),
        pytest.param({"w": 2, "ps": 1}, 2, True, True, True, id="a-smaller-gang-than-the-sum-of-roles"),
    ],
)
def test_minimum_numbers_of_roles(
    least: dict[str, int], min_member: int, valid: bool, ready: bool, pipelined: bool
) -> None:
    job = job_of(
        task("a", RUNNING, role="w"), task("b", PIPELINED, role="w"), min_member=min_member, min_task_member=least
    )
    assert job.check_task_valid() is valid
    assert job.check_task_ready() is ready
    assert job.check_task_pipelined() is pipelined


@pytest.mark.parametrize(
    ("tasks", "spec", "goes_on"),
    [
        pytest.param(2, {"min_member": 2}, False, id="everybody-is-needed"),
        pytest.param(3, {"min_member": 1}, True, id="no-role-has-a-minimum"),
        pytest.param(3, {"min_member": 2, "min_task_member": {"w": 1}}, False, id="the-failed-role-lacks-its-minimum"),
        pytest.param(3, {"min_member": 1, "min_task_member": {"w": 2}}, False, id="too-few-are-left"),
    ],
)
def test_whether_a_gang_can_still_start_after_a_failure(tasks: int, spec: dict[str, Any], goes_on: bool) -> None:
    members = [task(f"t{number}", role="w") for number in range(tasks)]
    job = job_of(*members, **spec)
    sub_job = job.default_sub_job
    assert sub_job is not None
    job.record_fit_errors(members[0], FitErrors())
    assert job.needs_continue_allocating(sub_job) is goes_on
    assert job.task_has_fit_errors(sub_job, members[1])
    job.reset_fit_errors(sub_job)
    assert not job.task_has_fit_errors(sub_job, members[1])


def test_tasks_without_a_role_do_not_share_failures() -> None:
    one, two = task("a"), task("b")
    job = job_of(one, two)
    sub_job = job.default_sub_job
    assert sub_job is not None
    job.record_fit_errors(one, FitErrors())
    assert not job.task_has_fit_errors(sub_job, two)


def test_deduct_gated_subtracts_the_requests_of_gated_tasks() -> None:
    job = job_of(task("a", gates=["example.com/hold"]), task("b"), min_member=2)
    found = job.deduct_gated(Amounts(1500, 100, {"pods": 2.0, "gpu/x": 1.0}))
    assert (found.milli_cpu, found.memory, found.scalars) == (500, 100, {"pods": 1.0, "gpu/x": 1.0})
    free = job_of(task("c"))
    assert free.deduct_gated(found) is found


@pytest.mark.parametrize(
    ("notes", "seconds"),
    [
        ({"volcano.sh/sla-waiting-time": "90s"}, 90),
        ({"sla-waiting-time": "1m"}, 60),
        ({"volcano.sh/sla-waiting-time": "soon", "sla-waiting-time": "1m"}, 60),
        ({"volcano.sh/sla-waiting-time": "-1s"}, None),
        ({}, None),
    ],
)
def test_sla_waiting_times(notes: dict[str, str], seconds: float | None) -> None:
    assert job_of(group=make_group("job", annotations=notes)).waiting_time_s == seconds


def test_budgets_and_preemption_of_a_group() -> None:
    notes = {"volcano.sh/jdb-max-unavailable": "30%", "volcano.sh/preemptable": "true"}
    job = job_of(group=make_group("job", annotations=notes))
    assert (job.budget_min_available, job.budget_max_unavailable) == ("", "30%")
    assert (job.preemptable, job.revocable_zone) == (True, "*")
    both = {**notes, "volcano.sh/jdb-min-available": "2"}
    assert job_of(group=make_group("job", annotations=both)).budget_max_unavailable == ""
    assert job_of().preemptable is False


# Sub-jobs

BY_GROUP = SubGroupPolicy(name="ring", match_label_keys=("ring",), sub_group_size=2, min_sub_groups=1)


def member(name: str, ring: str = "", status: TaskStatus = PENDING) -> Task:
    return task(name, status, labels={"ring": ring} if ring else {})


def test_without_policies_a_job_is_its_own_sub_job() -> None:
    job = job_of(task("a"), min_member=3)
    sub_job = job.default_sub_job
    assert sub_job is not None
    assert (sub_job.uid, sub_job.min_available) == ("default/job", 3)
    job.set_status(next(iter(job.tasks.values())), RUNNING)
    assert sub_job.ready_task_num == 1


def test_policies_group_tasks_into_sub_jobs_by_label_values() -> None:
    one, two, three, stray = member("a", "0"), member("b", "0"), member("c", "1"), member("d")
    job = job_of(one, two, three, stray, sub_group_policy=(BY_GROUP,))
    assert set(job.sub_jobs) == {"default/job/ring-0", "default/job/ring-1", "default/job"}
    first = job.sub_jobs["default/job/ring-0"]
    assert (first.gid, first.min_available, first.match_index) == ("default/job/ring", 2, 0)
    assert job.sub_jobs["default/job"].min_available == 1
    assert job.sub_job_of(three) is job.sub_jobs["default/job/ring-1"]
    assert not job.check_sub_job_ready()
    job.set_status(one, RUNNING)
    job.set_status(two, PIPELINED)
    assert (job.check_sub_job_ready(), job.check_sub_job_pipelined()) == (False, True)


def test_a_selector_that_does_not_match_or_is_invalid_creates_no_sub_job() -> None:
    elsewhere = SubGroupPolicy(
        name="x", label_selector=LabelSelector(match_labels={"app": "y"}), match_label_keys=("ring",)
    )
    broken = SubGroupPolicy(name="y", label_selector=LabelSelector(match_labels={"": "y"}), match_label_keys=("ring",))
    keyless = SubGroupPolicy(name="z")
    job = job_of(member("a", "0"), sub_group_policy=(elsewhere, broken, keyless))
    assert list(job.sub_jobs) == ["default/job"]


def test_too_few_sub_groups_are_invalid() -> None:
    policy = SubGroupPolicy(name="ring", match_label_keys=("ring",), min_sub_groups=2)
    job = job_of(member("a", "0"), sub_group_policy=(policy,))
    assert not job.check_sub_job_valid()
    job.add_task(member("b", "1"))
    assert job.check_sub_job_valid()


def test_long_names_of_sub_jobs_are_hashed() -> None:
    uid = sub_job_id("ns/job", BY_GROUP, ["v" * 129])
    assert uid.startswith("ns/job/ring-")
    assert len(uid) < 30
    assert uid == sub_job_id("ns/job", BY_GROUP, ["v" * 129])


@pytest.mark.parametrize(
    ("spec", "hard", "any_topology"),
    [
        pytest.param({}, False, False, id="none"),
        pytest.param({"network_topology": NetworkTopology("hard", 1)}, True, True, id="hard"),
        pytest.param({"network_topology": NetworkTopology("hard")}, False, True, id="hard-without-a-tier"),
        pytest.param({"network_topology": NetworkTopology("soft", 1)}, False, True, id="soft"),
    ],
)
def test_hard_and_soft_topologies(spec: dict[str, Any], hard: bool, any_topology: bool) -> None:
    job = job_of(task("a"), **spec)
    assert job.contains_hard_topology() is hard
    assert job.contains_network_topology() is any_topology
