"""Next steps of the fake kubelet for a pod: starts, ends, restarts and deletions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bayplan.controllers.core.api_types import PodFields, Tree
from bayplan.controllers.kubelet.pod_stages import (
    EXIT_CODE,
    FAILURE_RATE,
    FOREVER,
    READY_AFTER,
    RUNS_FOR,
    STARTS_AFTER,
    STOPS_AFTER,
    ContainerExit,
    PodBehavior,
    annotation_problems,
    container_exit,
    pod_behavior,
)
from bayplan.controllers.kubelet.pod_sync import (
    PatchAnnotations,
    PatchStatus,
    PodRuntimeState,
    RemovePod,
    Step,
    WaitStep,
    WarningEvent,
    next_step,
)
from bayplan.objects.kinds import convert

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def pod(*, annotations: dict[str, str] | None = None, **fields: Any) -> PodFields:
    meta = {"name": "p", "namespace": "team", "uid": "u1", "generation": 3, "annotations": annotations or {}}
    spec = {
        "nodeName": "n1",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
    }
    return convert(
        {"metadata": meta | fields.pop("metadata", {}), "spec": spec | fields.pop("spec", {}), **fields}, PodFields
    )


def status(pod: PodFields) -> dict[str, Any]:
    step = step_of(pod)
    assert isinstance(step, PatchStatus | RemovePod)
    assert step.status is not None
    return step.status


def step_of(pod: PodFields, *, habits: PodBehavior | None = None, **state_times: datetime) -> Step:
    state_times.setdefault("seen", NOW)
    return next_step(pod, now=NOW, state=PodRuntimeState(**state_times), habits=habits or PodBehavior())


RUNNING: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2026-01-01T11:59:00Z",
    "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
}


def deleted(in_s: float = 30.0, **fields: Any) -> dict[str, Any]:
    return {"deletionTimestamp": (NOW + seconds(in_s)).isoformat(), **fields}


def test_a_bound_pod_is_reported_as_running() -> None:
    reported = status(pod())
    assert {key: reported[key] for key in ("phase", "startTime", "podIP", "hostIP", "observedGeneration")} == {
        "phase": "Running",
        "startTime": "2026-01-01T12:00:00Z",
        "podIP": "10.79.159.11",
        "hostIP": "127.0.0.1",
        "observedGeneration": 3,
    }
    assert [(each["type"], each["status"]) for each in reported["conditions"]] == [
        ("PodScheduled", "True"),
        ("PodReadyToStartContainers", "True"),
        ("Initialized", "True"),
        ("ContainersReady", "True"),
        ("Ready", "True"),
    ]
    assert reported["containerStatuses"] == [
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
        (each["name"], each["ready"], each["started"], list(each["state"]))
        for each in reported["initContainerStatuses"]
    ]
    assert init == [("i", True, False, ["terminated"]), ("s", True, True, ["running"])]


def test_the_pod_scheduled_condition_of_the_scheduler_is_kept() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    reported = status(pod(status={"phase": "Pending", "conditions": [scheduled]}))
    assert "PodScheduled" not in [each["type"] for each in reported["conditions"]]


def test_pod_level_resources_are_reported() -> None:
    reported = status(pod(spec={"resources": {"requests": {"cpu": "3"}}}))
    assert (reported["allocatedResources"], reported["resources"]) == ({"cpu": "3"}, {"requests": {"cpu": "3"}})


@pytest.mark.parametrize(
    ("annotations", "habits", "started", "expected"),
    [
        pytest.param({}, PodBehavior(), 1e6, None, id="for ever"),
        pytest.param({RUNS_FOR: "90s"}, PodBehavior(), 30, WaitStep(60.0), id="not yet"),
        pytest.param({RUNS_FOR: "1m30s"}, PodBehavior(), 90, PatchStatus, id="its time is over"),
        pytest.param({}, PodBehavior(runs_for_s=10), 4, WaitStep(6.0), id="by habit, not yet"),
        pytest.param({}, PodBehavior(runs_for_s=10), 10, PatchStatus, id="by habit, over"),
        pytest.param({RUNS_FOR: "1h"}, PodBehavior(runs_for_s=10), 10, WaitStep(3590.0), id="the pod knows better"),
        pytest.param({RUNS_FOR: "0s"}, PodBehavior(), 0, PatchStatus, id="at once"),
        pytest.param({RUNS_FOR: "soon"}, PodBehavior(), 100, None, id="nonsense counts for nothing"),
        pytest.param({RUNS_FOR: "-1s"}, PodBehavior(), 100, None, id="negative counts for nothing"),
    ],
)
def test_a_pod_succeeds_after_its_run_time(
    annotations: dict[str, str], habits: PodBehavior, started: float, expected: WaitStep | type[PatchStatus] | None
) -> None:
    step = step_of(pod(annotations=annotations, status=RUNNING), habits=habits, started=NOW - seconds(started))
    assert isinstance(step, PatchStatus) if expected is PatchStatus else step == expected


def owned_by(api_version: str, kind: str = "Job", *, controller: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o1", "controller": controller}
    return {"ownerReferences": [owner]}


@pytest.mark.parametrize(
    ("meta", "annotations", "habits", "expected"),
    [
        pytest.param(owned_by("batch/v1"), {}, PodBehavior(), ContainerExit(2.0, 0), id="a Job's"),
        pytest.param(
            owned_by("batch/v1"), {}, PodBehavior(job_runs_for_s=7), ContainerExit(7, 0), id="a Job's, by habit"
        ),
        pytest.param(
            owned_by("batch/v1"), {}, PodBehavior(runs_for_s=60), ContainerExit(60, 0), id="all have one habit"
        ),
        pytest.param(
            owned_by("batch/v1"), {RUNS_FOR: "90s"}, PodBehavior(), ContainerExit(90, 0), id="the pod knows better"
        ),
        pytest.param(owned_by("batch/v1"), {RUNS_FOR: "forever"}, PodBehavior(), None, id="forever"),
        pytest.param(owned_by("batch/v1"), {}, PodBehavior(runs_for_s=FOREVER), None, id="forever, by habit"),
        pytest.param({}, {RUNS_FOR: "forever"}, PodBehavior(runs_for_s=5), None, id="forever, against the habit"),
        pytest.param(
            owned_by("batch/v1"), {EXIT_CODE: "1"}, PodBehavior(), ContainerExit(0.0, 1), id="a failure is at once"
        ),
        pytest.param(owned_by("batch.volcano.sh/v1alpha1"), {}, PodBehavior(), None, id="Volcano's"),
        pytest.param(owned_by("batch/v1", controller=False), {}, PodBehavior(), None, id="of no controller"),
        pytest.param(owned_by("apps/v1", "ReplicaSet"), {}, PodBehavior(), None, id="a ReplicaSet's"),
    ],
)
def test_pods_of_jobs_end_by_themselves(
    meta: dict[str, Any], annotations: dict[str, str], habits: PodBehavior, expected: ContainerExit | None
) -> None:
    job_member = pod(metadata=meta, annotations=annotations)
    assert container_exit(job_member, pod_behavior(job_member, habits), 0) == expected


def test_a_restarted_kubelet_uses_the_start_time_of_the_status() -> None:
    assert step_of(pod(annotations={RUNS_FOR: "90s"}, status=RUNNING)) == WaitStep(29.5)


def test_all_fields_of_the_status_show_the_success() -> None:
    reported = status(pod(annotations={RUNS_FOR: "0"}, status=RUNNING))
    assert reported["phase"] == "Succeeded"
    ready = {each["type"]: (each["status"], each.get("reason")) for each in reported["conditions"]}
    assert ready["Ready"] == ready["ContainersReady"] == ("False", "PodCompleted")
    assert ready["Initialized"] == ("True", "PodCompleted")
    states = [each["state"]["terminated"] for each in reported["containerStatuses"] + reported["initContainerStatuses"]]
    assert {(each["exitCode"], each["reason"]) for each in states} == {(0, "Completed")}
    assert states[0]["startedAt"] == "2026-01-01T11:59:00Z"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_needs_no_step(phase: str) -> None:
    assert step_of(pod(status={"phase": phase})) is None


@pytest.mark.parametrize(
    ("annotations", "habits", "stopping", "left", "expected"),
    [
        pytest.param({}, PodBehavior(), 0, 30, RemovePod(), id="at once"),
        pytest.param({}, PodBehavior(stops_after_s=5), 2, 30, WaitStep(3.0), id="by habit"),
        pytest.param({STOPS_AFTER: "10s"}, PodBehavior(stops_after_s=5), 2, 30, WaitStep(8.0), id="by annotation"),
        pytest.param({STOPS_AFTER: "10s"}, PodBehavior(), 2, 5, WaitStep(5.0), id="within its grace"),
        pytest.param({STOPS_AFTER: "10m"}, PodBehavior(), 2, -1, RemovePod(), id="its grace is over"),
        pytest.param({STOPS_AFTER: "never"}, PodBehavior(), 2, 30, RemovePod(), id="nonsense counts for nothing"),
    ],
)
def test_a_deleted_pod_is_removed(
    annotations: dict[str, str], habits: PodBehavior, stopping: float, left: float, expected: Step
) -> None:
    deleted_pod = pod(annotations=annotations, metadata=deleted(left), status=RUNNING)
    assert step_of(deleted_pod, habits=habits, stopping=NOW - seconds(stopping)) == expected


def test_a_deleted_pod_that_never_ran_is_removed() -> None:
    assert step_of(pod(metadata=deleted(), status={"phase": "Pending"})) == RemovePod()


def test_a_pod_with_finalizers_gets_a_final_status() -> None:
    reported = status(pod(metadata=deleted(finalizers=["batch.kubernetes.io/job-tracking"]), status=RUNNING))
    assert reported["phase"] == "Failed"
    assert reported["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert reported["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_a_pod_starts_after_its_delay() -> None:
    habits = PodBehavior(starts_after_s=5)
    assert step_of(pod(), habits=habits, seen=NOW - seconds(1)) == WaitStep(4.0)
    assert isinstance(step_of(pod(), habits=habits, seen=NOW - seconds(5)), PatchStatus)


def test_a_resize_is_applied_at_once() -> None:
    pending = {"type": "PodResizePending", "status": "True"}
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2"}}}]
    reported = status(
        pod(spec={"containers": containers, "initContainers": []}, status=RUNNING | {"conditions": [pending]})
    )
    assert set(reported) == {"containerStatuses", "observedGeneration", "conditions"}
    assert reported["conditions"] == [{"type": "PodResizePending", "$patch": "delete"}]
    (container,) = reported["containerStatuses"]
    assert container["allocatedResources"] == {"cpu": "1500m"}
    assert container["resources"] == {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2"}}
    assert container["state"] == {"running": {"startedAt": "2026-01-01T11:59:00Z"}}


def test_a_server_without_resize_gets_no_resize_status() -> None:
    assert step_of(pod(status={"phase": "Running", "containerStatuses": [{"name": "c"}]})) is None


def test_annotation_problems_say_what_to_correct() -> None:
    problems = annotation_problems(pod(annotations={RUNS_FOR: "soon", STOPS_AFTER: "1s"}))
    assert problems == ["bayplan.dev/runs-for: 'soon' is no duration; write one such as 90s or 1h30m, or forever"]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("bayplan.dev/run-for", "runs-for"),
        ("bayplan.dev/exitcode", "exit-code"),
        ("bayplan.dev/start-after", "starts-after"),
        ("bayplan.dev/binder", None),
        ("bayplan.dev/pool", None),
        ("example.com/run-for", None),
    ],
)
def test_misspelled_annotations_are_problems(key: str, near: str | None) -> None:
    reported = [f"{key}: there is no such annotation; did you mean bayplan.dev/{near}?"] if near else []
    assert annotation_problems(pod(annotations={key: "5s"})) == reported


def test_a_host_network_pod_has_the_nodes_address() -> None:
    assert status(pod(spec={"hostNetwork": True}))["podIP"] == "127.0.0.1"


# Stages.


def ready_status(reported: dict[str, Any]) -> tuple[str, bool]:
    return (
        {each["type"]: each["status"] for each in reported["conditions"]}["Ready"],
        reported["containerStatuses"][0]["ready"],
    )


def test_start_and_readiness_can_be_delayed() -> None:
    late_starter = pod(annotations={STARTS_AFTER: "5s"})
    assert step_of(late_starter, seen=NOW - seconds(2)) == WaitStep(3.0)
    slow_start = {READY_AFTER: "10s"}
    assert ready_status(status(pod(annotations=slow_start))) == ("False", False)
    unready = {**RUNNING, "conditions": [{"type": "Ready", "status": "False"}]}
    assert step_of(pod(annotations=slow_start, status=unready), started=NOW - seconds(4)) == WaitStep(6.0)
    step = step_of(pod(annotations=slow_start, status=unready), started=NOW - seconds(10))
    assert isinstance(step, PatchStatus)
    assert ready_status(step.status) == ("True", True)


def test_a_pod_marked_as_not_ready_becomes_ready_again() -> None:
    unready = {**RUNNING, "conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}
    assert ready_status(status(pod(status=unready))) == ("True", True)


@pytest.mark.parametrize(
    ("annotations", "policy", "phase", "code"),
    [
        ({EXIT_CODE: "3"}, "Never", "Failed", 3),
        ({EXIT_CODE: "0", RUNS_FOR: "0s"}, "Never", "Succeeded", 0),
        ({FAILURE_RATE: "100%"}, "Never", "Failed", 1),
        ({FAILURE_RATE: "1", EXIT_CODE: "42"}, "Never", "Failed", 42),
        ({FAILURE_RATE: "0", RUNS_FOR: "0s", EXIT_CODE: "42"}, "OnFailure", "Succeeded", 0),
    ],
)
def test_phase_and_exit_code_of_a_finished_pod(annotations: dict[str, str], policy: str, phase: str, code: int) -> None:
    reported = status(pod(annotations=annotations, spec={"restartPolicy": policy}, status=RUNNING))
    assert reported["phase"] == phase
    assert reported["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


def test_the_failure_rate_is_the_share_of_failed_pods() -> None:
    ends = [
        step_of(pod(annotations={FAILURE_RATE: "0.3"}, metadata={"uid": str(number)}, status=RUNNING))
        for number in range(400)
    ]
    failed = sum(1 for each in ends if isinstance(each, PatchStatus))
    assert 80 < failed < 160


# Restarts of containers.


class SimulatedPod:
    """A pod and its kubelet on virtual time: reported statuses are merged into the pod."""

    def __init__(self, annotations: dict[str, str], *, policy: str = "Always", uid: str = "u1") -> None:
        self.now = NOW
        self.runtime_state = PodRuntimeState(seen=NOW)
        self.events: list[WarningEvent] = []
        self._pod: Tree = {
            "metadata": {"name": "p", "namespace": "team", "uid": uid, "annotations": annotations},
            "spec": {
                "nodeName": "n1",
                "restartPolicy": policy,
                "containers": [{"name": "c", "image": "i"}],
                "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            },
            "status": {"phase": "Pending"},
        }

    def advance(self, seconds_: float) -> list[tuple[float, str, int]]:
        """Let time pass. Returns time, container state and restart count of each report."""
        until, reported = self.now + seconds(seconds_), []
        while True:
            seen = convert(self._pod, PodFields)
            step = next_step(seen, now=self.now, state=self.runtime_state, habits=PodBehavior())
            if isinstance(step, PatchStatus):
                self._apply(step)
                reported.append(((self.now - NOW).total_seconds(), self.state, self.container["restartCount"]))
                continue
            assert not isinstance(step, RemovePod)
            if step is None or self.now + seconds(step.seconds) > until:
                self.now = until
                return reported
            self.now += seconds(step.seconds)

    def _apply(self, report: PatchStatus) -> None:
        conditions = {each["type"]: each for each in self._pod["status"].get("conditions", ())}
        for each in report.status["conditions"]:
            merged = {**conditions.get(each["type"], {}), **each}
            conditions[each["type"]] = {key: value for key, value in merged.items() if value is not None}
        self._pod["status"] = {**self._pod["status"], **report.status, "conditions": list(conditions.values())}
        self.runtime_state = replace(self.runtime_state, **report.runtime_changes)
        self.events += report.events

    def forget(self) -> None:
        """Restart the kubelet: it knows only the pod's status."""
        self.runtime_state = PodRuntimeState(seen=self.now)

    @property
    def status(self) -> Tree:
        return self._pod["status"]  # type: ignore[no-any-return]

    @property
    def container(self) -> Tree:
        return self.status["containerStatuses"][0]  # type: ignore[no-any-return]

    @property
    def state(self) -> str:
        ((kind, reported),) = self.container["state"].items()
        return str(reported.get("reason", kind))

    def condition(self, kind: str) -> Tree:
        return next(each for each in self.status["conditions"] if each["type"] == kind)


def test_a_crashing_container_is_restarted_with_growing_delays() -> None:
    simulated = SimulatedPod({EXIT_CODE: "3", RUNS_FOR: "1s"})
    assert simulated.advance(60) == [
        (0, "running", 0),
        (1, "Error", 0),
        (1, "running", 1),
        (2, "Error", 1),
        (2, "CrashLoopBackOff", 1),
        (12, "running", 2),
        (13, "Error", 2),
        (13, "CrashLoopBackOff", 2),
        (33, "running", 3),
        (34, "Error", 3),
        (34, "CrashLoopBackOff", 3),
    ]
    simulated.advance(3600)
    *_, before, last = [when for when, state, _ in simulated.advance(3600) if state == "CrashLoopBackOff"]
    assert last - before == 301


def test_a_container_that_crashes_at_once_is_never_reported_as_running() -> None:
    simulated = SimulatedPod({EXIT_CODE: "1"})
    assert simulated.advance(15) == [
        (0, "Error", 0),
        (0, "Error", 1),
        (0, "CrashLoopBackOff", 1),
        (10, "Error", 2),
        (10, "CrashLoopBackOff", 2),
    ]
    assert simulated.status["phase"] == "Running"


def test_a_crash_is_reported_as_by_a_kubelet() -> None:
    simulated = SimulatedPod({EXIT_CODE: "3", RUNS_FOR: "1s"})
    simulated.advance(1.5)
    ended = {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": "2026-01-01T12:00:00Z",
        "finishedAt": "2026-01-01T12:00:01Z",
    }
    assert (simulated.state, simulated.container["lastState"]) == ("running", {"terminated": ended})
    assert simulated.container["state"] == {"running": {"startedAt": "2026-01-01T12:00:01Z"}}
    simulated.advance(1)
    ended = {**ended, "startedAt": "2026-01-01T12:00:01Z", "finishedAt": "2026-01-01T12:00:02Z"}
    back_off = "back-off 10s restarting failed container=c pod=p_team(u1)"
    assert simulated.container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": back_off}}
    assert simulated.container["lastState"] == {"terminated": ended}
    assert (simulated.container["ready"], simulated.container["started"], simulated.status["phase"]) == (
        False,
        False,
        "Running",
    )
    unready = ("False", "ContainersNotReady", "containers with unready status: [c]")
    for kind in ("Ready", "ContainersReady"):
        reported = simulated.condition(kind)
        assert (reported["status"], reported["reason"], reported["message"]) == unready
        assert reported["lastTransitionTime"] == "2026-01-01T12:00:00Z", "the pod was never ready"
    assert simulated.condition("Initialized")["status"] == "True"
    assert list(simulated.status["initContainerStatuses"][0]["state"]) == ["running"], "a sidecar keeps running"
    assert simulated.events == [WarningEvent("BackOff", "Back-off restarting failed container c in pod p_team(u1)")]


def test_back_off_messages_have_the_kubelets_format() -> None:
    simulated, reported = SimulatedPod({EXIT_CODE: "1"}), []
    for pause_s in (10, 20, 40, 80, 160, 300, 300):
        simulated.advance(pause_s)
        reported.append(simulated.container["state"]["waiting"]["message"].split()[1])
    assert reported == ["20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s", "5m0s"]


def test_a_long_run_is_ready_and_resets_the_backoff() -> None:
    simulated = SimulatedPod({EXIT_CODE: "1", RUNS_FOR: "600s"})
    assert simulated.advance(2000) == [
        (0, "running", 0),
        (600, "Error", 0),
        (600, "running", 1),
        (1200, "Error", 1),
        (1200, "running", 2),
        (1800, "Error", 2),
        (1800, "running", 3),
    ]
    assert simulated.condition("Ready")["status"] == "True"
    assert not {"reason", "message"} & set(simulated.condition("Ready")), (
        "reason and message of the old status are cleared"
    )
    assert simulated.events == []


@pytest.mark.parametrize(("runs_for", "ready"), [("9s", "False"), ("10s", "True")])
def test_a_container_with_short_runs_never_becomes_ready(runs_for: str, ready: str) -> None:
    simulated = SimulatedPod({EXIT_CODE: "1", RUNS_FOR: runs_for})
    simulated.advance(8)
    assert (simulated.state, simulated.condition("Ready")["status"]) == ("running", ready)


def test_a_completed_container_restarts_with_policy_always() -> None:
    simulated = SimulatedPod({RUNS_FOR: "1s"})
    assert simulated.advance(13)[:6] == [
        (0, "running", 0),
        (1, "Completed", 0),
        (1, "running", 1),
        (2, "Completed", 1),
        (2, "CrashLoopBackOff", 1),
        (12, "running", 2),
    ]
    ended = simulated.container["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    simulated.advance(3600)
    assert simulated.status["phase"] == "Running"


def test_a_random_failure_may_succeed_after_a_restart() -> None:
    uid = next(
        str(number)
        for number in range(100)
        if [container_exit(pod(metadata={"uid": str(number)}), PodBehavior(failure_rate=0.5), run) for run in (0, 1)]
        == [ContainerExit(0.0, 1), None]
    )
    simulated = SimulatedPod({FAILURE_RATE: "0.5"}, policy="OnFailure", uid=uid)
    assert simulated.advance(100) == [(0, "Error", 0), (0, "running", 1)]
    assert simulated.condition("Ready")["status"] == "True"


def test_a_restarted_kubelet_continues_from_the_pods_status() -> None:
    simulated = SimulatedPod({EXIT_CODE: "1"})
    simulated.advance(12)
    assert (simulated.state, simulated.container["restartCount"]) == ("CrashLoopBackOff", 2)
    simulated.forget()
    reported = simulated.advance(20)
    assert [(state, count) for _, state, count in reported] == [("Error", 3), ("CrashLoopBackOff", 3)]
    assert 29.0 <= reported[0][0] <= 30.0, "the API stores whole seconds"


def test_a_resize_keeps_the_state_of_a_waiting_container() -> None:
    simulated = SimulatedPod({EXIT_CODE: "1"})
    simulated.advance(1)
    waiting = simulated.container["state"]
    simulated._pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    step = next_step(
        convert(simulated._pod, PodFields), now=simulated.now, state=simulated.runtime_state, habits=PodBehavior()
    )
    assert isinstance(step, PatchStatus)
    (reported,) = step.status["containerStatuses"]
    assert (reported["state"], reported["restartCount"], reported["ready"]) == (waiting, 1, False)
    assert reported["lastState"]["terminated"]["exitCode"] == 1


def test_a_pod_may_end_before_it_is_ready() -> None:
    simulated = SimulatedPod({READY_AFTER: "1h", RUNS_FOR: "20s"}, policy="Never")
    assert simulated.advance(30) == [(0, "running", 0), (20, "Completed", 0)]
    assert simulated.status["phase"] == "Succeeded"


def test_late_readiness_is_no_restart() -> None:
    simulated = SimulatedPod({READY_AFTER: "15s", RUNS_FOR: "20s"}, policy="Never")
    assert simulated.advance(30) == [(0, "running", 0), (15, "running", 0), (20, "Completed", 0)]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(STARTS_AFTER, "x"), (READY_AFTER, "-1s"), (EXIT_CODE, "256"), (EXIT_CODE, "-1"), (FAILURE_RATE, "1.5")],
)
def test_invalid_annotations_are_problems(annotation: str, text: str) -> None:
    (problem,) = annotation_problems(pod(annotations={annotation: text}))
    assert problem.startswith(f"{annotation}: {text!r} is no ")


WHOLE_GPU: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
RUNNING_STATUS: dict[str, Any] = {"phase": "Running", "startTime": "2026-01-01T11:59:00Z"}


@pytest.mark.parametrize(
    ("metadata", "spec", "status", "expected"),
    [
        pytest.param(
            {},
            WHOLE_GPU,
            RUNNING_STATUS,
            PatchAnnotations({"run.ai/reserve_for_gpu_index": "GPU-u1"}),
            id="it holds a device",
        ),
        pytest.param({}, {}, RUNNING_STATUS, None, id="it shares one"),
        pytest.param({"labels": {}}, WHOLE_GPU, RUNNING_STATUS, None, id="it has one of its own"),
        pytest.param(
            {"annotations": {"run.ai/reserve_for_gpu_index": "GPU-7"}}, WHOLE_GPU, RUNNING_STATUS, None, id="told"
        ),
    ],
)
def test_a_gpu_reservation_pod_reports_its_device(metadata: Tree, spec: Tree, status: Tree, expected: Step) -> None:
    metadata_ = {"labels": {"runai-gpu-group": "g"}, **metadata}
    assert step_of(pod(metadata=metadata_, spec=spec, status=status)) == expected


def test_a_pending_reservation_pod_reports_no_device() -> None:
    step = step_of(pod(metadata={"labels": {"runai-gpu-group": "g"}}, spec=WHOLE_GPU))
    assert isinstance(step, PatchStatus)
