"""CronJob controller: creates a Job at each time of the schedule, and deletes old Jobs.

The scheduled minute is part of the job's name, so no job is created twice. Of several missed times only the latest is
started, unless its deadline is over. A sync walks the cron job's own jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from bayplan.codec.cron import CronSchedule, CronScheduleError, parse_cron_schedule, time_zone_error
from bayplan.controllers.core.api_types import CRON_JOBS, JOBS, Tree, UntypedObject
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.workloads import job_status
from bayplan.errors import AlreadyExists, ApiError
from bayplan.objects.meta import format_time

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
MAX_MISSED_STARTS = 100
_WAKE_UP_MARGIN_S = 0.1


class CronJobController(Controller):
    name = "cronjob-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.cron_jobs = self.informer(CRON_JOBS, UntypedObject)
        self.jobs = self.informer(JOBS, UntypedObject)
        self.cron_jobs.add_handler(self.enqueue)
        self.jobs.add_handler(self._on_job)

    def _on_job(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        for job in (old, new):
            owner = job.metadata.controller if job is not None else None
            if job is not None and owner is not None and owner.kind == "CronJob":
                self.queue.add((job.namespace, owner.name))

    async def sync(self, key: Key) -> float | None:
        found = self.cron_jobs.get(*key)
        if found is None:
            return None
        jobs = self.jobs.owned_by(found.uid)
        status = self._active_jobs_status(found, jobs)
        requeue_after_s = None
        if not found.terminating:
            requeue_after_s = await self._sync_schedule(found, status)
        await self._delete_old_jobs(found, jobs)
        await self.write_status(CRON_JOBS, found, status)
        return requeue_after_s

    # Status.

    def _active_jobs_status(self, found: UntypedObject, jobs: Sequence[UntypedObject]) -> Tree:
        status: Tree = dict(found.status)
        active: list[Tree] = list(status.get("active") or ())
        by_uid = {job.uid: job for job in jobs}
        known = {each["uid"] for each in active}
        for job in jobs:
            if job_status.is_finished(job):
                self._record_finished(found, job, status, known)
            elif job.uid not in known and _scheduled_for(job) is None:
                note = f"Saw a job that the controller did not create or forgot: {job.name}"
                self.record_event(CRON_JOBS, found, "UnexpectedJob", note, warning=True)
        remaining = []
        for each in active:
            active_job = by_uid.get(each["uid"]) or self.jobs.get(found.namespace, each["name"])
            if active_job is None and self._is_old(each):
                self.record_event(CRON_JOBS, found, "MissingJob", f"Active job went missing: {each['name']}")
            elif active_job is None or not job_status.is_finished(active_job):
                remaining.append(each)
        status["active"] = remaining
        return _without_empty(status, "active")

    def _record_finished(self, found: UntypedObject, job: UntypedObject, status: Tree, known: set[str]) -> None:
        succeeded = job_status.has_condition(job, "Complete")
        if job.uid in known:
            note = f"Saw completed job: {job.name}, condition: {'Complete' if succeeded else 'Failed'}"
            self.record_event(CRON_JOBS, found, "SawCompletedJob", note)
        ended = job.status.get("completionTime")
        if succeeded and ended and ended > status.get("lastSuccessfulTime", ""):
            status["lastSuccessfulTime"] = ended

    def _is_old(self, reference: Tree) -> bool:
        """Whether the job must be known by now. The watch may not have delivered a job that was just created."""
        minute = reference["name"].rpartition("-")[2]
        if not minute.isdigit():
            return True
        return self.clock.now() - datetime.fromtimestamp(int(minute) * 60, UTC) > timedelta(minutes=2)

    # Schedule.

    async def _sync_schedule(self, found: UntypedObject, status: Tree) -> float | None:
        """Start the job that is due. Returns the seconds until the next one may be."""
        zone = found.spec.get("timeZone")
        if zone is not None and (problem := time_zone_error(zone)):
            self.record_event(
                CRON_JOBS, found, "UnknownTimeZone", f'invalid timeZone: "{zone}": {problem}', warning=True
            )
            return None
        if found.spec.get("suspend"):
            return None
        try:
            schedule = parse_cron_schedule(found.spec.get("schedule", ""))
        except CronScheduleError as error:
            note = f'unparseable schedule: "{found.spec.get("schedule", "")}" : {error}'
            self.record_event(CRON_JOBS, found, "UnparseableSchedule", note, warning=True)
            return None
        time_zone: tzinfo = ZoneInfo(zone) if zone is not None else UTC
        now = self.clock.now()
        due, missed = most_recent_schedule_time(found, schedule, time_zone, now)
        if missed > MAX_MISSED_STARTS:
            advice = "Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            note = f"too many missed start times: {missed}. {advice}"
            self.record_event(CRON_JOBS, found, "TooManyMissedTimes", note, warning=True)
        if due is not None:
            await self._start(found, status, due, time_zone, now)
        next_time = schedule.next(now, time_zone)
        return (next_time - now).total_seconds() + _WAKE_UP_MARGIN_S if next_time is not None else None

    async def _start(self, found: UntypedObject, status: Tree, due: datetime, time_zone: tzinfo, now: datetime) -> None:
        limit = found.spec.get("startingDeadlineSeconds")
        if limit is not None and due + timedelta(seconds=int(limit)) < now:
            note = f"Missed scheduled time to start a job: {due:%a, %d %b %Y %H:%M:%S} +0000"
            self.record_event(CRON_JOBS, found, "MissSchedule", note, warning=True)
            return
        active: list[Tree] = status.get("active") or []
        policy = found.spec.get("concurrencyPolicy", "Allow")
        if policy == "Forbid" and active:
            note = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self.record_event(CRON_JOBS, found, "JobAlreadyActive", note)
            return
        if policy == "Replace":
            for each in active:
                job = self.jobs.get(found.namespace, each["name"])
                if job is not None:
                    await self._delete_job(found, job)
            active = []
        body = job_body(found, due, time_zone)
        try:
            created = msgspec.json.decode(
                await self.client.create(JOBS, body, namespace=found.namespace), type=UntypedObject
            )
            self.record_event(CRON_JOBS, found, "SuccessfulCreate", f"Created job {created.name}")
        except AlreadyExists:
            created = await self.client.get(UntypedObject, found.namespace, body["metadata"]["name"], resource=JOBS)
        except ApiError as fault:
            self.record_event(CRON_JOBS, found, "FailedCreate", f"Error creating job: {fault.details}", warning=True)
            raise
        other_jobs = [each for each in active if each["uid"] != created.uid]
        status["active"] = [*other_jobs, _reference(created)]
        status["lastScheduleTime"] = format_time(due)

    # History.

    async def _delete_old_jobs(self, found: UntypedObject, jobs: Sequence[UntypedObject]) -> None:
        for kind, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            limit = found.spec.get(field)
            if limit is None:
                continue
            ended = sorted(
                (job for job in jobs if job_status.has_condition(job, kind) and not job.terminating),
                key=lambda job: (job.status.get("startTime", ""), job.name),
            )
            for job in ended[: max(0, len(ended) - int(limit))]:
                await self._delete_job(found, job)

    async def _delete_job(self, found: UntypedObject, job: UntypedObject) -> None:
        if await self.delete(JOBS, job, propagation="Background"):
            self.record_event(CRON_JOBS, found, "SuccessfulDelete", f"Deleted job {job.name}")


def most_recent_schedule_time(
    found: UntypedObject, schedule: CronSchedule, time_zone: tzinfo, now: datetime
) -> tuple[datetime | None, int]:
    """Return the latest time that is due and has no job, and the number of times since the last job."""
    last = found.status.get("lastScheduleTime")
    since = datetime.fromisoformat(last) if last else found.metadata.creation_timestamp or now
    limit = found.spec.get("startingDeadlineSeconds")
    if limit is not None:
        since = max(since, now - timedelta(seconds=int(limit)))
    due: datetime | None = None
    missed = 0
    next_time = schedule.next(since, time_zone)
    while next_time is not None and next_time <= now:
        due, missed = next_time, missed + 1
        if missed > MAX_MISSED_STARTS:
            # After a long gap only the last part needs a walk.
            next_time = max(next_time, _recent_start(schedule, time_zone, now))
        next_time = schedule.next(next_time, time_zone)
    return due, missed


def _recent_start(schedule: CronSchedule, time_zone: tzinfo, now: datetime) -> datetime:
    """Return a time before the latest scheduled one that is only a few steps away from it."""
    for hours in (1, 25, 24 * 8, 24 * 32, 24 * 367):
        start = now - timedelta(hours=hours)
        first = schedule.next(start, time_zone)
        if first is not None and first <= now:
            return start
    return now - timedelta(days=366 * 5)


def job_body(found: UntypedObject, due: datetime, time_zone: tzinfo) -> Tree:
    template: Tree = found.spec.get("jobTemplate") or {}
    meta = template.get("metadata") or {}
    stamp = due.astimezone(time_zone).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": {
            "name": f"{found.name}-{int(due.timestamp()) // 60}",
            "labels": meta.get("labels") or {},
            "annotations": {**(meta.get("annotations") or {}), SCHEDULED: stamp},
            "ownerReferences": [owner_reference(CRON_JOBS, found)],
        },
        "spec": template.get("spec") or {},
    }


def _scheduled_for(job: UntypedObject) -> str | None:
    return job.metadata.annotations.get(SCHEDULED)


def _reference(job: UntypedObject) -> Tree:
    return {
        "kind": "Job",
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
        "apiVersion": JOBS.api_version,
        "resourceVersion": job.metadata.resource_version,
    }


def _without_empty(status: Tree, field: str) -> Tree:
    return status if status.get(field) else {key: value for key, value in status.items() if key != field}
