"""CronJobs: scheduled jobs, concurrency policies and history limits, on virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.codec.cron import parse_cron_schedule
from bayplan.controllers import RUNS_FOR
from bayplan.controllers.core.api_types import CRON_JOBS, JOBS, Tree, UntypedObject
from bayplan.controllers.workloads.cron_jobs import SCHEDULED, job_body, most_recent_schedule_time
from bayplan.objects.meta import ObjectMeta
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, run_controllers

ONLY = ("cronjob-controller", "job-controller")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def cron_job(name: str, schedule: str = "@every 1s", *, runs_for: str = "0s", **spec: Any) -> Tree:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
    template = {"spec": {"template": {"metadata": {"annotations": {RUNS_FOR: runs_for}}, "spec": pod}}}
    return {"metadata": {"name": name}, "spec": {"schedule": schedule, "jobTemplate": template, **spec}}


async def jobs(harness: ControllersHarness) -> list[Tree]:
    return await harness.list(JOBS)


def make_cron_job(**fields: Any) -> UntypedObject:
    meta = ObjectMeta(name="tick", uid="u", creation_timestamp=NOON)
    return UntypedObject(metadata=meta, spec=fields.pop("spec", {}), status=fields)


@pytest.mark.parametrize(
    ("found", "passed", "due", "missed"),
    [
        pytest.param(make_cron_job(), timedelta(seconds=30), None, 0, id="not yet"),
        pytest.param(make_cron_job(), timedelta(minutes=1), "12:01", 1, id="the first"),
        pytest.param(
            make_cron_job(), timedelta(minutes=5, seconds=3), "12:05", 5, id="the latest of those that were missed"
        ),
        pytest.param(
            make_cron_job(lastScheduleTime="2026-01-01T12:05:00Z"), timedelta(minutes=5), None, 0, id="made already"
        ),
        pytest.param(
            make_cron_job(spec={"startingDeadlineSeconds": 90}),
            timedelta(minutes=10),
            "12:10",
            2,
            id="what is too late is over",
        ),
        pytest.param(make_cron_job(), timedelta(days=400), "12:00", 101, id="after a long sleep"),
    ],
)
def test_most_recent_schedule_time(found: UntypedObject, passed: timedelta, due: str | None, missed: int) -> None:
    due_time, count = most_recent_schedule_time(found, parse_cron_schedule("* * * * *"), UTC, NOON + passed)
    assert (f"{due_time:%H:%M}" if due_time else None) == due
    assert count >= missed if missed > 100 else count == missed


def test_a_job_is_named_after_its_scheduled_time() -> None:
    found = make_cron_job(spec={"jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"parallelism": 2}}})
    body = job_body(found, NOON, UTC)
    assert body["metadata"]["name"] == f"tick-{int(NOON.timestamp()) // 60}"
    assert body["metadata"]["annotations"][SCHEDULED] == "2026-01-01T12:00:00Z"
    assert (body["metadata"]["labels"], body["spec"]) == ({"a": "b"}, {"parallelism": 2})


@async_test
async def test_a_job_is_created_and_its_success_is_recorded(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(CRON_JOBS, cron_job("tick", concurrencyPolicy="Forbid"))
        found = await harness.when(CRON_JOBS, "tick", lambda it: it["status"]["lastSuccessfulTime"])
        assert found["status"]["lastScheduleTime"]
        (job, *_) = await jobs(harness)
        assert job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
        await harness.patch(CRON_JOBS, "tick", {"spec": {"suspend": True, "successfulJobsHistoryLimit": 0}})

        async def deleted() -> bool:
            return not await jobs(harness) and not await harness.pods()

        await harness.until(deleted)


@async_test
async def test_policy_forbid_waits_for_the_running_job(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(CRON_JOBS, cron_job("tick", runs_for="1h", concurrencyPolicy="Forbid"))

        async def reported() -> bool:
            events = await harness.served.request("GET", "/api/v1/namespaces/default/events")
            return any(each["reason"] == "JobAlreadyActive" for each in events.json["items"])

        await harness.until(reported)
        assert len(await jobs(harness)) == 1
        found = await harness.get(CRON_JOBS, "tick")
        assert [each["kind"] for each in found["status"]["active"]] == ["Job"]
