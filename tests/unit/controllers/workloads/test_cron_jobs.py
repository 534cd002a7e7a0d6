"""CronJobs: a job at each moment, policies for those that overlap, and a short memory. Time is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.codec.cron import parse_cron_schedule
from bayplan.controllers import RUNS_FOR
from bayplan.controllers.core.api_types import (
    CRON_JOBS,
    JOBS,
    Tree,
    UntypedObject,
)
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


async def jobs(world: ControllersHarness) -> list[Tree]:
    return await world.list(JOBS)


def seen(**fields: Any) -> UntypedObject:
    meta = ObjectMeta(name="tick", uid="u", creation_timestamp=NOON)
    return UntypedObject(metadata=meta, spec=fields.pop("spec", {}), status=fields)


@pytest.mark.parametrize(
    ("found", "passed", "due", "missed"),
    [
        pytest.param(seen(), timedelta(seconds=30), None, 0, id="not yet"),
        pytest.param(seen(), timedelta(minutes=1), "12:01", 1, id="the first"),
        pytest.param(seen(), timedelta(minutes=5, seconds=3), "12:05", 5, id="the latest of those that were missed"),
        pytest.param(seen(lastScheduleTime="2026-01-01T12:05:00Z"), timedelta(minutes=5), None, 0, id="made already"),
        pytest.param(
            seen(spec={"startingDeadlineSeconds": 90}), timedelta(minutes=10), "12:10", 2, id="what is too late is over"
        ),
        pytest.param(seen(), timedelta(days=400), "12:00", 101, id="after a long sleep"),
    ],
)
def test_what_is_due(found: UntypedObject, passed: timedelta, due: str | None, missed: int) -> None:
    moment, count = most_recent_schedule_time(found, parse_cron_schedule("* * * * *"), UTC, NOON + passed)
    assert (f"{moment:%H:%M}" if moment else None) == due
    assert count >= missed if missed > 100 else count == missed


def test_the_job_of_a_moment_is_named_after_it() -> None:
    found = seen(spec={"jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"parallelism": 2}}})
    body = job_body(found, NOON, UTC)
    assert body["metadata"]["name"] == f"tick-{int(NOON.timestamp()) // 60}"
    assert body["metadata"]["annotations"][SCHEDULED] == "2026-01-01T12:00:00Z"
    assert (body["metadata"]["labels"], body["spec"]) == ({"a": "b"}, {"parallelism": 2})


@async_test
async def test_a_job_is_made_and_its_end_is_told(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(CRON_JOBS, cron_job("tick", concurrencyPolicy="Forbid"))
        found = await world.when(CRON_JOBS, "tick", lambda it: it["status"]["lastSuccessfulTime"])
        assert found["status"]["lastScheduleTime"]
        (made, *_) = await jobs(world)
        assert made["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
        await world.patch(CRON_JOBS, "tick", {"spec": {"suspend": True, "successfulJobsHistoryLimit": 0}})

        async def forgotten() -> bool:
            return not await jobs(world) and not await world.pods()

        await world.until(forgotten)


@async_test
async def test_what_still_runs_is_waited_for_where_that_is_wanted(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(CRON_JOBS, cron_job("tick", runs_for="1h", concurrencyPolicy="Forbid"))

        async def told() -> bool:
            events = await world.served.request("GET", "/api/v1/namespaces/default/events")
            return any(each["reason"] == "JobAlreadyActive" for each in events.json["items"])

        await world.until(told)
        assert len(await jobs(world)) == 1
        found = await world.get(CRON_JOBS, "tick")
        assert [each["kind"] for each in found["status"]["active"]] == ["Job"]
