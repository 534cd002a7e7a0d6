"""JobFlow and JobTemplate controllers: create the jobs of a flow's steps, and list the jobs of a template.

The job of a step is created from its template when the jobs of its targets are Completed. Flows, templates and jobs
enqueue a flow. Cost: a walk over the flow's own jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.admission.volcano_kinds_validation import job_flow_error
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.resources import JOB_FLOWS, JOB_TEMPLATES, VC_JOBS, object_to_dict
from bayplan.objects.meta import format_time
from bayplan.objects.volcano.constants import (
    COMPLETED,
    FAILED,
    FLOW_LABEL,
    PENDING,
    RUNNING,
    TEMPLATE_LABEL,
    TERMINATED,
)

FLOW_SUCCEED = "Succeed"
_STATUS_LISTS = {
    "pendingJobs": PENDING,
    "runningJobs": RUNNING,
    "failedJobs": FAILED,
    "completedJobs": COMPLETED,
    "terminatedJobs": TERMINATED,
}
_KNOWN = (*_STATUS_LISTS.values(), "Completing", "Terminating")


class JobFlowController(VolcanoController):
    name = "volcano-jobflow-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.flows = self.informer(JOB_FLOWS, UntypedObject)
        self.templates = self.informer(JOB_TEMPLATES, UntypedObject)
        self.jobs = self.informer(VC_JOBS, UntypedObject)
        self._recorded: set[str] = set()
        self.flows.add_handler(self.enqueue)
        self.templates.add_handler(self._on_template)
        self.jobs.add_handler(self._on_job)

    def _on_template(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        """Event handler: enqueue the flows that wait for this template."""
        for flow in self.flows.by_namespace(new.namespace) if new is not None else ():
            if any(step.get("name") == new.name for step in flow.spec.get("flows") or () if new is not None):
                self.enqueue(None, flow)

    def _on_job(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        job = new if new is not None else old
        assert job is not None
        owner = job.metadata.controller
        if owner is not None and owner.kind == "JobFlow" and owner.api_version == JOB_FLOWS.api_version:
            self.queue.add((job.namespace, owner.name))

    async def sync(self, key: Key) -> float | None:
        flow = self.get_latest(self.flows, key)
        if flow is None or flow.terminating:
            return None
        jobs = self.jobs.owned_by(flow.uid)
        phase = str((flow.status.get("state") or {}).get("phase") or "")
        if phase == FLOW_SUCCEED and flow.spec.get("jobRetainPolicy") == "delete":
            for job in jobs:
                await self.delete(VC_JOBS, job, propagation="Background")
            return None
        fault = job_flow_error(object_to_dict(flow))
        if fault:
            self._record_once(flow, "InvalidFlow", fault)
        else:
            await self._deploy(flow, jobs)
        now = format_time(self.clock.now())
        status = flow_status(flow, jobs, now)
        status["state"] = {"phase": flow_phase(phase, status, len(flow.spec.get("flows") or ()))}
        await self.replace_status(JOB_FLOWS, flow, status)
        return None

    async def _deploy(self, flow: UntypedObject, jobs: Sequence[UntypedObject]) -> None:
        """Create the jobs of all steps that are ready."""
        by_name = {job.name: job for job in jobs}
        for step in flow.spec.get("flows") or ():
            name = f"{flow.name}-{step['name']}"
            targets = (step.get("dependsOn") or {}).get("targets") or ()
            ready = all(phase_of(by_name.get(f"{flow.name}-{target}")) == COMPLETED for target in targets)
            if name in by_name or not ready:
                continue
            template = self.templates.get(flow.namespace, step["name"])
            if template is None:
                note = f"there is no JobTemplate {step['name']} in namespace {flow.namespace}; the step waits for it"
                self._record_once(flow, "TemplateNotFound", note)
            elif await self.ensure(VC_JOBS, flow.namespace, flow_job(flow, template, name)):
                self.record_event(JOB_FLOWS, flow, "Created", f"create a job named {name}!")

    def _record_once(self, flow: UntypedObject, reason: str, note: str) -> None:
        if f"{flow.uid} {note}" not in self._recorded:
            self._recorded.add(f"{flow.uid} {note}")
            self.record_event(JOB_FLOWS, flow, reason, note, warning=True)


class JobTemplateController(VolcanoController):
    """Lists the jobs of each template in its status."""

    name = "volcano-jobtemplate-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.templates = self.informer(JOB_TEMPLATES, UntypedObject)
        self.jobs = self.informer(VC_JOBS, UntypedObject)
        self.templates.add_handler(self.enqueue)
        self.jobs.add_handler(self._on_job)

    def _on_job(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        job = new if new is not None else old
        assert job is not None
        namespace, _, name = job.metadata.labels.get(TEMPLATE_LABEL, "").partition(".")
        if name and (old is None or new is None):
            self.queue.add((namespace, name))

    async def sync(self, key: Key) -> float | None:
        template = self.get_latest(self.templates, key)
        if template is None:
            return None
        template_key = f"{template.namespace}.{template.name}"
        names = [
            job.name
            for job in self.jobs.by_namespace(key[0])
            if job.metadata.labels.get(TEMPLATE_LABEL) == template_key
        ]
        if names:
            await self.replace_status(JOB_TEMPLATES, template, {**template.status, "jobDependsOnList": sorted(names)})
        return None


def flow_job(flow: UntypedObject, template: UntypedObject, name: str) -> Tree:
    labels = {TEMPLATE_LABEL: f"{flow.namespace}.{template.name}", FLOW_LABEL: f"{flow.namespace}.{flow.name}"}
    metadata = {
        "name": name,
        "labels": labels,
        "annotations": labels,
        "ownerReferences": [owner_reference(JOB_FLOWS, flow)],
    }
    return {"metadata": metadata, "spec": template.spec}


def phase_of(job: UntypedObject | None) -> str:
    return str((job.status.get("state") or {}).get("phase") or "") if job is not None else ""


def flow_phase(phase: str, status: Tree, steps: int) -> str:
    """Phase of a flow, from the counts of its jobs."""
    running, completed, failed, terminated = (
        len(status.get(key) or ()) for key in ("runningJobs", "completedJobs", "failedJobs", "terminatedJobs")
    )
    if phase in ("", PENDING):
        if (running or completed) and not failed:
            return FLOW_SUCCEED if completed == steps else RUNNING
        return FAILED if failed or terminated else PENDING
    if phase == RUNNING:
        if completed == steps:
            return FLOW_SUCCEED
        return FAILED if failed else RUNNING
    return phase


def flow_status(flow: UntypedObject, jobs: Sequence[UntypedObject], now: str) -> Tree:
    """Status of a flow, without its phase."""
    jobs = sorted(jobs, key=lambda job: job.name)
    status: Tree = {key: [job.name for job in jobs if phase_of(job) == phase] for key, phase in _STATUS_LISTS.items()}
    status["unKnowJobs"] = [job.name for job in jobs if phase_of(job) not in _KNOWN]
    status["conditions"] = {job.name: _condition(job) for job in jobs}
    before = {each["name"]: each for each in flow.status.get("jobStatusList") or ()}
    gone = [each for name, each in before.items() if name not in status["conditions"]]
    status["jobStatusList"] = [*gone, *(_job_status(job, before.get(job.name), now) for job in jobs)]
    return status


def _condition(job: UntypedObject) -> Tree:
    found: Tree = {"phase": phase_of(job), "createTime": _creation_time(job)}
    for target_key, source_key in (("runningDuration", "runningDuration"), ("taskStatusCount", "taskStatusCount")):
        if job.status.get(source_key):
            found[target_key] = job.status[source_key]
    return found


def _job_status(job: UntypedObject, before: Tree | None, now: str) -> Tree:
    phase = phase_of(job)
    history = [dict(each) for each in (before or {}).get("runningHistories") or ()]
    if phase and (not history or history[-1].get("state") != phase):
        if history:
            history[-1]["endTimestamp"] = now
        history.append({"startTimestamp": now, "state": phase})
    found: Tree = {"name": job.name, "state": phase, "startTimestamp": _creation_time(job), "runningHistories": history}
    if job.status.get("retryCount"):
        found["restartCount"] = job.status["retryCount"]
    if phase in (COMPLETED, FAILED, TERMINATED):
        found["endTimestamp"] = (job.status.get("state") or {}).get("lastTransitionTime") or now
    return found


def _creation_time(job: UntypedObject) -> str:
    created = job.metadata.creation_timestamp
    return format_time(created) if created is not None else ""
