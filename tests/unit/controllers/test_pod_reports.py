"""What a kubelet does next with a pod: a table of lives and ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bayplan.controllers.pod_reports import Memory, Remove, Report, Step, Wait, next_step
from bayplan.controllers.pod_stages import (
    EXIT_CODE,
    FAILURE_RATE,
    READY_AFTER,
    RUNS_FOR,
    STARTS_AFTER,
    STOPS_AFTER,
    PodHabits,
    annotation_problems,
)
from bayplan.controllers.seen import SeenPod
from bayplan.objects.kinds import convert

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def pod(*, annotations: dict[str, str] | None = None, **more: Any) -> SeenPod:
    meta = {"name": "p", "namespace": "team", "uid": "u1", "generation": 3, "annotations": annotations or {}}
    spec = {
        "nodeName": "n1",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
    }
    return convert({"metadata": meta | more.pop("metadata", {}), "spec": spec | more.pop("spec", {}), **more}, SeenPod)


def status(pod: SeenPod) -> dict[str, Any]:
    step = step_of(pod)
    assert isinstance(step, Report | Remove)
    assert step.status is not None
    return step.status


def step_of(pod: SeenPod, *, habits: PodHabits | None = None, **memory: datetime) -> Step:
    memory.setdefault("seen", NOW)
    return next_step(pod, now=NOW, memory=Memory(**memory), habits=habits or PodHabits())


RUNNING: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2026-01-01T11:59:00Z",
    "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
}


def deleted(in_s: float = 30.0, **more: Any) -> dict[str, Any]:
    return {"deletionTimestamp": (NOW + seconds(in_s)).isoformat(), **more}


def test_a_pod_that_is_bound_runs() -> None:
    told = status(pod())
    assert {key: told[key] for key in ("phase", "startTime", "podIP", "hostIP", "observedGeneration")} == {
        "phase": "Running",
        "startTime": "2026-01-01T12:00:00Z",
        "podIP": "10.79.159.11",
        "hostIP": "127.0.0.1",
        "observedGeneration": 3,
    }
    assert [(each["type"], each["status"]) for each in told["conditions"]] == [
        ("PodScheduled", "True"),
        ("PodReadyToStartContainers", "True"),
        ("Initialized", "True"),
        ("ContainersReady", "True"),
        ("Ready", "True"),
    ]
    assert told["containerStatuses"] == [
        {
            "name": "c",
            "image": "i",
            "imageID": "",
            "containerID": "fake://u1/c",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T12:00:00Z"}},
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            "allocatedResources": {"cpu": "1"},
        }
    ]
    init = [
        (each["name"], each["ready"], each["started"], list(each["state"])) for each in told["initContainerStatuses"]
    ]
    assert init == [("i", True, False, ["terminated"]), ("s", True, True, ["running"])]


def test_the_condition_that_the_scheduler_wrote_is_left_to_it() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    told = status(pod(status={"phase": "Pending", "conditions": [scheduled]}))
    assert "PodScheduled" not in [each["type"] for each in told["conditions"]]


def test_resources_of_the_whole_pod_are_told() -> None:
    told = status(pod(spec={"resources": {"requests": {"cpu": "3"}}}))
    assert (told["allocatedResources"], told["resources"]) == ({"cpu": "3"}, {"requests": {"cpu": "3"}})


@pytest.mark.parametrize(
    ("annotations", "habits", "started", "expected"),
    [
        pytest.param({}, PodHabits(), 1e6, None, id="for ever"),
        pytest.param({RUNS_FOR: "90s"}, PodHabits(), 30, Wait(60.0), id="not yet"),
        pytest.param({RUNS_FOR: "1m30s"}, PodHabits(), 90, Report, id="its time is over"),
        pytest.param({}, PodHabits(runs_for_s=10), 4, Wait(6.0), id="by habit, not yet"),
        pytest.param({}, PodHabits(runs_for_s=10), 10, Report, id="by habit, over"),
        pytest.param({RUNS_FOR: "1h"}, PodHabits(runs_for_s=10), 10, Wait(3590.0), id="the pod knows better"),
        pytest.param({RUNS_FOR: "0s"}, PodHabits(), 0, Report, id="at once"),
        pytest.param({RUNS_FOR: "soon"}, PodHabits(), 100, None, id="nonsense counts for nothing"),
        pytest.param({RUNS_FOR: "-1s"}, PodHabits(), 100, None, id="negative counts for nothing"),
    ],
)
def test_a_pod_succeeds_when_its_time_is_over(
    annotations: dict[str, str], habits: PodHabits, started: float, expected: Wait | type[Report] | None
) -> None:
    step = step_of(pod(annotations=annotations, status=RUNNING), habits=habits, started=NOW - seconds(started))
    assert isinstance(step, Report) if expected is Report else step == expected


def test_without_a_memory_the_start_time_of_the_status_counts() -> None:
    assert step_of(pod(annotations={RUNS_FOR: "90s"}, status=RUNNING)) == Wait(29.5)


def test_a_pod_that_succeeded_says_so_everywhere() -> None:
    told = status(pod(annotations={RUNS_FOR: "0"}, status=RUNNING))
    assert told["phase"] == "Succeeded"
    ready = {each["type"]: (each["status"], each.get("reason")) for each in told["conditions"]}
    assert ready["Ready"] == ready["ContainersReady"] == ("False", "PodCompleted")
    assert ready["Initialized"] == ("True", "PodCompleted")
    states = [each["state"]["terminated"] for each in told["containerStatuses"] + told["initContainerStatuses"]]
    assert {(each["exitCode"], each["reason"]) for each in states} == {(0, "Completed")}
    assert states[0]["startedAt"] == "2026-01-01T11:59:00Z"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_is_left_alone(phase: str) -> None:
    assert step_of(pod(status={"phase": phase})) is None


@pytest.mark.parametrize(
    ("annotations", "habits", "stopping", "left", "expected"),
    [
        pytest.param({}, PodHabits(), 0, 30, Remove(), id="at once"),
        pytest.param({}, PodHabits(stops_after_s=5), 2, 30, Wait(3.0), id="by habit"),
        pytest.param({STOPS_AFTER: "10s"}, PodHabits(stops_after_s=5), 2, 30, Wait(8.0), id="by annotation"),
        pytest.param({STOPS_AFTER: "10s"}, PodHabits(), 2, 5, Wait(5.0), id="within its grace"),
        pytest.param({STOPS_AFTER: "10m"}, PodHabits(), 2, -1, Remove(), id="its grace is over"),
        pytest.param({STOPS_AFTER: "never"}, PodHabits(), 2, 30, Remove(), id="nonsense counts for nothing"),
    ],
)
def test_a_pod_goes_when_it_is_deleted(
    annotations: dict[str, str], habits: PodHabits, stopping: float, left: float, expected: Step
) -> None:
    gone = pod(annotations=annotations, metadata=deleted(left), status=RUNNING)
    assert step_of(gone, habits=habits, stopping=NOW - seconds(stopping)) == expected


def test_one_that_never_ran_goes_too() -> None:
    assert step_of(pod(metadata=deleted(), status={"phase": "Pending"})) == Remove()


def test_whoever_keeps_a_pod_by_a_finalizer_is_told_how_it_ended() -> None:
    told = status(pod(metadata=deleted(finalizers=["batch.kubernetes.io/job-tracking"]), status=RUNNING))
    assert told["phase"] == "Failed"
    assert told["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert told["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_a_pod_takes_its_time_to_start() -> None:
    habits = PodHabits(starts_after_s=5)
    assert step_of(pod(), habits=habits, seen=NOW - seconds(1)) == Wait(4.0)
    assert isinstance(step_of(pod(), habits=habits, seen=NOW - seconds(5)), Report)


def test_a_resize_is_done_at_once() -> None:
    pending = {"type": "PodResizePending", "status": "True"}
    asks = [{"name": "c", "resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2"}}}]
    told = status(pod(spec={"containers": asks, "initContainers": []}, status=RUNNING | {"conditions": [pending]}))
    assert set(told) == {"containerStatuses", "observedGeneration", "conditions"}
    assert told["conditions"] == [{"type": "PodResizePending", "$patch": "delete"}]
    (container,) = told["containerStatuses"]
    assert container["allocatedResources"] == {"cpu": "1500m"}
    assert container["resources"] == {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2"}}
    assert container["state"] == {"running": {"startedAt": "2026-01-01T11:59:00Z"}}


def test_a_server_that_knows_no_resize_is_not_told_of_one() -> None:
    assert step_of(pod(status={"phase": "Running", "containerStatuses": [{"name": "c"}]})) is None


def test_authors_are_told_what_to_correct() -> None:
    problems = annotation_problems(pod(annotations={RUNS_FOR: "soon", STOPS_AFTER: "1s"}))
    assert problems == ["bayplan.dev/runs-for: 'soon' is no duration; write one such as 90s or 1h30m"]


def test_a_pod_on_its_nodes_network_has_its_nodes_address() -> None:
    assert status(pod(spec={"hostNetwork": True}))["podIP"] == "127.0.0.1"


# Stages


def ready_state(told: dict[str, Any]) -> tuple[str, bool]:
    return (
        {each["type"]: each["status"] for each in told["conditions"]}["Ready"],
        told["containerStatuses"][0]["ready"],
    )


def test_a_pod_may_start_late_and_be_ready_later() -> None:
    late = pod(annotations={STARTS_AFTER: "5s"})
    assert step_of(late, seen=NOW - seconds(2)) == Wait(3.0)
    slow = {READY_AFTER: "10s"}
    assert ready_state(status(pod(annotations=slow))) == ("False", False)
    unready = {**RUNNING, "conditions": [{"type": "Ready", "status": "False"}]}
    assert step_of(pod(annotations=slow, status=unready), started=NOW - seconds(4)) == Wait(6.0)
    step = step_of(pod(annotations=slow, status=unready), started=NOW - seconds(10))
    assert isinstance(step, Report)
    assert ready_state(step.status) == ("True", True)


def test_a_pod_that_somebody_called_unready_says_that_it_is_well() -> None:
    unready = {**RUNNING, "conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}
    assert ready_state(status(pod(status=unready))) == ("True", True)


@pytest.mark.parametrize(
    ("annotations", "policy", "phase", "code"),
    [
        ({EXIT_CODE: "3"}, "Never", "Failed", 3),
        ({EXIT_CODE: "0", RUNS_FOR: "0s"}, "Never", "Succeeded", 0),
        ({FAILURE_RATE: "100%"}, "Never", "Failed", 1),
        ({FAILURE_RATE: "1", EXIT_CODE: "42"}, "Never", "Failed", 42),
        ({FAILURE_RATE: "0", RUNS_FOR: "0s", EXIT_CODE: "42"}, "Always", "Succeeded", 0),
    ],
)
def test_how_a_pod_ends(annotations: dict[str, str], policy: str, phase: str, code: int) -> None:
    told = status(pod(annotations=annotations, spec={"restartPolicy": policy}, status=RUNNING))
    assert told["phase"] == phase
    assert told["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


def test_about_that_share_of_pods_fails() -> None:
    ends = [
        step_of(pod(annotations={FAILURE_RATE: "0.3"}, metadata={"uid": str(number)}, status=RUNNING))
        for number in range(400)
    ]
    failed = sum(1 for each in ends if isinstance(each, Report))
    assert 80 < failed < 160


@pytest.mark.parametrize(("restarts", "waited", "expected"), [(0, 0, 1), (1, 9, Wait(1.0)), (1, 10, 2), (9, 300, 10)])
def test_containers_are_restarted_ever_later(restarts: int, waited: float, expected: int | Wait) -> None:
    containers = [{**RUNNING["containerStatuses"][0], "restartCount": restarts}]
    running = {**RUNNING, "containerStatuses": containers}
    failing = pod(annotations={EXIT_CODE: "1"}, spec={"restartPolicy": "OnFailure"}, status=running)
    step = step_of(failing, started=NOW - seconds(waited))
    if isinstance(expected, Wait):
        assert step == expected
    else:
        assert isinstance(step, Report)
        assert (step.status["phase"], step.status["containerStatuses"][0]["restartCount"]) == ("Running", expected)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(STARTS_AFTER, "x"), (READY_AFTER, "-1s"), (EXIT_CODE, "256"), (EXIT_CODE, "-1"), (FAILURE_RATE, "1.5")],
)
def test_nonsense_is_told(annotation: str, text: str) -> None:
    (problem,) = annotation_problems(pod(annotations={annotation: text}))
    assert problem.startswith(f"{annotation}: {text!r} is no ")
