"""CronJob controller of batch.volcano.sh: one Job per scheduled time, named after its minute, so none is created twice.

Its schedule and its jobs enqueue a cron job. Of several missed times only the latest is started. Cost: a walk over the
jobs of the cron job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from bayplan.admission.volcano_kinds_validation import cron_job_error
from bayplan.codec.cron import parse_cron_schedule
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.job_states import FINISHED
from bayplan.controllers.volcano.resources import VC_CRON_JOBS, VC_JOBS, object_to_dict
from bayplan.controllers.workloads.cron_jobs import MAX_MISSED_STARTS, most_recent_schedule_time
from bayplan.errors import ApiError
from bayplan.objects.meta import format_time
from bayplan.objects.volcano.constants import COMPLETED, FAILED, SCHEDULED_AT

SCHEDULE_DELAY_S = 0.1
"""Delay after the scheduled time: a sync that is slightly too early would find nothing due."""


class VolcanoCronJobController(VolcanoController):
    name = "volcano-cronjob-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.crons = self.informer(VC_CRON_JOBS, UntypedObject)
        self.jobs = self.informer(VC_JOBS, UntypedObject)
        self._recorded: set[str] = set()
        self.crons.add_handler(self.enqueue)
        self.jobs.add_handler(self._on_job)

    def _on_job(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        job = new if new is not None else old
        assert job is not None
        owner = job.metadata.controller
        if owner is not None and owner.kind == "CronJob" and owner.api_version == VC_CRON_JOBS.api_version:
            self.queue.add((job.namespace, owner.name))

    async def sync(self, key: Key) -> float | None:
        cron = self.get_latest(self.crons, key)
        if cron is None or cron.terminating:
            return None
        jobs = self.jobs.owned_by(cron.uid)
        now = self.clock.now()
        status = await self._updated_status(cron, jobs)
        fault = cron_job_error(object_to_dict(cron))
        if fault:
            self._record_once(cron, "UnParseableCronJobSchedule", f"unparseable schedule for cronjob: {fault.strip()}")
            await self.replace_status(VC_CRON_JOBS, cron, status)
            return None
        schedule, zone = parse_cron_schedule(cron.spec["schedule"]), ZoneInfo(cron.spec.get("timeZone") or "UTC")
        if not cron.spec.get("suspend"):
            due, missed = most_recent_schedule_time(cron, schedule, zone, now)
            if missed > MAX_MISSED_STARTS:
                note = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
                self.record_event(VC_CRON_JOBS, cron, "TooManyMissedTimes", note, warning=True)
            if due is not None:
                await self._start(cron, due, zone, jobs, status)
        await self.replace_status(VC_CRON_JOBS, cron, status)
        next_time = schedule.next(now, zone)
        if schedule.every_s:
            base = _parse_time(status.get("lastScheduleTime")) or cron.metadata.creation_timestamp or now
            next_time = schedule.next(base, zone)
        return max((next_time - now).total_seconds(), 0.0) + SCHEDULE_DELAY_S if next_time is not None else None

    def _record_once(self, cron: UntypedObject, reason: str, note: str) -> None:
        event_key = f"{cron.uid} {cron.metadata.generation} {note}"
        if event_key not in self._recorded:
            self._recorded.add(event_key)
            self.record_event(VC_CRON_JOBS, cron, reason, note, warning=True)

    async def _updated_status(self, cron: UntypedObject, jobs: Sequence[UntypedObject]) -> Tree:
        """Status after the progress of the jobs. Deletes finished jobs above the history limits."""
        status = dict(cron.status)
        finished = {job.uid: job for job in jobs if _phase(job) in FINISHED}
        existing = {job.uid for job in jobs}
        active = []
        for each in status.get("active") or ():
            if each.get("uid") in finished:
                note = f"Saw completed job: {each.get('name')} in active, remove"
                self.record_event(VC_CRON_JOBS, cron, "SawCompletedJob", note)
            elif each.get("uid") in existing or _may_be_unobserved(each, cron):
                active.append(each)
        status["active"] = active
        succeeded = [job for job in finished.values() if _phase(job) == COMPLETED]
        last = max((_ended_at(job) for job in succeeded), default="")
        if last > str(status.get("lastSuccessfulTime") or ""):
            status["lastSuccessfulTime"] = last
        failed = [job for job in finished.values() if _phase(job) == FAILED]
        for candidates, limit, default in (
            (succeeded, "successfulJobsHistoryLimit", 3),
            (failed, "failedJobsHistoryLimit", 1),
        ):
            history_limit = int(cron.spec.get(limit, default))
            for job in sorted(candidates, key=_age)[: max(len(candidates) - history_limit, 0)]:
                if await self.delete(VC_JOBS, job, propagation="Background"):
                    self.record_event(VC_CRON_JOBS, cron, "SuccessfulDelete", f'Deleted job "{job.name}"')
        return status

    async def _start(
        self, cron: UntypedObject, due: datetime, zone: ZoneInfo, jobs: Sequence[UntypedObject], status: Tree
    ) -> None:
        """Create the job of a scheduled time, unless the concurrency policy forbids it."""
        policy = cron.spec.get("concurrencyPolicy") or "Allow"
        running = [job for job in jobs if _phase(job) not in FINISHED]
        if policy == "Forbid" and running:
            note = "Skipping job creation because another job is already running"
            self.record_event(VC_CRON_JOBS, cron, "ForbidConcurrent", note, warning=True)
            return
        if policy == "Replace":
            for job in running:
                if await self.delete(VC_JOBS, job, propagation="Background"):
                    self.record_event(
                        VC_CRON_JOBS, cron, "ReplaceConcurrent", "Replacing active job for CronJob", warning=True
                    )
            status["active"] = []
        body = cron_job_run(cron, due, zone)
        name = body["metadata"]["name"]
        try:
            created = await self.ensure(VC_JOBS, cron.namespace, body)
        except ApiError as fault:
            self.record_event(
                VC_CRON_JOBS, cron, "FailedCreate", f"Failed to create job: {fault.details}", warning=True
            )
            raise
        if created:
            note = f"Created job {name} for CronJob {cron.namespace}/{cron.name}"
            self.record_event(VC_CRON_JOBS, cron, "SuccessfulCreate", note)
        status["lastScheduleTime"] = format_time(due)
        known_uid = next((each.uid for each in jobs if each.name == name), "")
        uid = known_uid or await self._uid(cron.namespace, name)
        if uid and all(each.get("uid") != uid for each in status["active"]):
            kind = {"apiVersion": VC_JOBS.api_version, "kind": "Job"}
            status["active"] = [*status["active"], {**kind, "namespace": cron.namespace, "name": name, "uid": uid}]

    async def _uid(self, namespace: str, name: str) -> str:
        found = await self.client.get_raw(VC_JOBS, namespace, name)
        return str(found["metadata"]["uid"])


def cron_job_run(cron: UntypedObject, due: datetime, zone: ZoneInfo) -> Tree:
    template = cron.spec.get("jobTemplate") or {}
    meta = template.get("metadata") or {}
    annotations = {
        **(meta.get("annotations") or {}),
        SCHEDULED_AT: due.astimezone(zone).isoformat().replace("+00:00", "Z"),
    }
    return {
        "metadata": {
            "name": f"{cron.name}-{int(due.timestamp()) // 60}",
            "labels": meta.get("labels") or {},
            "annotations": annotations,
            "ownerReferences": [owner_reference(VC_CRON_JOBS, cron)],
        },
        "spec": template.get("spec") or {},
    }


def _phase(job: UntypedObject) -> str:
    return str((job.status.get("state") or {}).get("phase") or "")


def _ended_at(job: UntypedObject) -> str:
    return str((job.status.get("state") or {}).get("lastTransitionTime") or "")


def _age(job: UntypedObject) -> tuple[str, str]:
    return str(job.metadata.creation_timestamp), job.name


def _may_be_unobserved(active: Tree, cron: UntypedObject) -> bool:
    """Whether the watch may not have delivered a job yet: the one of the last scheduled time."""
    last = _parse_time(cron.status.get("lastScheduleTime"))
    return last is not None and active.get("name") == f"{cron.name}-{int(last.timestamp()) // 60}"


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
