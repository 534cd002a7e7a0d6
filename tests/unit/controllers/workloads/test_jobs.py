"""Jobs: completions, indexes, retries and their limits, policies, deadlines, suspension and TTL."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.client import Client, GroupVersionResource
from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.clock import ManualClock
from bayplan.controllers import RUNS_FOR
from bayplan.controllers.cleanup.ttl_after_finished import TtlAfterFinishedController
from bayplan.controllers.core.api_types import (
    JOBS,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatusFields,
    PodFields,
    PodStatusFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.shared_informers import SharedInformerFactory
from bayplan.controllers.workloads import job_status as job_status
from bayplan.controllers.workloads.jobs import JobController
from bayplan.objects.meta import Condition, ObjectMeta, OwnerReference
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, deliver_event, run_controllers

ONLY = ("job-controller", "ttl-after-finished-controller")
RUNS_UNTIL_DELETED = {"example.com/until": "it is deleted"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Tree:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
    template = {"metadata": {"annotations": annotations or {RUNS_FOR: "0s"}}, "spec": pod}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def conditions(found: Tree) -> dict[str, str]:
    reported = found["status"].get("conditions") or ()
    return {each["type"]: each["reason"] for each in reported if each["status"] == "True"}


async def ended(harness: ControllersHarness, name: str, kind: str) -> Tree:
    return await harness.when(JOBS, name, lambda found: kind in conditions(found))


async def fail(harness: ControllersHarness, *, code: int = 1) -> None:
    """Set one running pod to Failed."""

    async def running() -> Tree | None:
        return next((each for each in await harness.pods() if each["status"].get("phase") == "Running"), None)

    found = await harness.until(running, "a pod runs")
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}}
    reported = {"name": "c", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"status": {"phase": "Failed", "containerStatuses": [reported]}}
    await harness.patch_pod(found["metadata"]["name"], status)


@async_test
async def test_a_completed_job_removes_the_finalizers_of_its_pods(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(JOBS, job("sum", completions=5, parallelism=2))
        found = await ended(harness, "sum", "Complete")
        assert conditions(found) == {"Complete": "CompletionsReached", "SuccessCriteriaMet": "CompletionsReached"}
        assert (found["status"]["succeeded"], found["status"].get("active", 0)) == (5, 0)
        assert found["status"]["uncountedTerminatedPods"] == {}
        assert "completionTime" in found["status"]
        pods = await harness.pods()
        assert len(pods) == 5
        assert not any(each["metadata"].get("finalizers") for each in pods)


@async_test
async def test_get_latest_returns_the_newest_of_watch_and_own_write() -> None:
    def at(version: str) -> UntypedObject:
        return UntypedObject(metadata=ObjectMeta(name="sum", namespace="default", uid="u1", resource_version=version))

    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        jobs, key = JobController(SharedInformerFactory(client)), ("default", "sum")
        deliver_event(jobs.owners, None, at("5"))
        assert jobs.get_latest(jobs.owners, key) == at("5")
        assert jobs.remember_write(msgspec.json.encode(at("9"))) == at("9")
        assert jobs.get_latest(jobs.owners, key) == at("9"), "the watch has not delivered the write yet"
        deliver_event(jobs.owners, at("5"), at("7"))
        assert jobs.get_latest(jobs.owners, key) == at("9"), "the watch delivered another client's write"
        deliver_event(jobs.owners, at("7"), at("10"))
        assert jobs.get_latest(jobs.owners, key) == at("10")
        deliver_event(jobs.owners, at("10"), None)
        assert jobs.get_latest(jobs.owners, key) is None


@async_test
async def test_each_index_succeeds_once(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(JOBS, job("sum", completions=4, parallelism=3, completionMode="Indexed"))
        found = await ended(harness, "sum", "Complete")
        assert (found["status"]["completedIndexes"], found["status"]["succeeded"]) == ("0-3", 4)
        pods = await harness.pods()
        assert sorted(each["metadata"]["annotations"][job_status.INDEX] for each in pods) == ["0", "1", "2", "3"]
        assert {each["spec"]["hostname"] for each in pods} == {f"sum-{number}" for number in range(4)}
        assert pods[0]["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"


@async_test
async def test_a_job_fails_above_its_backoff_limit_and_stops_its_pods(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(
            JOBS, job("sum", annotations=RUNS_UNTIL_DELETED, completions=3, parallelism=3, backoffLimit=0)
        )
        await harness.when(JOBS, "sum", lambda it: it["status"].get("ready") == 3)
        await fail(harness)
        found = await ended(harness, "sum", "Failed")
        assert conditions(found)["Failed"] == conditions(found)["FailureTarget"] == "BackoffLimitExceeded"
        assert (found["status"]["failed"], found["status"].get("active", 0)) == (3, 0)


@async_test
async def test_failed_pods_are_replaced_up_to_the_backoff_limit(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(JOBS, job("sum", annotations=RUNS_UNTIL_DELETED, backoffLimit=2))
        for _ in range(3):
            await fail(harness)
        found = await ended(harness, "sum", "Failed")
        assert found["status"]["failed"] == 3
        assert len(await harness.pods()) == 3


@async_test
async def test_a_failure_policy_fails_the_job_or_ignores_the_failure(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        rules = [
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42], "containerName": "c"}},
        ]
        policy = {"podFailurePolicy": {"rules": rules}}
        await harness.make(JOBS, job("sum", annotations=RUNS_UNTIL_DELETED, backoffLimit=0, **policy))
        await fail(harness, code=7)
        await fail(harness, code=42)
        found = await ended(harness, "sum", "Failed")
        (reported,) = [each for each in found["status"]["conditions"] if each["type"] == "Failed"]
        assert reported["reason"] == "PodFailurePolicy"
        assert reported["message"].endswith("failed with exit code 42 matching FailJob rule at index 1")
        assert found["status"]["failed"] == 1


@async_test
async def test_a_suspended_job_has_no_pods_until_it_is_resumed(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(JOBS, job("sum", annotations=RUNS_UNTIL_DELETED, parallelism=2, completions=2))
        await harness.when(JOBS, "sum", lambda it: it["status"].get("ready") == 2)
        await harness.patch(JOBS, "sum", {"spec": {"suspend": True}})
        found = await harness.when(JOBS, "sum", lambda it: conditions(it).get("Suspended") == "JobSuspended")
        assert found["status"].get("failed", 0) == 0

        async def gone() -> bool:
            return not await harness.pods()

        await harness.until(gone)
        await harness.patch(JOBS, "sum", {"spec": {"suspend": False}})
        found = await harness.when(JOBS, "sum", lambda it: it["status"].get("ready") == 2)
        assert "Suspended" not in conditions(found)
        assert found["status"].get("failed", 0) == 0


@async_test
async def test_active_deadline_and_ttl_after_finished(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        deadline = {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 60}
        await harness.make(JOBS, job("late", annotations=RUNS_UNTIL_DELETED, **deadline))
        found = await ended(harness, "late", "Failed")
        assert conditions(found)["Failed"] == "DeadlineExceeded"
        await harness.make(JOBS, job("short", ttlSecondsAfterFinished=0))
        await harness.gone(JOBS, "short")
        assert await harness.get(JOBS, "late")


@async_test
async def test_a_job_that_waits_for_is_terminatingpods_is_not_written() -> None:
    """Only a sync after the next pod event has something to write."""
    owner = OwnerReference(api_version="batch/v1", kind="Job", name="sum", uid="u1", controller=True)
    metadata = ObjectMeta(name="p", namespace="default", uid="p1", labels={"job": "sum"}, owner_references=(owner,))
    terminating = replace(metadata, deletion_timestamp=NOW)  # counted, and no longer tracked
    failure = {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded", "message": ""}
    status = {
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [failure],
        "ready": 0,
        "terminating": 1,
        "failed": 1,
        "uncountedTerminatedPods": {},
    }
    async with Client(
        ConnectionConfig(server="http://127.0.0.1:1"), clock=ManualClock(), chance=random.Random(0)
    ) as client:
        jobs = JobController(SharedInformerFactory(client))
        found = ObjectMeta(name="sum", namespace="default", uid="u1", resource_version="7")
        spec = {"activeDeadlineSeconds": 1, "selector": {"matchLabels": {"job": "sum"}}}
        deliver_event(jobs.owners, None, UntypedObject(metadata=found, spec=spec, status=status))
        deliver_event(jobs.pods, None, PodFields(metadata=terminating, status=PodStatusFields(phase="Running")))
        assert await jobs.sync(("default", "sum")) is None  # a request would fail: no server listens


class RecordingClient(Client):
    """A client that records deletions."""

    async def delete(self, resource: GroupVersionResource, *, namespace: str = "", name: str, **options: Any) -> None:  # type: ignore[override]
        self.deleted = (resource, namespace, name, options)


def ended_at(second: int, *, ttl: int | None = 60, status: str = "True", kind: str = "Complete") -> UntypedObject:
    condition = {"type": kind, "status": status, "lastTransitionTime": f"2026-01-01T00:00:{second:02}Z"}
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    metadata = ObjectMeta(name="sum", namespace="default", uid="u1", resource_version="7")
    return UntypedObject(metadata=metadata, spec=spec, status={"conditions": [condition]})


@async_test
@pytest.mark.parametrize(
    ("found", "requeue_after_s", "is_deleted"),
    [
        pytest.param(ended_at(10), 10.0, False, id="not-yet"),
        pytest.param(ended_at(0), None, True, id="time-is-over-now"),
        pytest.param(ended_at(10, ttl=50, kind="Failed"), None, True, id="failed"),
        pytest.param(ended_at(0, ttl=None), None, False, id="the-time-is-no-longer-set"),
        pytest.param(ended_at(0, status="False"), None, False, id="condition-is-false"),
        pytest.param(ended_at(0, kind="Suspended"), None, False, id="has-not-ended"),
        pytest.param(None, None, False, id="is-gone"),
    ],
)
async def test_a_job_is_deleted_after_its_ttl(
    found: UntypedObject | None, requeue_after_s: float | None, is_deleted: bool
) -> None:
    clock = ManualClock()
    clock.advance((datetime(2026, 1, 1, 0, 1, tzinfo=UTC) - clock.now()).total_seconds())
    async with RecordingClient(
        ConnectionConfig(server="http://127.0.0.1:1"), clock=clock, chance=random.Random(0)
    ) as client:
        client.deleted = None
        finished = TtlAfterFinishedController(SharedInformerFactory(client))
        if found is not None:
            deliver_event(finished.jobs, None, found)
        assert await finished.sync(("default", "sum")) == requeue_after_s
        condition = {"uid": "u1", "resource_version": "7", "propagation": "Foreground"}
        assert client.deleted == ((JOBS, "default", "sum", condition) if is_deleted else None)


# Pure functions.


@given(st.sets(st.integers(0, 60)))
def test_parse_indexes_inverts_format_indexes(indexes: set[int]) -> None:
    assert job_status.parse_indexes(job_status.format_indexes(indexes), 100) == indexes


@pytest.mark.parametrize(
    ("indexes", "text"), [((), ""), ((1,), "1"), ((1, 2), "1,2"), ((1, 2, 3), "1-3"), ((0, 2, 3, 4, 9), "0,2-4,9")]
)
def test_format_indexes(indexes: tuple[int, ...], text: str) -> None:
    assert job_status.format_indexes(indexes) == text


def a_pod(code: int = 0, phase: str = "Failed", *, condition: str = "") -> PodFields:
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=code))
    reported = (Condition(type=condition, status="True"),) if condition else ()
    status = PodStatusFields(
        phase=phase, conditions=reported, container_statuses=(ContainerStatusFields(name="c", state=ended),)
    )
    return PodFields(metadata=ObjectMeta(name="p", namespace="n"), status=status)


def with_rules(*rules: Tree) -> UntypedObject:
    return UntypedObject(spec={"podFailurePolicy": {"rules": list(rules)}})


@pytest.mark.parametrize(
    ("rule", "pod", "action"),
    [
        ({"onExitCodes": {"operator": "In", "values": [1, 3]}}, a_pod(3), "FailJob"),
        ({"onExitCodes": {"operator": "In", "values": [1, 3]}}, a_pod(2), "Count"),
        ({"onExitCodes": {"operator": "NotIn", "values": [1]}}, a_pod(2), "FailJob"),
        ({"onExitCodes": {"operator": "NotIn", "values": [1]}}, a_pod(0), "Count"),
        ({"onExitCodes": {"operator": "In", "values": [1], "containerName": "d"}}, a_pod(1), "Count"),
        ({"onPodConditions": [{"type": "DisruptionTarget"}]}, a_pod(1, condition="DisruptionTarget"), "FailJob"),
        ({"onPodConditions": [{"type": "DisruptionTarget"}]}, a_pod(1), "Count"),
    ],
)
def test_failure_policy_rules(rule: Tree, pod: PodFields, action: str) -> None:
    assert job_status.match_failure_policy(with_rules({"action": "FailJob", **rule}), pod).action == action


@pytest.mark.parametrize(
    ("rules", "succeeded", "enough"),
    [
        ([{"succeededCount": 2}], {0, 4}, True),
        ([{"succeededCount": 3}], {0, 4}, False),
        ([{"succeededIndexes": "0,2-3"}], {0, 2, 3}, True),
        ([{"succeededIndexes": "0,2-3"}], {0, 2, 4}, False),
        ([{"succeededIndexes": "0,2-3", "succeededCount": 1}], {3}, True),
    ],
)
def test_success_policies(rules: list[Tree], succeeded: set[int], enough: bool) -> None:
    found = job_status.check_success_policy(
        UntypedObject(spec={"completions": 5, "successPolicy": {"rules": rules}}), succeeded
    )
    assert (found is not None) == enough


def with_status(*conditions: tuple[str, str]) -> UntypedObject:
    return UntypedObject(status={"conditions": [{"type": kind, "status": status} for kind, status in conditions]})


@pytest.mark.parametrize(
    ("job", "finished"),
    [
        pytest.param(UntypedObject(), False, id="nothing-is-told"),
        pytest.param(with_status(("Complete", "True")), True, id="complete"),
        pytest.param(with_status(("Failed", "True")), True, id="failed"),
        pytest.param(with_status(("Complete", "False"), ("Failed", "Unknown")), False, id="neither"),
        pytest.param(with_status(("Suspended", "True"), ("FailureTarget", "True")), False, id="on-its-way"),
    ],
)
def test_is_finished(job: UntypedObject, finished: bool) -> None:
    assert job_status.is_finished(job) is finished


@pytest.mark.parametrize(
    ("before", "suspended", "reason"),
    [
        pytest.param(None, False, None, id="never-suspended"),
        pytest.param(None, True, "JobSuspended", id="suspended"),
        pytest.param("True", True, "before", id="suspended-still"),
        pytest.param("True", False, "JobResumed", id="resumed"),
        pytest.param("False", False, "before", id="resumed-before"),
        pytest.param("False", True, "JobSuspended", id="suspended-again"),
    ],
)
def test_suspended_condition(before: str | None, suspended: bool, reason: str | None) -> None:
    other = {"type": "Complete", "status": "False", "reason": "other"}
    old_conditions = [] if before is None else [{"type": "Suspended", "status": before, "reason": "before"}]
    found = job_status.with_suspension([*old_conditions, other], suspended=suspended, now=NOW)
    assert other in found
    reported = [each for each in found if each["type"] == "Suspended"]
    assert [each["reason"] for each in reported] == ([] if reason is None else [reason])
    assert [each["status"] for each in reported] == ([] if reason is None else ["True" if suspended else "False"])
    if reason not in (None, "before"):
        assert reported[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


TERMINATING_META = ObjectMeta(name="p", namespace="n", deletion_timestamp=NOW)


@pytest.mark.parametrize(
    ("spec", "phase", "is_terminating", "failed"),
    [
        pytest.param({}, "Failed", False, True, id="failed"),
        pytest.param({}, "Running", False, False, id="running"),
        pytest.param({}, "Running", True, True, id="deleted-while-it-ran"),
        pytest.param({}, "Succeeded", True, False, id="deleted-after-its-success"),
        pytest.param({"podReplacementPolicy": "Failed"}, "Running", True, False, id="only-failures-are-replaced"),
        pytest.param({"podReplacementPolicy": "Failed"}, "Failed", True, True, id="which-is-one"),
        pytest.param({"podReplacementPolicy": "TerminatingOrFailed"}, "Running", True, True, id="both-are-replaced"),
        pytest.param({"podFailurePolicy": {"rules": []}}, "Running", True, False, id="a-failure-policy-waits"),
        pytest.param(
            {"podFailurePolicy": {"rules": []}, "podReplacementPolicy": "TerminatingOrFailed"},
            "Running",
            True,
            True,
            id="unless-it-is-said",
        ),
    ],
)
def test_has_failed(spec: Tree, phase: str, is_terminating: bool, failed: bool) -> None:
    pod = PodFields(
        metadata=TERMINATING_META if is_terminating else ObjectMeta(name="p"), status=PodStatusFields(phase=phase)
    )
    assert job_status.has_failed(UntypedObject(spec=spec), pod) is failed


def ended_at(*seconds: int | None) -> tuple[ContainerStatusFields, ...]:
    """Containers with finish times, as far as they are known; each has its index as restart count."""
    ends = [None if second is None else NOW + timedelta(seconds=second) for second in seconds]
    return tuple(
        ContainerStatusFields(
            name=f"c{number}",
            restart_count=number,
            state=ContainerState(terminated=ContainerStateTerminated(finished_at=at)),
        )
        for number, at in enumerate(ends)
    )


@pytest.mark.parametrize(
    ("containers", "is_terminating", "expected"),
    [
        pytest.param(ended_at(3, 9, 5), True, 9, id="its-last-container"),
        pytest.param(ended_at(3, None), True, 3, id="as-far-as-it-is-told"),
        pytest.param(ended_at(None), True, 0, id="else-when-it-was-deleted"),
        pytest.param((ContainerStatusFields(name="c"),), True, 0, id="a-container-that-runs"),
        pytest.param((), False, 60, id="else-now"),
    ],
)
def test_finish_time(containers: tuple[ContainerStatusFields, ...], is_terminating: bool, expected: int) -> None:
    status = PodStatusFields(container_statuses=containers)
    pod = PodFields(metadata=TERMINATING_META if is_terminating else ObjectMeta(name="p"), status=status)
    assert job_status.finish_time(pod, NOW + timedelta(seconds=60)) == NOW + timedelta(seconds=expected)


def test_restarts_counts_all_containers() -> None:
    status = PodStatusFields(container_statuses=ended_at(1, 1, 1), init_container_statuses=ended_at(1, 1))
    assert job_status.restarts([PodFields(status=status), PodFields(status=status), PodFields()]) == 8


@pytest.mark.parametrize(
    ("text", "completions", "expected"),
    [
        pytest.param(None, 5, set(), id="none"),
        pytest.param("", 5, set(), id="empty"),
        pytest.param("0-2,4", 5, {0, 1, 2, 4}, id="all"),
        pytest.param("0-2,4", 4, {0, 1, 2}, id="the-last-is-not-asked-for-any-more"),
        pytest.param("0-9", 3, {0, 1, 2}, id="a-run-is-cut"),
        pytest.param("3,x,1", 5, {1, 3}, id="what-is-no-number"),
    ],
)
def test_indexes_above_the_completions_are_dropped(text: str | None, completions: int, expected: set[int]) -> None:
    assert job_status.parse_indexes(text, completions) == expected


@pytest.mark.parametrize(
    ("taken", "count", "expected"),
    [(set(), 2, [0, 1]), ({0, 2}, 2, [1, 3]), ({0, 2}, 9, [1, 3, 4]), ({0, 1, 2, 3, 4}, 1, []), (set(), 0, [])],
    ids=["first", "between", "all-that-are-left", "none-is-left", "none-is-wanted"],
)
def test_first_pending(taken: set[int], count: int, expected: list[int]) -> None:
    assert job_status.first_pending(taken, count, 5) == expected


@pytest.mark.parametrize(
    ("text", "index"), [("0", 0), ("12", 12), ("", None), ("-1", None), ("x", None), ("²", None)], ids=repr
)
def test_index_of(text: str, index: int | None) -> None:
    assert job_status.index_of(PodFields(metadata=ObjectMeta(annotations={job_status.INDEX: text}))) == index


def test_the_first_matching_failure_rule_gives_the_message() -> None:
    no_match = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [9]}}
    by_code = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3], "containerName": "c"}}
    by_condition = {"action": "Ignore", "onPodConditions": [{"type": "Other"}, {"type": "DisruptionTarget"}]}
    pod = a_pod(3, condition="DisruptionTarget")
    assert job_status.match_failure_policy(with_rules(no_match, by_code, by_condition), pod) == job_status.PolicyMatch(
        "FailJob", "Container c for pod n/p failed with exit code 3 matching FailJob rule at index 1"
    )
    assert job_status.match_failure_policy(with_rules(by_condition, by_code), pod) == job_status.PolicyMatch(
        "Ignore", "Pod n/p has condition DisruptionTarget matching Ignore rule at index 0"
    )
    wanted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}
    assert job_status.match_failure_policy(with_rules(wanted), pod) == job_status.COUNT_FAILURE


def test_the_message_names_the_first_success_rule_that_is_met() -> None:
    rules = [{"succeededCount": 3}, {"succeededIndexes": "0-1", "succeededCount": 1}, {"succeededCount": 1}]
    job = UntypedObject(spec={"completions": 5, "successPolicy": {"rules": rules}})
    assert job_status.check_success_policy(job, {1}) == job_status.JobOutcome(
        True, "SuccessPolicy", "Matched rules at index 1"
    )
    assert job_status.check_success_policy(job, {4}) == job_status.JobOutcome(
        True, "SuccessPolicy", "Matched rules at index 2"
    )
    assert job_status.check_success_policy(job, set()) is None
    assert job_status.check_success_policy(UntypedObject(), {1}) is None


@pytest.mark.parametrize(
    ("spec", "started", "expected"),
    [
        pytest.param({"activeDeadlineSeconds": 60}, True, 40.0, id="some-time-is-left"),
        pytest.param({"activeDeadlineSeconds": 5}, True, -15.0, id="over"),
        pytest.param({"activeDeadlineSeconds": 0}, True, -20.0, id="no-time-at-all"),
        pytest.param({"activeDeadlineSeconds": 60}, False, None, id="not-started"),
        pytest.param({"activeDeadlineSeconds": 60, "suspend": True}, True, None, id="suspended"),
        pytest.param({}, True, None, id="no-deadline"),
    ],
)
def test_deadline_in_s(spec: Tree, started: bool, expected: float | None) -> None:
    start = NOW - timedelta(seconds=20) if started else None
    assert job_status.deadline_in_s(UntypedObject(spec=spec), start, NOW) == expected
