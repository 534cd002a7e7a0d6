from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.evaluation.rejected_rows import fit_errors_of, group_rows_by_statuses
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task, TransactionContext
from bayplan.batch.session.close_session import fit_error, group_phase, task_reason
from bayplan.batch.session.outcome import PodMessage
from bayplan.framework.api.status import unresolvable, unschedulable
from bayplan.objects.core import Pod, PodResourceClaim
from bayplan.objects.meta import Condition, ObjectMeta
from bayplan.objects.resource import DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec
from bayplan.objects.volcano.types import PodGroupCondition, Queue
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS, build_engine

P, R, S, F = TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUCCEEDED, TaskStatus.FAILED
UNSCHEDULABLE = PodGroupCondition(type="Unschedulable", status="True", transition_id="this")


def job_with(*statuses: TaskStatus, **group: Any) -> Job:
    job = Job("default/job")
    job.set_group(make_group("job", **group))
    for number, status in enumerate(statuses):
        task = Task(make_member(f"t{number}"))
        task.status = status
        job.add_task(task)
    return job


@pytest.mark.parametrize(
    ("statuses", "phase", "least", "conditions", "expected"),
    [
        pytest.param([R, R, P], "Running", 3, [], "Pending", id="fell-below-its-minimum"),
        pytest.param([R, R, R], "Inqueue", 3, [], "Running", id="runs"),
        pytest.param([S, S, F], "Running", 3, [], "Completed", id="over"),
        pytest.param([R, P, P], "Running", 3, [UNSCHEDULABLE], "Unknown", id="broken-and-stuck"),
        pytest.param([P, P, P], "Inqueue", 3, [], "Inqueue", id="waits-in-the-queue"),
        pytest.param([], "Pending", 0, [], "Completed", id="nothing-to-do"),
        pytest.param([TaskStatus.BINDING], "Inqueue", 1, [], "Inqueue", id="bound-soon"),
        pytest.param(
            [R, P], "Running", 2, [replace(UNSCHEDULABLE, transition_id="last")], "Pending", id="of-another-session"
        ),
    ],
)
def test_phases(
    statuses: list[TaskStatus], phase: str, least: int, conditions: list[PodGroupCondition], expected: str
) -> None:
    job = job_with(*statuses, phase=phase, min_member=least)
    job.conditions = conditions
    assert group_phase(job, "this") == expected


def test_fit_error_text_of_a_group() -> None:
    job = job_with(R, P, P, min_member=3)
    first, second = list(job.pending.values())
    first.last_transaction = TransactionContext(TaskStatus.ALLOCATED, "n", False)
    errors = fit_errors_of(
        group_rows_by_statuses([(0, (unschedulable("full"),)), (1, (unresolvable("tainted"), unschedulable("full")))]),
        2,
    )
    job.record_fit_errors(second, errors)
    assert fit_error(job) == (
        "pod group is not ready, 1 Running, 2 Pending, 3 minAvailable; Pending: 1 Schedulable, 1 Unschedulable. "
        "Origin reason is t2: 0/2 nodes are unavailable: 1 tainted, 2 full."
    )
    assert errors.unresolvable is not None
    assert errors.unresolvable.tolist() == [False, True]


@pytest.mark.parametrize(
    ("context", "message"),
    [
        pytest.param(
            TransactionContext(TaskStatus.ALLOCATED, "n", False),
            PodMessage("Schedulable", "Pod default/t0 can possibly be assigned to n, once minAvailable is satisfied"),
            id="allocated",
        ),
        pytest.param(
            TransactionContext(TaskStatus.PIPELINED, "n", True),
            PodMessage(
                "Unschedulable",
                "Pod default/t0 can possibly be assigned to n, once resource is released and minAvailable is satisfied",
                "n",
            ),
            id="a-victim-is-evicted",
        ),
        pytest.param(
            TransactionContext(P, "", False), PodMessage("Unschedulable", "0/0 nodes are unavailable"), id="nowhere"
        ),
    ],
)
def test_messages_of_pods(context: TransactionContext, message: PodMessage) -> None:
    job = job_with(P)
    (task,) = job.tasks.values()
    task.last_transaction = context
    job.record_fit_errors(task, FitErrors())
    assert task_reason(job, task) == message


def test_texts_of_a_search_in_a_hypernode_and_of_a_skipped_search() -> None:
    errors = FitErrors(2, {"full": 2})
    errors.hyper_node = "s0"
    assert errors.text() == "In hyperNode s0: 0/2 nodes are unavailable: 2 full."
    assert FitErrors(head="Task t with role spec w has already predicated failed, skip").text().endswith("skip")


def test_a_pod_with_the_same_condition_is_not_written_again() -> None:
    node, group = make_node("a", cpu=1), make_group(min_member=1)
    first = build_engine(nodes=[node], pods=[make_member("p", requests={"cpu": "2"})], objects=[group]).run_session()
    message = first.messages["default/p"]
    assert (message.reason, message.message) == ("Unschedulable", "0/1 nodes are unavailable: 1 Insufficient cpu.")
    condition = Condition(type="PodScheduled", status="False", reason=message.reason, message=message.message)
    again = make_member("p", requests={"cpu": "2"}, conditions=[condition])
    assert not build_engine(nodes=[node], pods=[again], objects=[group]).run_session().messages


def test_allocated_amounts_of_queues_include_their_children() -> None:
    queues = [make_queue("root"), make_queue("team", parent=""), make_queue("sub", parent="team")]
    outcome = build_engine(
        nodes=[make_node("a")],
        pods=[make_member("p", node="a"), make_member("r", "mine", node="a", requests={"cpu": "500m"})],
        objects=[*queues, make_group(queue="sub"), make_group("mine", queue="team")],
    ).run_session()
    held = {name: str(amounts["cpu"]) for name, amounts in outcome.queues.items()}
    assert held == {"root": "1500m", "team": "1500m", "sub": "1", "q": "0"}


def claiming(pod: Pod, claim: str) -> Pod:
    reference = PodResourceClaim(name="gpu", resource_claim_name=claim)
    return replace(pod, spec=replace(pod.spec, resource_claims=(reference,)))


def test_queues_count_the_devices_of_each_claim_once() -> None:
    """`updateQueueStatus` of Volcano adds `deviceclass/<class>`, whatever plugins are configured."""
    request = DeviceRequest(name="r", exactly=ExactDeviceRequest(device_class_name="gpu.example.com", count=2))
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=(request,)))
    claims = [ResourceClaim(metadata=ObjectMeta(name=name, namespace="default"), spec=spec) for name in "xyz"]
    pods = [claiming(make_member(f"p{number}", node="a"), name) for number, name in enumerate("xxy")]
    waiting = claiming(make_member("w", requests={"cpu": "1000"}), "z")
    queues = [make_queue("root"), make_queue("sub", parent="q")]
    other = claiming(make_member("o", "other", node="a"), "x")
    objects = [*queues, *claims, make_group(), make_group("other", queue="sub")]
    outcome = build_engine(nodes=[make_node("a")], pods=[*pods, waiting, other], objects=objects).run_session()
    devices = {name: str(amounts.get("deviceclass/gpu.example.com")) for name, amounts in outcome.queues.items()}
    assert devices == {"root": "4", "q": "4", "sub": "2"}


def test_a_queue_with_the_same_amounts_is_not_written_again() -> None:
    queue = make_queue("mine")
    unchanged: Queue = replace(queue, status=replace(queue.status, allocated={"cpu": "1", "memory": 0, "pods": "1"}))
    outcome = build_engine(
        nodes=[make_node("a")], pods=[make_member("p", node="a")], objects=[unchanged, make_group(queue="mine")]
    ).run_session()
    assert "mine" not in outcome.queues


def test_conditions_and_events_of_a_gang() -> None:
    outcome = build_engine(
        conf=GANGS,
        nodes=[make_node("a", cpu=1)],
        pods=[make_member("job-w-0"), make_member("job-w-1"), make_member("solo", "solo", requests={})],
        objects=[make_group(min_member=2), make_group("solo")],
    ).run_session()
    (condition,) = outcome.groups["default/job"].status.conditions
    assert (condition.type, condition.reason) == ("Unschedulable", "NotEnoughResources")
    assert condition.message.startswith("1/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAv")
    assert outcome.groups["default/job"].status.phase == "Inqueue"
    (ready,) = outcome.groups["default/solo"].status.conditions
    assert (ready.type, ready.reason) == ("Scheduled", "tasks in gang are ready to be scheduled")
    kinds = {(event.group, event.type, event.reason) for event in outcome.events}
    assert kinds == {("default/job", "Warning", "Unschedulable"), ("default/solo", "Warning", "Unschedulable")}
