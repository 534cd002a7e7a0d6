"""Jobs: completions, indexes, retries and their limits, policies, deadlines, suspension, and the time after the end."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.client import Client
from bayplan.client.target import Target
from bayplan.clock import ManualClock
from bayplan.controllers import RUNS_FOR
from bayplan.controllers import job_sums as sums
from bayplan.controllers.jobs import Jobs
from bayplan.controllers.seen import (
    JOBS,
    ContainerState,
    SeenContainer,
    SeenPod,
    SeenPodStatus,
    Terminated,
    Tree,
    Whole,
)
from bayplan.controllers.world import World
from bayplan.objects.meta import Condition, ObjectMeta
from controlled import Controlled, controlled, tell
from wire_server import on_loop

ONLY = ("job-controller", "ttl-after-finished-controller")
LASTING = {"example.com/until": "it is deleted"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Tree:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
    template = {"metadata": {"annotations": annotations or {RUNS_FOR: "0s"}}, "spec": pod}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def conditions(found: Tree) -> dict[str, str]:
    told = found["status"].get("conditions") or ()
    return {each["type"]: each["reason"] for each in told if each["status"] == "True"}


async def ended(world: Controlled, name: str, kind: str) -> Tree:
    return await world.when(JOBS, name, lambda found: kind in conditions(found))


async def fail(world: Controlled, *, code: int = 1) -> None:
    """One pod that runs fails now."""

    async def running() -> Tree | None:
        return next((each for each in await world.pods() if each["status"].get("phase") == "Running"), None)

    found = await world.until(running, "a pod runs")
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}}
    told = {"name": "c", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"status": {"phase": "Failed", "containerStatuses": [told]}}
    await world.patch_pod(found["metadata"]["name"], status)


@on_loop
async def test_a_job_runs_to_its_end_and_lets_its_pods_go(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(JOBS, job("sum", completions=5, parallelism=2))
        found = await ended(world, "sum", "Complete")
        assert conditions(found) == {"Complete": "CompletionsReached", "SuccessCriteriaMet": "CompletionsReached"}
        assert (found["status"]["succeeded"], found["status"].get("active", 0)) == (5, 0)
        assert found["status"]["uncountedTerminatedPods"] == {}
        assert "completionTime" in found["status"]
        pods = await world.pods()
        assert len(pods) == 5
        assert not any(each["metadata"].get("finalizers") for each in pods)


@on_loop
async def test_a_job_is_never_older_than_what_we_wrote_of_it() -> None:
    def at(version: str) -> Whole:
        return Whole(metadata=ObjectMeta(name="sum", namespace="default", uid="u1", resource_version=version))

    target = Target(server="http://127.0.0.1:1")  # nobody is asked
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        jobs, key = Jobs(World(client)), ("default", "sum")
        tell(jobs.owners, None, at("5"))
        assert jobs.latest(jobs.owners, key) == at("5")
        assert jobs.answered(msgspec.json.encode(at("9"))) == at("9")
        assert jobs.latest(jobs.owners, key) == at("9"), "the watch has not told of it yet"
        tell(jobs.owners, at("5"), at("7"))
        assert jobs.latest(jobs.owners, key) == at("9"), "it has told of somebody else's write"
        tell(jobs.owners, at("7"), at("10"))
        assert jobs.latest(jobs.owners, key) == at("10")
        tell(jobs.owners, at("10"), None)
        assert jobs.latest(jobs.owners, key) is None


@on_loop
async def test_numbered_pods_each_succeed_once(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(JOBS, job("sum", completions=4, parallelism=3, completionMode="Indexed"))
        found = await ended(world, "sum", "Complete")
        assert (found["status"]["completedIndexes"], found["status"]["succeeded"]) == ("0-3", 4)
        pods = await world.pods()
        assert sorted(each["metadata"]["annotations"][sums.INDEX] for each in pods) == ["0", "1", "2", "3"]
        assert {each["spec"]["hostname"] for each in pods} == {f"sum-{number}" for number in range(4)}
        assert pods[0]["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"


@on_loop
async def test_too_many_failures_end_a_job_and_what_runs_is_stopped(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(JOBS, job("sum", annotations=LASTING, completions=3, parallelism=3, backoffLimit=0))
        await world.when(JOBS, "sum", lambda it: it["status"].get("ready") == 3)
        await fail(world)
        found = await ended(world, "sum", "Failed")
        assert conditions(found)["Failed"] == conditions(found)["FailureTarget"] == "BackoffLimitExceeded"
        assert (found["status"]["failed"], found["status"].get("active", 0)) == (3, 0)


@on_loop
async def test_what_fails_is_tried_again_up_to_the_limit(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(JOBS, job("sum", annotations=LASTING, backoffLimit=2))
        for _ in range(3):
            await fail(world)
        found = await ended(world, "sum", "Failed")
        assert found["status"]["failed"] == 3
        assert len(await world.pods()) == 3


@on_loop
async def test_a_failure_policy_ends_the_job_at_once_or_looks_away(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        rules = [
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42], "containerName": "c"}},
        ]
        policy = {"podFailurePolicy": {"rules": rules}}
        await world.make(JOBS, job("sum", annotations=LASTING, backoffLimit=0, **policy))
        await fail(world, code=7)
        await fail(world, code=42)
        found = await ended(world, "sum", "Failed")
        (told,) = [each for each in found["status"]["conditions"] if each["type"] == "Failed"]
        assert told["reason"] == "PodFailurePolicy"
        assert told["message"].endswith("failed with exit code 42 matching FailJob rule at index 1")
        assert found["status"]["failed"] == 1


@on_loop
async def test_a_job_that_rests_has_no_pods_and_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(JOBS, job("sum", annotations=LASTING, parallelism=2, completions=2))
        await world.when(JOBS, "sum", lambda it: it["status"].get("ready") == 2)
        await world.patch(JOBS, "sum", {"spec": {"suspend": True}})
        found = await world.when(JOBS, "sum", lambda it: conditions(it).get("Suspended") == "JobSuspended")
        assert found["status"].get("failed", 0) == 0

        async def gone() -> bool:
            return not await world.pods()

        await world.until(gone)
        await world.patch(JOBS, "sum", {"spec": {"suspend": False}})
        found = await world.when(JOBS, "sum", lambda it: it["status"].get("ready") == 2)
        assert "Suspended" not in conditions(found)
        assert found["status"].get("failed", 0) == 0


@on_loop
async def test_a_deadline_ends_a_job_and_its_time_after_the_end_removes_it(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        late = {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 60}
        await world.make(JOBS, job("late", annotations=LASTING, **late))
        found = await ended(world, "late", "Failed")
        assert conditions(found)["Failed"] == "DeadlineExceeded"
        await world.make(JOBS, job("short", ttlSecondsAfterFinished=0))
        await world.gone(JOBS, "short")
        assert await world.get(JOBS, "late")


# Pure parts


@given(st.sets(st.integers(0, 60)))
def test_indexes_are_read_as_they_are_written(indexes: set[int]) -> None:
    assert sums.read_indexes(sums.write_indexes(indexes), 100) == indexes


@pytest.mark.parametrize(
    ("indexes", "text"), [((), ""), ((1,), "1"), ((1, 2), "1,2"), ((1, 2, 3), "1-3"), ((0, 2, 3, 4, 9), "0,2-4,9")]
)
def test_indexes_are_written_as_upstream_does(indexes: tuple[int, ...], text: str) -> None:
    assert sums.write_indexes(indexes) == text


def a_pod(code: int = 0, phase: str = "Failed", *, condition: str = "") -> SeenPod:
    ended = ContainerState(terminated=Terminated(exit_code=code))
    told = (Condition(type=condition, status="True"),) if condition else ()
    status = SeenPodStatus(phase=phase, conditions=told, container_statuses=(SeenContainer(name="c", state=ended),))
    return SeenPod(metadata=ObjectMeta(name="p", namespace="n"), status=status)


def with_rules(*rules: Tree) -> Whole:
    return Whole(spec={"podFailurePolicy": {"rules": list(rules)}})


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
def test_rules_of_failure_policies(rule: Tree, pod: SeenPod, action: str) -> None:
    assert sums.failure_match(with_rules({"action": "FailJob", **rule}), pod).action == action


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
    found = sums.success_by_policy(Whole(spec={"completions": 5, "successPolicy": {"rules": rules}}), succeeded)
    assert (found is not None) == enough
