from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from bayplan.batch.model.pod_templates import PodTemplateIndex
from bayplan.batch.model.statuses import TaskStatus, status_of
from bayplan.batch.model.tasks import QUEUE_ALLOCATION_GATE, Task, default_task_order, parse_int
from bayplan.objects.core import Pod, PodStatus
from bayplan.snapshot import InternTables
from support.builders.batch import make_member

GONE = datetime(2024, 1, 1, tzinfo=UTC)


def pod_in(phase: str, *, node: str = "", going: bool = False) -> Pod:
    pod = replace(make_member("p", node=node), status=PodStatus(phase=phase))
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=GONE)) if going else pod


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        pytest.param(pod_in("Pending"), TaskStatus.PENDING, id="waits"),
        pytest.param(pod_in("Pending", node="n"), TaskStatus.BOUND, id="bound"),
        pytest.param(pod_in("Pending", going=True), TaskStatus.RELEASING, id="deleted-before-it-ran"),
        pytest.param(pod_in("Running", node="n"), TaskStatus.RUNNING, id="runs"),
        pytest.param(pod_in("Running", node="n", going=True), TaskStatus.RELEASING, id="goes"),
        pytest.param(pod_in("Succeeded", node="n"), TaskStatus.SUCCEEDED, id="done"),
        pytest.param(pod_in("Failed", node="n", going=True), TaskStatus.FAILED, id="failed"),
        pytest.param(pod_in("Unknown"), TaskStatus.UNKNOWN, id="unknown"),
        pytest.param(pod_in(""), TaskStatus.UNKNOWN, id="says-nothing"),
    ],
)
def test_a_status_comes_from_the_pod(pod: Pod, status: TaskStatus) -> None:
    assert status_of(pod) is status
    assert status.label == status.name.capitalize()


@pytest.mark.parametrize(
    ("notes", "labels", "preemptable"),
    [
        pytest.param({}, {}, True, id="says-nothing"),
        pytest.param({"volcano.sh/preemptable": "false"}, {}, False, id="no"),
        pytest.param({"volcano.sh/preemptable": "t"}, {"volcano.sh/preemptable": "false"}, True, id="annotation-first"),
        pytest.param({}, {"volcano.sh/preemptable": "0"}, False, id="label"),
        pytest.param({"volcano.sh/preemptable": "perhaps"}, {}, False, id="unreadable"),
    ],
)
def test_preemptable_pods(notes: dict[str, str], labels: dict[str, str], preemptable: bool) -> None:
    assert Task(make_member("p", annotations=notes, labels=labels)).preemptable is preemptable


@pytest.mark.parametrize(
    ("notes", "zone"),
    [
        ({}, ""),
        ({"volcano.sh/revocable-zone": "*"}, "*"),
        ({"volcano.sh/revocable-zone": "rz1"}, ""),
        ({"volcano.sh/preemptable": "true"}, "*"),
        ({"volcano.sh/revocable-zone": "", "volcano.sh/preemptable": "true"}, ""),
    ],
)
def test_revocable_zones(notes: dict[str, str], zone: str) -> None:
    assert Task(make_member("p", annotations=notes)).revocable_zone == zone


def test_the_default_priority_is_one() -> None:
    pod = make_member("p")
    assert Task(pod).priority == 1
    ranked = replace(pod, spec=replace(pod.spec, priority=0))
    assert Task(ranked).priority == 0
    noted = make_member("p", annotations={"volcano.sh/task-priority": "7"})
    assert Task(replace(noted, spec=ranked.spec)).priority == 7
    assert Task(make_member("p", annotations={"volcano.sh/task-priority": "99999999999"})).priority == 1


def test_roles_and_jobs() -> None:
    task = Task(make_member("p", "job", labels={"volcano.sh/task-spec": "ps"}))
    assert (task.role, task.job, task.key) == ("ps", "default/job", "default/p")
    both = make_member("p", annotations={"volcano.sh/task-spec": "w"}, labels={"volcano.sh/task-spec": "ps"})
    assert Task(both).role == "w"
    assert Task(make_member("p", "")).job == ""


def test_a_task_without_requests_is_best_effort() -> None:
    assert Task(make_member("p", requests={})).best_effort
    assert not Task(make_member("p", requests={"memory": "1"})).best_effort


def test_scheduling_gates() -> None:
    own = Task(make_member("p", gates=[QUEUE_ALLOCATION_GATE]))
    assert (own.gated, own.has_only_queue_gate) == (True, True)
    other = Task(make_member("p", gates=[QUEUE_ALLOCATION_GATE, "example.com/hold"]))
    assert (other.gated, other.has_only_queue_gate) == (True, False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("job-w-2", "job-w-10", id="by-number"),
        pytest.param("job-w-1", "job-w-x", id="by-uid-where-one-has-none"),
        pytest.param("w-2", "w-10", id="two-parts-have-no-number"),
    ],
)
def test_the_default_order(first: str, second: str) -> None:
    left, right = Task(make_member(first)), Task(make_member(second))
    expected = (left.uid < right.uid) if left.index is None or right.index is None else left.index < right.index
    assert default_task_order(left, right) is expected
    assert default_task_order(right, left) is not expected


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("-7", -7), ("+7", 7), ("007", 7), ("7.0", None), ("", None), (" 7", None)]
)
def test_parse_int_follows_go(text: str, number: int | None) -> None:
    assert parse_int(text) == number


def test_parse_int_checks_the_number_of_bits() -> None:
    assert parse_int("2147483647", 32) == 2**31 - 1
    assert parse_int("2147483648", 32) is None


def test_tasks_with_equal_specs_share_a_template_number() -> None:
    templates = PodTemplateIndex(InternTables())
    first, second = (Task(make_member(name, "job", requests={"cpu": "1"})) for name in ("a", "b"))
    other = Task(make_member("c", "job", requests={"cpu": "2"}))
    elsewhere = Task(make_member("d", "job-2", requests={"cpu": "1"}))
    numbers = [templates.template_number(task) for task in (first, second, other, elsewhere)]
    assert numbers == [1, 1, 2, 3]
    assert [templates.template_number(task) for task in (first, second, other, elsewhere)] == numbers
    templates.forget(first.job)
    assert templates.template_number(Task(make_member("e", "job", requests={"cpu": "2"}))) == 4
    assert templates.template_number(Task(make_member("f", "job-2", requests={"cpu": "1"}))) == 3
