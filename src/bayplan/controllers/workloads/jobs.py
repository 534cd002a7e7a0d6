"""Job controller: creates pods until enough have succeeded or too many have failed.

Each pod has a finalizer until it is counted, so that no deleted pod is missed and none is counted twice. Finished pods
are recorded by uid, their finalizers removed, and then added to the counters. A sync walks the job's own pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import JOBS, PODS, PodFields, Tree, UntypedObject
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory, merge_patch
from bayplan.controllers.workloads import job_status
from bayplan.controllers.workloads.job_pods import job_pod
from bayplan.controllers.workloads.job_status import JobOutcome
from bayplan.controllers.workloads.owned_pods import OwnedPodsController
from bayplan.errors import ApiError, NotFound
from bayplan.objects.meta import format_time

log = logging.getLogger(__name__)

MAX_PODS_PER_SYNC = 500
MANAGED_BY = "kubernetes.io/job-controller"
FIRST_BACKOFF_S = 10.0
LAST_BACKOFF_S = 600.0
_REACHED = JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods")
_BACKOFF = JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
_DEADLINE = JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
_INDEXES = JobOutcome(False, "FailedIndexes", "Job has failed indexes")
_MOST_INDEXES = JobOutcome(
    False, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
)


@dataclass(slots=True)
class _FailureBackoff:
    """Failures since the last success, and the time of the last one."""

    failures: int = 0
    last: datetime | None = None
    seen: set[str] = field(default_factory=set)
    """Pods that are already included: a pod that is seen again before it is counted has failed once."""

    def record_end(self, pod: PodFields, now: datetime, *, succeeded: bool) -> None:
        if pod.uid in self.seen:
            return
        self.seen.add(pod.uid)
        self.failures = 0 if succeeded else self.failures + 1
        self.last = job_status.finish_time(pod, now)

    def wait_s(self, now: datetime) -> float:
        if not self.failures or self.last is None:
            return 0.0
        delay_s = min(FIRST_BACKOFF_S * 2.0 ** (self.failures - 1), LAST_BACKOFF_S)
        return max(0.0, delay_s - (now - self.last).total_seconds())


@dataclass(slots=True)
class _PodCounts:
    active: list[PodFields] = field(default_factory=list)
    terminating: int = 0
    succeeded: list[PodFields] = field(default_factory=list)
    """Succeeded pods that are not counted yet."""
    failed: list[PodFields] = field(default_factory=list)
    ignored: list[PodFields] = field(default_factory=list)
    """Failed pods that do not count."""
    good_indexes: set[int] = field(default_factory=set)
    bad_indexes: set[int] = field(default_factory=set)
    fatal: str = ""
    """Message of the failure policy rule that fails the job."""


class JobController(OwnedPodsController):
    name = "job-controller"
    resource = JOBS

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self._backoffs: dict[str, _FailureBackoff] = {}
        self._untracked: set[str] = set()
        """Pods whose finalizer is removed while the watch still shows it: they are counted."""
        self._orphans: WorkQueue[Key] = WorkQueue(
            "job's orphan", self._remove_finalizer, clock=informers.clock, chance=informers.chance, workers=2
        )
        self.pods.add_handler(self._on_tracked_pod)

    async def run(self) -> None:
        await self.wait_synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self._orphans.run())

    # Event handlers.

    def _on_owner(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if old is not None and (new is None or job_status.is_finished(new)):
            self._backoffs.pop(old.uid, None)
            self.forget(old.uid)
            for pod in self.pods.owned_by(old.uid):
                self._on_tracked_pod(None, pod)
        super()._on_owner(old, new)

    def _on_tracked_pod(self, before: PodFields | None, pod: PodFields | None) -> None:
        """Event handler: remove the finalizer of a pod that no job will count."""
        if before is not None and (pod is None or job_status.TRACKING not in pod.metadata.finalizers):
            self._untracked.discard(before.uid)
        if pod is not None and job_status.TRACKING in pod.metadata.finalizers and self._is_orphan(pod):
            self._orphans.add((pod.namespace, pod.name), after_s=0.2)

    def _is_orphan(self, pod: PodFields) -> bool:
        owner = pod.metadata.controller
        if owner is None or owner.kind != "Job":
            return True
        job = self.owners.get(pod.namespace, owner.name)
        return job is None or job.uid != owner.uid or job_status.is_finished(job)

    async def _remove_finalizer(self, key: Key) -> None:
        pod = self.pods.get(*key)
        if pod is not None and job_status.TRACKING in pod.metadata.finalizers and self._is_orphan(pod):
            await self.untrack(pod)

    # Sync.

    async def sync(self, key: Key) -> float | None:
        job = self.get_latest(self.owners, key)
        if job is None or job_status.is_finished(job) or job.spec.get("managedBy", MANAGED_BY) != MANAGED_BY:
            return None
        pods = await self.claim_pods(job)
        now = self.clock.now()
        count = self._count(job, pods, now)
        return await _JobSync(self, job, count, self._backoffs.setdefault(job.uid, _FailureBackoff()), now).work()

    def _count(self, job: UntypedObject, pods: Sequence[PodFields], now: datetime) -> _PodCounts:
        recorded = _uncounted_uids(job)
        completions = int(job.spec.get("completions") or 0)
        count = _PodCounts(good_indexes=job_status.parse_indexes(job.status.get("completedIndexes"), completions))
        count.bad_indexes = job_status.parse_indexes(job.status.get("failedIndexes"), completions)
        backoff = self._backoffs.setdefault(job.uid, _FailureBackoff())
        for pod in sorted(pods, key=lambda each: job_status.finish_time(each, now)):
            tracked = job_status.TRACKING in pod.metadata.finalizers
            if pod.active:
                count.active.append(pod)
                continue
            if pod.terminating and not pod.finished:
                count.terminating += 1
            if not tracked or pod.uid in recorded or pod.uid in self._untracked:
                continue
            if pod.status.phase == "Succeeded":
                count.succeeded.append(pod)
                if (index := job_status.index_of(pod)) is not None and index < completions:
                    count.good_indexes.add(index)
                backoff.record_end(pod, now, succeeded=True)
            elif job_status.has_failed(job, pod):
                _count_failure(job, pod, count)
                if pod in count.failed:
                    backoff.record_end(pod, now, succeeded=False)
        count.bad_indexes -= count.good_indexes
        return count

    async def untrack(self, pod: PodFields) -> None:
        """Remove the finalizer of a counted pod."""
        meta = {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [job_status.TRACKING]}
        if self.pods.get(pod.namespace, pod.name) is not None:
            self._untracked.add(pod.uid)
        try:
            await self.client.patch(PODS, {"metadata": meta}, namespace=pod.namespace, name=pod.name)
        except NotFound:
            pass
        except ApiError:
            self._untracked.discard(pod.uid)
            raise


def _count_failure(job: UntypedObject, pod: PodFields, count: _PodCounts) -> None:
    match = job_status.match_failure_policy(job, pod)
    # The controller itself deletes the pods of a suspended job; they have not failed.
    if match.action == "Ignore" or (job.spec.get("suspend") and pod.terminating):
        count.ignored.append(pod)
        return
    count.failed.append(pod)
    if match.action == "FailJob":
        count.fatal = count.fatal or match.message
    index, limit = job_status.index_of(pod), job.spec.get("backoffLimitPerIndex")
    if limit is None or index is None:
        return
    text = pod.metadata.annotations.get(job_status.INDEX_FAILURES, "0")
    if match.action == "FailIndex" or int(text if text.isdigit() else 0) >= limit:
        count.bad_indexes.add(index)


def _uncounted_uids(job: UntypedObject) -> set[str]:
    """Uids of pods that are recorded and not added to the counters yet."""
    found = job.status.get("uncountedTerminatedPods") or {}
    return {*(found.get("succeeded") or ()), *(found.get("failed") or ())}


class _JobSync:
    def __init__(
        self, controller: JobController, job: UntypedObject, count: _PodCounts, backoff: _FailureBackoff, now: datetime
    ) -> None:
        self._controller, self._job, self._count, self._backoff, self._now = controller, job, count, backoff, now
        self._status: Tree = dict(job.status)
        self._conditions: list[Tree] = list(job.status.get("conditions") or ())
        self._suspended = bool(job.spec.get("suspend"))
        self._requeue_after_s: float | None = None
        uncounted = job.status.get("uncountedTerminatedPods") or {}
        self._succeeded_uids = [*(uncounted.get("succeeded") or ()), *(pod.uid for pod in count.succeeded)]
        self._failed_uids = [*(uncounted.get("failed") or ()), *(pod.uid for pod in count.failed)]

    async def work(self) -> float | None:
        self._begin()
        verdict = self._verdict()
        failure: ApiError | None = None
        if self._controller.expectations.satisfied(self._job.uid) and not self._job.terminating:
            try:
                await self._manage(verdict)
            except ApiError as fault:
                failure = fault
        await self._account(verdict)
        if failure is not None:
            raise failure
        return self._requeue_after_s

    # Start and suspension.

    def _begin(self) -> None:
        before = {each["type"]: each["status"] for each in self._conditions}.get("Suspended")
        self._conditions = job_status.with_suspension(self._conditions, suspended=self._suspended, now=self._now)
        after = {each["type"]: each["status"] for each in self._conditions}.get("Suspended")
        if before != after and after is not None:
            reason = "Suspended" if self._suspended else "Resumed"
            self._controller.record_event(JOBS, self._job, reason, f"Job {reason.lower()}")
            if not self._suspended:
                self._status["startTime"] = format_time(self._now)
        if not self._suspended and "startTime" not in self._status:
            self._status["startTime"] = format_time(self._now)

    @property
    def _start(self) -> datetime | None:
        text = self._status.get("startTime")
        return datetime.fromisoformat(text) if text else None

    # Outcome.

    @property
    def _succeeded(self) -> int:
        if self._indexed:
            return len(self._count.good_indexes)
        return int(self._job.status.get("succeeded") or 0) + len(self._succeeded_uids)

    @property
    def _failed(self) -> int:
        return int(self._job.status.get("failed") or 0) + len(self._failed_uids)

    @property
    def _indexed(self) -> bool:
        return bool(self._job.spec.get("completionMode") == "Indexed")

    def _verdict(self) -> JobOutcome | None:
        """Outcome of the job if it ends now. A recorded outcome is final."""
        job, count = self._job, self._count
        for kind, succeeded in (("FailureTarget", False), ("SuccessCriteriaMet", True)):
            found = job_status.condition(job, kind)
            if found is not None and found["status"] == "True":
                return JobOutcome(succeeded, found.get("reason", ""), found.get("message", ""))
        if count.fatal:
            return JobOutcome(False, "PodFailurePolicy", count.fatal)
        limit = int(job.spec.get("backoffLimit", job_status.BACKOFF_LIMIT))
        if self._failed > limit or self._restarted_too_often(limit):
            return _BACKOFF
        left_s = job_status.deadline_in_s(job, self._start, self._now)
        if left_s is not None:
            if left_s <= 0:
                return _DEADLINE
            self._requeue_after(left_s)
        if (indexes := self._by_indexes()) is not None:
            return indexes
        wanted = job.spec.get("completions")
        enough = self._succeeded > 0 and not count.active if wanted is None else self._succeeded >= int(wanted)
        return _REACHED if enough else None

    def _by_indexes(self) -> JobOutcome | None:
        if not self._indexed:
            return None
        job, count = self._job, self._count
        if (found := job_status.check_success_policy(job, count.good_indexes)) is not None:
            return found
        max_failed = job.spec.get("maxFailedIndexes")
        if max_failed is not None and len(count.bad_indexes) > max_failed:
            return _MOST_INDEXES
        wanted = int(job.spec.get("completions") or 0)
        if count.bad_indexes and len(count.bad_indexes | count.good_indexes) >= wanted:
            return _INDEXES
        return None

    def _restarted_too_often(self, limit: int) -> bool:
        """Whether restarts in place exceed the backoff limit: such pods fail without ending."""
        template = self._job.spec.get("template") or {}
        if (template.get("spec") or {}).get("restartPolicy") != "OnFailure":
            return False
        times = job_status.restarts(pod for pod in self._count.active if pod.status.phase in ("Running", "Pending"))
        return times > 0 if not limit else times >= limit

    # Pods.

    async def _manage(self, verdict: JobOutcome | None) -> None:
        job, active = self._job, self._count.active
        if verdict is not None or self._suspended:
            if active:
                await self._controller.delete_pods(job, active)
                self._count_as_terminating(active)
            return
        wanted = self._wanted_parallelism()
        if len(active) > wanted:
            surplus = sorted(active, key=_deletion_rank)[: len(active) - wanted]
            await self._controller.delete_pods(job, surplus)
            self._count_as_terminating(surplus)
            return
        waiting = self._count.terminating if job_status.replaces_failed_only(job) else 0
        missing = min(wanted - len(active) - waiting, MAX_PODS_PER_SYNC)
        if missing <= 0:
            return
        wait_s = self._backoff.wait_s(self._now)
        if wait_s > 0:
            self._requeue_after(wait_s)
            return
        await self._controller.create_pods(job, self._bodies(missing))

    def _wanted_parallelism(self) -> int:
        parallel, completions = int(self._job.spec.get("parallelism", 1)), self._job.spec.get("completions")
        if completions is None:
            return len(self._count.active) if self._succeeded else parallel
        left = int(completions) - self._succeeded
        if self._indexed:
            left -= len(self._count.bad_indexes)
        return max(0, min(left, parallel))

    def _bodies(self, missing: int) -> list[Tree]:
        if not self._indexed:
            return [job_pod(self._job)] * missing
        count = self._count
        busy = {index for pod in count.active if (index := job_status.index_of(pod)) is not None}
        taken = busy | count.good_indexes | count.bad_indexes
        indexes = job_status.first_pending(taken, missing, int(self._job.spec.get("completions") or 0))
        return [job_pod(self._job, index=index, failures=self._failures_of(index)) for index in indexes]

    def _failures_of(self, index: int) -> int | None:
        """Previous failures of an index, if they are counted per index."""
        if self._job.spec.get("backoffLimitPerIndex") is None:
            return None
        before = [
            int(pod.metadata.annotations.get(job_status.INDEX_FAILURES, "0"))
            for pod in self._controller.pods.owned_by(self._job.uid)
            if job_status.index_of(pod) == index and job_status.has_failed(self._job, pod)
        ]
        return max(before) + 1 if before else 0

    def _count_as_terminating(self, pods: Sequence[PodFields]) -> None:
        """Count deleted pods as terminating instead of active."""
        uids = {pod.uid for pod in pods}
        self._count.active = [pod for pod in self._count.active if pod.uid not in uids]
        self._count.terminating += len(uids)

    def _requeue_after(self, seconds: float) -> None:
        self._requeue_after_s = seconds if self._requeue_after_s is None else min(seconds, self._requeue_after_s)

    # Counters.

    async def _account(self, verdict: JobOutcome | None) -> None:
        """Record finished pods, remove their finalizers, and add them to the counters."""
        count, job = self._count, self._job
        finished = [*count.succeeded, *count.failed, *count.ignored]
        if verdict is not None:
            self._set_target(verdict)
        if finished or verdict is not None:
            job = await self._write(job, self._numbers(self._succeeded_uids, self._failed_uids, counted=False))
        recorded = set(self._succeeded_uids) | set(self._failed_uids)
        tracked = [
            pod for pod in self._controller.pods.owned_by(job.uid) if job_status.TRACKING in pod.metadata.finalizers
        ]
        uncounted_pods = {pod.uid: pod for pod in [*finished, *(pod for pod in tracked if pod.uid in recorded)]}
        await asyncio.gather(*(self._controller.untrack(pod) for pod in uncounted_pods.values()))
        status = self._numbers([], [], counted=True)
        if verdict is not None and not status.get("active") and not status.get("terminating"):
            self._finish(status, verdict)
        await self._write(job, status)

    async def _write(self, job: UntypedObject, status: Tree) -> UntypedObject:
        """Patch the status. Returns the job after the write."""
        wanted = merge_patch(job.status, status)
        if not wanted:
            return job
        answer = await self._controller.write(JOBS, job, {"status": wanted}, subresource="status")
        return self._controller.remember_write(answer)

    def _numbers(self, succeeded: list[str], failed: list[str], *, counted: bool) -> Tree:
        count, job = self._count, self._job
        before = {key: int(job.status.get(key) or 0) for key in ("succeeded", "failed")}
        numbers = {
            "active": len(count.active),
            "ready": sum(1 for pod in count.active if pod.ready),
            "terminating": count.terminating,
            "succeeded": before["succeeded"] + (len(self._succeeded_uids) if counted else 0),
            "failed": before["failed"] + (len(self._failed_uids) if counted else 0),
        }
        status: Tree = {key: value for key, value in numbers.items() if value or key in ("ready", "terminating")}
        if "startTime" in self._status:
            status["startTime"] = self._status["startTime"]
        uncounted = {key: uids for key, uids in (("succeeded", succeeded), ("failed", failed)) if uids}
        status["uncountedTerminatedPods"] = uncounted
        if self._indexed:
            if count.good_indexes:
                status["completedIndexes"] = job_status.format_indexes(count.good_indexes)
                if counted:
                    status["succeeded"] = len(count.good_indexes)
            if job.spec.get("backoffLimitPerIndex") is not None:
                status["failedIndexes"] = job_status.format_indexes(count.bad_indexes)
        if self._conditions:
            status["conditions"] = self._conditions
        return status

    def _set_target(self, verdict: JobOutcome) -> None:
        kind = "SuccessCriteriaMet" if verdict.succeeded else "FailureTarget"
        if not any(each["type"] == kind for each in self._conditions):
            condition = job_status.make_condition(kind, "True", verdict.reason, verdict.message, self._now)
            self._conditions = [*self._conditions, condition]

    def _finish(self, status: Tree, verdict: JobOutcome) -> None:
        kind = "Complete" if verdict.succeeded else "Failed"
        condition = job_status.make_condition(kind, "True", verdict.reason, verdict.message, self._now)
        status["conditions"] = [*self._conditions, condition]
        status.setdefault("startTime", format_time(self._now))
        if verdict.succeeded:
            status["completionTime"] = format_time(self._now)
            self._controller.record_event(JOBS, self._job, "Completed", "Job completed")
        else:
            self._controller.record_event(JOBS, self._job, verdict.reason, verdict.message, warning=True)


def _deletion_rank(pod: PodFields) -> tuple[object, ...]:
    return bool(pod.spec.node_name), pod.status.phase == "Running", pod.ready, str(pod.metadata.creation_timestamp)
