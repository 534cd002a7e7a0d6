"""Resources that an admitted job keeps reserved.

Called once per job and session by the plugins that vote on admission (overcommit, proportion, capacity). An admitted
job that has not started reserves its whole minimum. A running job reserves what its minimum still lacks. A job with
fewer allocated tasks than its minimum member count reserves nothing: the missing tasks of a finishing job do not come
back.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import INQUEUE_PHASE, RUNNING_PHASE, Job
from bayplan.objects.resources import PODS, is_scalar_resource


def reserved_resources(job: Job) -> Amounts:
    """The job's reservation without gated tasks; empty for a job without minimum resources."""
    if job.min_resources_given is None:
        return Amounts()
    if job.phase == INQUEUE_PHASE:
        return job.deduct_gated(job.min_resources())
    if job.phase == RUNNING_PHASE and job.allocated_task_num >= job.pod_group.spec.min_member:
        return job.deduct_gated(_still_missing(job))
    return Amounts()


def inqueue_resources(job: Job) -> Amounts:
    """The reservation minus the resources that the job holds, for callers that count those as allocated."""
    if job.min_resources_given is None:
        return Amounts()
    started = job.phase == RUNNING_PHASE and job.allocated_task_num >= job.pod_group.spec.min_member
    if job.phase == INQUEUE_PHASE or started:
        return job.deduct_gated(_still_missing(job))
    return Amounts()


def _still_missing(job: Job) -> Amounts:
    """The minimum minus the allocated amounts. A scalar that the job holds enough of is left out."""
    minimum, allocated = job.min_resources(), job.allocated
    missing = Amounts(max(minimum.milli_cpu - allocated.milli_cpu, 0.0), max(minimum.memory - allocated.memory, 0.0))
    for name in minimum.scalars or {}:
        if name != PODS and not is_scalar_resource(name):
            continue  # ephemeral storage, which Volcano ignores here
        shortfall = minimum.get(name) - allocated.get(name)
        if shortfall > 0 or (name != PODS and name not in (allocated.scalars or {})):
            missing.set_scalar(name, shortfall)
    return missing


def insufficient_message(problem: str, verb: str, names: Sequence[str]) -> str:
    """Text of events: the resources that are insufficient."""
    return f"{problem}: {', '.join(f'{verb} {name}' for name in names)}" if names else problem
