"""What a kubelet does next with a pod: a table of lives and ends."""

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


def pod(*, annotations: dict[str, str] | None = None, **more: Any) -> PodFields:
    meta = {"name": "p", "namespace": "team", "uid": "u1", "generation": 3, "annotations": annotations or {}}
    spec = {
        "nodeName": "n1",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
    }
    return convert(
        {"metadata": meta | more.pop("metadata", {}), "spec": spec | more.pop("spec", {}), **more}, PodFields
    )


def status(pod: PodFields) -> dict[str, Any]:
    step = step_of(pod)
    assert isinstance(step, PatchStatus | RemovePod)
    assert step.status is not None
    return step.status


def step_of(pod: PodFields, *, habits: PodBehavior | None = None, **memory: datetime) -> Step:
    memory.setdefault("seen", NOW)
    return next_step(pod, now=NOW, state=PodRuntimeState(**memory), habits=habits or PodBehavior())


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
def test_a_pod_succeeds_when_its_time_is_over(
    annotations: dict[str, str], habits: PodBehavior, started: float, expected: WaitStep | type[PatchStatus] | None
) -> None:
    step = step_of(pod(annotations=annotations, status=RUNNING), habits=habits, started=NOW - seconds(started))
    assert isinstance(step, PatchStatus) if expected is PatchStatus else step == expected


def owned(api_version: str, kind: str = "Job", *, controller: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o1", "controller": controller}
    return {"ownerReferences": [owner]}


@pytest.mark.parametrize(
    ("meta", "annotations", "habits", "expected"),
    [
        pytest.param(owned("batch/v1"), {}, PodBehavior(), ContainerExit(2.0, 0), id="a Job's"),
        pytest.param(owned("batch/v1"), {}, PodBehavior(job_runs_for_s=7), ContainerExit(7, 0), id="a Job's, by habit"),
        pytest.param(owned("batch/v1"), {}, PodBehavior(runs_for_s=60), ContainerExit(60, 0), id="all have one habit"),
        pytest.param(
            owned("batch/v1"), {RUNS_FOR: "90s"}, PodBehavior(), ContainerExit(90, 0), id="the pod knows better"
        ),
        pytest.param(owned("batch/v1"), {RUNS_FOR: "forever"}, PodBehavior(), None, id="forever"),
        pytest.param(owned("batch/v1"), {}, PodBehavior(runs_for_s=FOREVER), None, id="forever, by habit"),
        pytest.param({}, {RUNS_FOR: "forever"}, PodBehavior(runs_for_s=5), None, id="forever, against the habit"),
        pytest.param(
            owned("batch/v1"), {EXIT_CODE: "1"}, PodBehavior(), ContainerExit(0.0, 1), id="a failure is at once"
        ),
        pytest.param(owned("batch.volcano.sh/v1alpha1"), {}, PodBehavior(), None, id="Volcano's"),
        pytest.param(owned("batch/v1", controller=False), {}, PodBehavior(), None, id="of no controller"),
        pytest.param(owned("apps/v1", "ReplicaSet"), {}, PodBehavior(), None, id="a ReplicaSet's"),
    ],
)
def test_pods_of_jobs_end_by_themselves(
    meta: dict[str, Any], annotations: dict[str, str], habits: PodBehavior, expected: ContainerExit | None
) -> None:
    one = pod(metadata=meta, annotations=annotations)
    assert container_exit(one, pod_behavior(one, habits), 0) == expected


def test_without_a_memory_the_start_time_of_the_status_counts() -> None:
    assert step_of(pod(annotations={RUNS_FOR: "90s"}, status=RUNNING)) == WaitStep(29.5)


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
        pytest.param({}, PodBehavior(), 0, 30, RemovePod(), id="at once"),
        pytest.param({}, PodBehavior(stops_after_s=5), 2, 30, WaitStep(3.0), id="by habit"),
        pytest.param({STOPS_AFTER: "10s"}, PodBehavior(stops_after_s=5), 2, 30, WaitStep(8.0), id="by annotation"),
        pytest.param({STOPS_AFTER: "10s"}, PodBehavior(), 2, 5, WaitStep(5.0), id="within its grace"),
        pytest.param({STOPS_AFTER: "10m"}, PodBehavior(), 2, -1, RemovePod(), id="its grace is over"),
        pytest.param({STOPS_AFTER: "never"}, PodBehavior(), 2, 30, RemovePod(), id="nonsense counts for nothing"),
    ],
)
def test_a_pod_goes_when_it_is_deleted(
    annotations: dict[str, str], habits: PodBehavior, stopping: float, left: float, expected: Step
) -> None:
    gone = pod(annotations=annotations, metadata=deleted(left), status=RUNNING)
    assert step_of(gone, habits=habits, stopping=NOW - seconds(stopping)) == expected


def test_one_that_never_ran_goes_too() -> None:
    assert step_of(pod(metadata=deleted(), status={"phase": "Pending"})) == RemovePod()


def test_whoever_keeps_a_pod_by_a_finalizer_is_told_how_it_ended() -> None:
    told = status(pod(metadata=deleted(finalizers=["batch.kubernetes.io/job-tracking"]), status=RUNNING))
    assert told["phase"] == "Failed"
    assert told["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert told["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_a_pod_takes_its_time_to_start() -> None:
    habits = PodBehavior(starts_after_s=5)
    assert step_of(pod(), habits=habits, seen=NOW - seconds(1)) == WaitStep(4.0)
    assert isinstance(step_of(pod(), habits=habits, seen=NOW - seconds(5)), PatchStatus)


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
def test_what_is_almost_an_annotation_of_ours_is_told(key: str, near: str | None) -> None:
    told = [f"{key}: there is no such annotation; did you mean bayplan.dev/{near}?"] if near else []
    assert annotation_problems(pod(annotations={key: "5s"})) == told


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
    assert step_of(late, seen=NOW - seconds(2)) == WaitStep(3.0)
    slow = {READY_AFTER: "10s"}
    assert ready_state(status(pod(annotations=slow))) == ("False", False)
    unready = {**RUNNING, "conditions": [{"type": "Ready", "status": "False"}]}
    assert step_of(pod(annotations=slow, status=unready), started=NOW - seconds(4)) == WaitStep(6.0)
    step = step_of(pod(annotations=slow, status=unready), started=NOW - seconds(10))
    assert isinstance(step, PatchStatus)
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
        ({FAILURE_RATE: "0", RUNS_FOR: "0s", EXIT_CODE: "42"}, "OnFailure", "Succeeded", 0),
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
    failed = sum(1 for each in ends if isinstance(each, PatchStatus))
    assert 80 < failed < 160


# Containers that are started again


class Life:
    """A pod and its kubelet, moment by moment: whatever is told is what the pod says next."""

    def __init__(self, annotations: dict[str, str], *, policy: str = "Always", uid: str = "u1") -> None:
        self.now = NOW
        self.memory = PodRuntimeState(seen=NOW)
        self.notes: list[WarningEvent] = []
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

    def pass_by(self, seconds_: float) -> list[tuple[float, str, int]]:
        """When, in which state and how often restarted its container was told to be within so many seconds."""
        until, told = self.now + seconds(seconds_), []
        while True:
            seen = convert(self._pod, PodFields)
            step = next_step(seen, now=self.now, state=self.memory, habits=PodBehavior())
            if isinstance(step, PatchStatus):
                self._hear(step)
                told.append(((self.now - NOW).total_seconds(), self.state, self.container["restartCount"]))
                continue
            assert not isinstance(step, RemovePod)
            if step is None or self.now + seconds(step.seconds) > until:
                self.now = until
                return told
            self.now += seconds(step.seconds)

    def _hear(self, report: PatchStatus) -> None:
        conditions = {each["type"]: each for each in self._pod["status"].get("conditions", ())}
        for each in report.status["conditions"]:
            merged = {**conditions.get(each["type"], {}), **each}
            conditions[each["type"]] = {key: value for key, value in merged.items() if value is not None}
        self._pod["status"] = {**self._pod["status"], **report.status, "conditions": list(conditions.values())}
        self.memory = replace(self.memory, **report.runtime_changes)
        self.notes += report.events

    def forget(self) -> None:
        """The kubelet is started anew, and has what the pod says."""
        self.memory = PodRuntimeState(seen=self.now)

    @property
    def status(self) -> Tree:
        return self._pod["status"]  # type: ignore[no-any-return]

    @property
    def container(self) -> Tree:
        return self.status["containerStatuses"][0]  # type: ignore[no-any-return]

    @property
    def state(self) -> str:
        ((kind, told),) = self.container["state"].items()
        return str(told.get("reason", kind))

    def condition(self, kind: str) -> Tree:
        return next(each for each in self.status["conditions"] if each["type"] == kind)


def test_a_container_that_crashes_is_started_again_ever_later() -> None:
    life = Life({EXIT_CODE: "3", RUNS_FOR: "1s"})
    assert life.pass_by(60) == [
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
    life.pass_by(3600)
    *_, before, last = [when for when, state, _ in life.pass_by(3600) if state == "CrashLoopBackOff"]
    assert last - before == 301


def test_one_that_crashes_at_once_is_never_seen_to_run() -> None:
    life = Life({EXIT_CODE: "1"})
    assert life.pass_by(15) == [
        (0, "Error", 0),
        (0, "Error", 1),
        (0, "CrashLoopBackOff", 1),
        (10, "Error", 2),
        (10, "CrashLoopBackOff", 2),
    ]
    assert life.status["phase"] == "Running"


def test_a_crash_is_told_as_kubelets_tell_it() -> None:
    life = Life({EXIT_CODE: "3", RUNS_FOR: "1s"})
    life.pass_by(1.5)
    ended = {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": "2026-01-01T12:00:00Z",
        "finishedAt": "2026-01-01T12:00:01Z",
    }
    assert (life.state, life.container["lastState"]) == ("running", {"terminated": ended})
    assert life.container["state"] == {"running": {"startedAt": "2026-01-01T12:00:01Z"}}
    life.pass_by(1)
    ended = {**ended, "startedAt": "2026-01-01T12:00:01Z", "finishedAt": "2026-01-01T12:00:02Z"}
    back_off = "back-off 10s restarting failed container=c pod=p_team(u1)"
    assert life.container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": back_off}}
    assert life.container["lastState"] == {"terminated": ended}
    assert (life.container["ready"], life.container["started"], life.status["phase"]) == (False, False, "Running")
    unready = ("False", "ContainersNotReady", "containers with unready status: [c]")
    for kind in ("Ready", "ContainersReady"):
        told = life.condition(kind)
        assert (told["status"], told["reason"], told["message"]) == unready
        assert told["lastTransitionTime"] == "2026-01-01T12:00:00Z", "it was not ready at any time"
    assert life.condition("Initialized")["status"] == "True"
    assert list(life.status["initContainerStatuses"][0]["state"]) == ["running"], "a sidecar goes on"
    assert life.notes == [WarningEvent("BackOff", "Back-off restarting failed container c in pod p_team(u1)")]


def test_pauses_are_written_as_kubelets_write_them() -> None:
    life, told = Life({EXIT_CODE: "1"}), []
    for pause_s in (10, 20, 40, 80, 160, 300, 300):
        life.pass_by(pause_s)
        told.append(life.container["state"]["waiting"]["message"].split()[1])
    assert told == ["20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s", "5m0s"]


def test_one_that_ran_for_long_is_ready_meanwhile_and_begins_anew_with_its_pauses() -> None:
    life = Life({EXIT_CODE: "1", RUNS_FOR: "600s"})
    assert life.pass_by(2000) == [
        (0, "running", 0),
        (600, "Error", 0),
        (600, "running", 1),
        (1200, "Error", 1),
        (1200, "running", 2),
        (1800, "Error", 2),
        (1800, "running", 3),
    ]
    assert life.condition("Ready")["status"] == "True"
    assert not {"reason", "message"} & set(life.condition("Ready")), "nothing is left of what it said while it was not"
    assert life.notes == []


@pytest.mark.parametrize(("runs_for", "ready"), [("9s", "False"), ("10s", "True")])
def test_one_that_soon_crashes_is_not_ready_before(runs_for: str, ready: str) -> None:
    life = Life({EXIT_CODE: "1", RUNS_FOR: runs_for})
    life.pass_by(8)
    assert (life.state, life.condition("Ready")["status"]) == ("running", ready)


def test_one_that_ends_well_is_started_again_where_its_policy_says_always() -> None:
    life = Life({RUNS_FOR: "1s"})
    assert life.pass_by(13)[:6] == [
        (0, "running", 0),
        (1, "Completed", 0),
        (1, "running", 1),
        (2, "Completed", 1),
        (2, "CrashLoopBackOff", 1),
        (12, "running", 2),
    ]
    ended = life.container["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    life.pass_by(3600)
    assert life.status["phase"] == "Running"


def test_one_that_fails_by_chance_is_well_after_a_restart() -> None:
    uid = next(
        str(number)
        for number in range(100)
        if [container_exit(pod(metadata={"uid": str(number)}), PodBehavior(failure_rate=0.5), turn) for turn in (0, 1)]
        == [ContainerExit(0.0, 1), None]
    )
    life = Life({FAILURE_RATE: "0.5"}, policy="OnFailure", uid=uid)
    assert life.pass_by(100) == [(0, "Error", 0), (0, "running", 1)]
    assert life.condition("Ready")["status"] == "True"


def test_a_kubelet_that_is_started_anew_goes_by_what_the_pod_says() -> None:
    life = Life({EXIT_CODE: "1"})
    life.pass_by(12)
    assert (life.state, life.container["restartCount"]) == ("CrashLoopBackOff", 2)
    life.forget()
    told = life.pass_by(20)
    assert [(state, count) for _, state, count in told] == [("Error", 3), ("CrashLoopBackOff", 3)]
    assert 29.0 <= told[0][0] <= 30.0, "the API keeps whole seconds"


def test_a_resize_leaves_a_container_that_waits_waiting() -> None:
    life = Life({EXIT_CODE: "1"})
    life.pass_by(1)
    waiting = life.container["state"]
    life._pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    step = next_step(convert(life._pod, PodFields), now=life.now, state=life.memory, habits=PodBehavior())
    assert isinstance(step, PatchStatus)
    (told,) = step.status["containerStatuses"]
    assert (told["state"], told["restartCount"], told["ready"]) == (waiting, 1, False)
    assert told["lastState"]["terminated"]["exitCode"] == 1


def test_one_that_ends_before_it_is_ready_ends() -> None:
    life = Life({READY_AFTER: "1h", RUNS_FOR: "20s"}, policy="Never")
    assert life.pass_by(30) == [(0, "running", 0), (20, "Completed", 0)]
    assert life.status["phase"] == "Succeeded"


def test_being_ready_late_is_no_new_start() -> None:
    life = Life({READY_AFTER: "15s", RUNS_FOR: "20s"}, policy="Never")
    assert life.pass_by(30) == [(0, "running", 0), (15, "running", 0), (20, "Completed", 0)]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(STARTS_AFTER, "x"), (READY_AFTER, "-1s"), (EXIT_CODE, "256"), (EXIT_CODE, "-1"), (FAILURE_RATE, "1.5")],
)
def test_nonsense_is_told(annotation: str, text: str) -> None:
    (problem,) = annotation_problems(pod(annotations={annotation: text}))
    assert problem.startswith(f"{annotation}: {text!r} is no ")


WHOLE_GPU: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
LIVING: dict[str, Any] = {"phase": "Running", "startTime": "2026-01-01T11:59:00Z"}


@pytest.mark.parametrize(
    ("metadata", "spec", "status", "expected"),
    [
        pytest.param(
            {}, WHOLE_GPU, LIVING, PatchAnnotations({"run.ai/reserve_for_gpu_index": "GPU-u1"}), id="it holds a device"
        ),
        pytest.param({}, {}, LIVING, None, id="it shares one"),
        pytest.param({"labels": {}}, WHOLE_GPU, LIVING, None, id="it has one of its own"),
        pytest.param({"annotations": {"run.ai/reserve_for_gpu_index": "GPU-7"}}, WHOLE_GPU, LIVING, None, id="told"),
    ],
)
def test_a_pod_that_holds_a_shared_device_says_which(metadata: Tree, spec: Tree, status: Tree, expected: Step) -> None:
    about = {"labels": {"runai-gpu-group": "g"}, **metadata}
    assert step_of(pod(metadata=about, spec=spec, status=status)) == expected


def test_a_pod_that_does_not_run_yet_says_nothing_of_devices() -> None:
    step = step_of(pod(metadata={"labels": {"runai-gpu-group": "g"}}, spec=WHOLE_GPU))
    assert isinstance(step, PatchStatus)
