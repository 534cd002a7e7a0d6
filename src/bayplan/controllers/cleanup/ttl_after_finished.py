"""TTL-after-finished controller: deletes finished Jobs after their ttlSecondsAfterFinished."""

from __future__ import annotations

from datetime import datetime

from bayplan.controllers.core.api_types import JOBS, UntypedObject
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.workloads import job_status


class TtlAfterFinishedController(Controller):
    name = "ttl-after-finished-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.jobs = self.informer(JOBS, UntypedObject)
        self.jobs.add_handler(self._on_job)

    def _on_job(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is not None and new.spec.get("ttlSecondsAfterFinished") is not None and job_status.is_finished(new):
            self.enqueue(None, new)

    async def sync(self, key: Key) -> float | None:
        job = self.jobs.get(*key)
        if job is None or job.terminating:
            return None
        ttl = job.spec.get("ttlSecondsAfterFinished")
        ended = _finish_time(job)
        if ttl is None or ended is None:
            return None
        left_s = int(ttl) - (self.clock.now() - ended).total_seconds()
        if left_s > 0:
            return left_s
        await self.client.delete(
            JOBS,
            namespace=job.namespace,
            name=job.name,
            uid=job.uid,
            resource_version=job.metadata.resource_version,
            propagation="Foreground",
        )
        return None


def _finish_time(job: UntypedObject) -> datetime | None:
    for kind in ("Complete", "Failed"):
        found = job_status.condition(job, kind)
        if found is not None and found["status"] == "True":
            return datetime.fromisoformat(found["lastTransitionTime"])
    return None
