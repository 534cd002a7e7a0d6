"""Upper limits of queues, and the check whether a request stays within them.

Shared by the plugins that divide the cluster among queues. Limits are computed when a session opens. `is_within_limit`
is called for every task to place: it allocates nothing and costs well below a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bayplan.batch.model.amounts import UNLIMITED, Amounts, DimensionDefault
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.tasks import Task
from bayplan.batch.queue_accounts.job_reservations import insufficient_message
from bayplan.objects.resources import PODS

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session

QUOTA_INSUFFICIENT = "queue resource quota insufficient"
_GAUGES = {
    what: (f"{what}_milli_cpu", f"{what}_memory_bytes", f"{what}_scalar_resources/")
    for what in ("deserved", "allocated", "request", "capacity", "real_capacity")
}


def total_guarantee(queues: Iterable[Queue]) -> Amounts:
    total = Amounts()
    for queue in queues:
        total.add(queue.guarantee)
    return total


def real_capability(queue: Queue, unguaranteed: Amounts) -> Amounts:
    """The upper limit of a queue: unguaranteed resources plus its own guarantee, limited by its capability."""
    limit = unguaranteed.clone().add(queue.guarantee)
    if queue.queue.spec.capability:
        limit.min_dimension(capability_of(queue), DimensionDefault.INFINITY)
    return limit


def capability_of(queue: Queue) -> Amounts:
    """The queue's capability; unlimited in cpu and memory if it does not name them."""
    capability = queue.capability.clone()
    if capability.milli_cpu <= 0:
        capability.milli_cpu = UNLIMITED
    if capability.memory <= 0:
        capability.memory = UNLIMITED
    return capability


def is_within_limit(limit: Amounts, allocated: Amounts, request: Amounts) -> bool:
    """Whether the allocated amounts plus the request stay within the limit, without tolerance.

    Only requested dimensions count, and `pods` never does. Equals `requested_names_above` of the sum, without creating
    objects.
    """
    if request.milli_cpu > 0 and allocated.milli_cpu + request.milli_cpu > limit.milli_cpu:
        return False
    if request.memory > 0 and allocated.memory + request.memory > limit.memory:
        return False
    if request.scalars:
        allocated_scalars, limit_scalars = allocated.scalars or {}, limit.scalars or {}
        for name, amount in request.scalars.items():
            if amount > 0 and name != PODS and allocated_scalars.get(name, 0.0) + amount > limit_scalars.get(name, 0.0):
                return False
    return True


def insufficient_resources(
    limit: Amounts, minimum: Amounts, allocated: Amounts, inqueue: Amounts, elastic: Amounts
) -> list[str]:
    """The resources that would exceed the limit if a job with this minimum was admitted.

    Elastic resources, which jobs hold beyond their minimums, do not count: they can be reclaimed.
    """
    return minimum.clone().add(allocated).add(inqueue).sub(elastic).requested_names_above(limit, minimum)


def record_quota_event(session: Session, job: Job, names: list[str]) -> None:
    """Record an event on the pod group with the reason why its job is not admitted."""
    text = insufficient_message(QUOTA_INSUFFICIENT, "insufficient", names)
    session.record_event(job, "Normal", "Unschedulable", text)


def total_request(tasks: Iterable[Task]) -> Amounts:
    total = Amounts()
    for task in tasks:
        total.add(task.resreq)
    return total


def set_queue_gauges(session: Session, queue: str, what: str, amounts: Amounts) -> None:
    """Set the metrics of a queue. A scalar with an earlier value that `amounts` does not name becomes 0."""
    cpu, memory, prefix = _GAUGES[what]
    gauges = session.queue_gauges.setdefault(queue, {})
    if cpu in gauges:
        gauges.update((name, 0.0) for name in gauges if name.startswith(prefix))
    gauges[cpu] = amounts.milli_cpu
    gauges[memory] = amounts.memory
    if amounts.scalars:
        for name, amount in amounts.scalars.items():
            gauges[prefix + name] = amount


def read_queue_gauges(gauges: Mapping[str, float], what: str) -> Amounts:
    """The amounts that `set_queue_gauges` stored; zero if it stored none."""
    cpu, memory, prefix = _GAUGES[what]
    found = Amounts(gauges.get(cpu, 0.0), gauges.get(memory, 0.0))
    for name, amount in gauges.items():
        if name.startswith(prefix):
            found.set_scalar(name.removeprefix(prefix), amount)
    return found
