"""Is it time for a CronJob's next Job? Makes one at each moment of its schedule, and forgets old ones.

A job's name says for which minute it is, so none is made twice. Moments that were missed are made up for by the latest
of them alone, if that is not too late. A sync costs a walk over the cron job's own jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from bayplan.codec.cron import (
    CronSchedule,
    CronScheduleError,
    parse_cron_schedule,
    time_zone_error,
)
from bayplan.controllers.core.api_types import (
    CRON_JOBS,
    JOBS,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.workloads import job_status as sums
from bayplan.errors import AlreadyExists, ApiError
from bayplan.objects.meta import format_time

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
MAX_MISSED_STARTS = 100
_WAKE_UP_MARGIN_S = 0.1


class CronJobController(Controller):
    """Makes jobs by the clock."""

    name = "cronjob-controller"

    def __init__(self, world: SharedInformerFactory) -> None:
        super().__init__(world)
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
        again_s = None
        if not found.terminating:
            again_s = await self._on_time(found, status)
        await self._forget_old(found, jobs)
        await self.write_status(CRON_JOBS, found, status)
        return again_s

    # What has become of the jobs.

    def _active_jobs_status(self, found: UntypedObject, jobs: Sequence[UntypedObject]) -> Tree:
        status: Tree = dict(found.status)
        active: list[Tree] = list(status.get("active") or ())
        by_uid = {job.uid: job for job in jobs}
        known = {each["uid"] for each in active}
        for job in jobs:
            if sums.is_finished(job):
                self._record_finished(found, job, status, known)
            elif job.uid not in known and _scheduled_for(job) is None:
                note = f"Saw a job that the controller did not create or forgot: {job.name}"
                self.record_event(CRON_JOBS, found, "UnexpectedJob", note, warning=True)
        kept = []
        for each in active:
            there = by_uid.get(each["uid"]) or self.jobs.get(found.namespace, each["name"])
            if there is None and self._is_old(each):
                self.record_event(CRON_JOBS, found, "MissingJob", f"Active job went missing: {each['name']}")
            elif there is None or not sums.is_finished(there):
                kept.append(each)
        status["active"] = kept
        return _without_empty(status, "active")

    def _record_finished(self, found: UntypedObject, job: UntypedObject, status: Tree, known: set[str]) -> None:
        good = sums.has_condition(job, "Complete")
        if job.uid in known:
            note = f"Saw completed job: {job.name}, condition: {'Complete' if good else 'Failed'}"
            self.record_event(CRON_JOBS, found, "SawCompletedJob", note)
        ended = job.status.get("completionTime")
        if good and ended and ended > status.get("lastSuccessfulTime", ""):
            status["lastSuccessfulTime"] = ended

    def _is_old(self, reference: Tree) -> bool:
        """Whether we should have heard of a job by now; one that was just made may be on its way to us."""
        minute = reference["name"].rpartition("-")[2]
        if not minute.isdigit():
            return True
        return self.clock.now() - datetime.fromtimestamp(int(minute) * 60, UTC) > timedelta(minutes=2)

    # What is due.

    async def _on_time(self, found: UntypedObject, status: Tree) -> float | None:
        """Make the job that is due; how long until the next may be."""
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
        except CronScheduleError as wrong:
            note = f'unparseable schedule: "{found.spec.get("schedule", "")}" : {wrong}'
            self.record_event(CRON_JOBS, found, "UnparseableSchedule", note, warning=True)
            return None
        place: tzinfo = ZoneInfo(zone) if zone is not None else UTC
        now = self.clock.now()
        due, missed = most_recent_schedule_time(found, schedule, place, now)
        if missed > MAX_MISSED_STARTS:
            advice = "Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            note = f"too many missed start times: {missed}. {advice}"
            self.record_event(CRON_JOBS, found, "TooManyMissedTimes", note, warning=True)
        if due is not None:
            await self._start(found, status, due, place, now)
        following = schedule.next(now, place)
        return (following - now).total_seconds() + _WAKE_UP_MARGIN_S if following is not None else None

    async def _start(self, found: UntypedObject, status: Tree, due: datetime, place: tzinfo, now: datetime) -> None:
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
        body = job_body(found, due, place)
        try:
            made = msgspec.json.decode(
                await self.client.create(JOBS, body, namespace=found.namespace), type=UntypedObject
            )
            self.record_event(CRON_JOBS, found, "SuccessfulCreate", f"Created job {made.name}")
        except AlreadyExists:
            made = await self.client.get(UntypedObject, found.namespace, body["metadata"]["name"], resource=JOBS)
        except ApiError as fault:
            self.record_event(CRON_JOBS, found, "FailedCreate", f"Error creating job: {fault.details}", warning=True)
            raise
        others = [each for each in active if each["uid"] != made.uid]
        status["active"] = [*others, _reference(made)]
        status["lastScheduleTime"] = format_time(due)

    # What is over.

    async def _forget_old(self, found: UntypedObject, jobs: Sequence[UntypedObject]) -> None:
        for kind, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            limit = found.spec.get(field)
            if limit is None:
                continue
            ended = sorted(
                (job for job in jobs if sums.has_condition(job, kind) and not job.terminating),
                key=lambda job: (job.status.get("startTime", ""), job.name),
            )
            for job in ended[: max(0, len(ended) - int(limit))]:
                await self._delete_job(found, job)

    async def _delete_job(self, found: UntypedObject, job: UntypedObject) -> None:
        if await self.delete(JOBS, job, propagation="Background"):
            self.record_event(CRON_JOBS, found, "SuccessfulDelete", f"Deleted job {job.name}")


def most_recent_schedule_time(
    found: UntypedObject, schedule: CronSchedule, place: tzinfo, now: datetime
) -> tuple[datetime | None, int]:
    """The latest moment that has come and has no job yet, and how many came since the last job."""
    last = found.status.get("lastScheduleTime")
    since = datetime.fromisoformat(last) if last else found.metadata.creation_timestamp or now
    limit = found.spec.get("startingDeadlineSeconds")
    if limit is not None:
        since = max(since, now - timedelta(seconds=int(limit)))
    due: datetime | None = None
    missed = 0
    following = schedule.next(since, place)
    while following is not None and following <= now:
        due, missed = following, missed + 1
        if missed > MAX_MISSED_STARTS:
            # After a long sleep only the last hour or so is worth walking over.
            following = max(following, _recent_start(schedule, place, now))
        following = schedule.next(following, place)
    return due, missed


def _recent_start(schedule: CronSchedule, place: tzinfo, now: datetime) -> datetime:
    """A moment from which the latest one is a few steps away."""
    for hours in (1, 25, 24 * 8, 24 * 32, 24 * 367):
        start = now - timedelta(hours=hours)
        first = schedule.next(start, place)
        if first is not None and first <= now:
            return start
    return now - timedelta(days=366 * 5)


def job_body(found: UntypedObject, due: datetime, place: tzinfo) -> Tree:
    """The job of one moment."""
    template: Tree = found.spec.get("jobTemplate") or {}
    meta = template.get("metadata") or {}
    stamp = due.astimezone(place).isoformat(timespec="seconds").replace("+00:00", "Z")
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
