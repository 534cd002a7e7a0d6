"""How much does a job that was let into its queue still keep others from taking?

Asked by every plugin that votes on letting jobs in (overcommit, proportion, capacity), for each job once a session. A
job that is in and has not started keeps its whole minimum; a running one keeps what its minimum lacks, unless too few
of its tasks are left for that to mean anything: the rest of a finished job is not coming back.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import INQUEUE_PHASE, RUNNING_PHASE, Job
from bayplan.objects.resources import PODS, is_scalar_resource


def reserved_resources(job: Job) -> Amounts:
    """What the job keeps reserved, gated tasks left out; nothing for a job that says no minimum."""
    if job.min_resources_given is None:
        return Amounts()
    if job.phase == INQUEUE_PHASE:
        return job.deduct_gated(job.min_resources())
    if job.phase == RUNNING_PHASE and job.allocated_task_num >= job.pod_group.spec.min_member:
        return job.deduct_gated(_still_missing(job))
    return Amounts()


def inqueue_resources(job: Job) -> Amounts:
    """The same less what the job holds already, for those who count that as allocated."""
    if job.min_resources_given is None:
        return Amounts()
    started = job.phase == RUNNING_PHASE and job.allocated_task_num >= job.pod_group.spec.min_member
    if job.phase == INQUEUE_PHASE or started:
        return job.deduct_gated(_still_missing(job))
    return Amounts()


def _still_missing(job: Job) -> Amounts:
    """The minimum less what is allocated; a scalar that the job holds enough of is not named."""
    wanted, held = job.min_resources(), job.allocated
    missing = Amounts(max(wanted.milli_cpu - held.milli_cpu, 0.0), max(wanted.memory - held.memory, 0.0))
    for name in wanted.scalars or {}:
        if name != PODS and not is_scalar_resource(name):
            continue  # ephemeral storage, which upstream forgets here
        lacking = wanted.get(name) - held.get(name)
        if lacking > 0 or (name != PODS and name not in (held.scalars or {})):
            missing.set_scalar(name, lacking)
    return missing


def insufficient_message(problem: str, verb: str, names: Sequence[str]) -> str:
    """How events tell of which resources there is too little."""
    return f"{problem}: {', '.join(f'{verb} {name}' for name in names)}" if names else problem
