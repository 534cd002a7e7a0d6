"""Volcano's garbage collector: deletes finished jobs and their pods after ttlSecondsAfterFinished."""

from __future__ import annotations

from datetime import datetime

from bayplan.controllers.core.api_types import UntypedObject
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.job_states import FINISHED
from bayplan.controllers.volcano.resources import VC_JOBS
from bayplan.errors import NotFound


class VolcanoJobTtlController(VolcanoController):
    name = "volcano-gc-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.jobs = self.informer(VC_JOBS, UntypedObject)
        self.jobs.add_handler(self._on_job)

    def _on_job(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is not None and remaining_ttl_s(new, self.clock.now()) is not None:
            self.enqueue(None, new)

    async def sync(self, key: Key) -> float | None:
        job = self.jobs.get(*key)
        left = remaining_ttl_s(job, self.clock.now()) if job is not None and not job.terminating else None
        if job is None or left is None:
            return None
        if left > 0:
            return left
        try:
            latest = await self.client.get_raw(VC_JOBS, *key)
        except NotFound:
            return None
        # The TTL may have been changed meanwhile; then the watch delivers the change.
        same = latest["metadata"]["uid"] == job.uid and latest["spec"].get("ttlSecondsAfterFinished") == _ttl_seconds(
            job
        )
        if same:
            await self.delete(VC_JOBS, job, propagation="Foreground")
        return None


def _ttl_seconds(job: UntypedObject) -> int | None:
    given = job.spec.get("ttlSecondsAfterFinished")
    return None if given is None else int(given)


def remaining_ttl_s(job: UntypedObject, now: datetime) -> float | None:
    """Seconds that a finished job may stay; None for one that has not finished or has no TTL."""
    state, ttl = job.status.get("state") or {}, _ttl_seconds(job)
    if ttl is None or state.get("phase") not in FINISHED or not state.get("lastTransitionTime"):
        return None
    finished_at = datetime.fromisoformat(state["lastTransitionTime"])
    return ttl - (now - finished_at).total_seconds()
