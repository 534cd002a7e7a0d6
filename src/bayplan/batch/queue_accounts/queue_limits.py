"""What may a queue have at most, and would this much more stay within that?

Shared by the plugins that divide the cluster among queues. Limits are worked out when a session opens;
`is_within_limit` is asked for every task that is to be placed, so it makes nothing and costs well below a microsecond.
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
    """What is promised to queues in sum."""
    total = Amounts()
    for queue in queues:
        total.add(queue.guarantee)
    return total


def real_capability(queue: Queue, unpromised: Amounts) -> Amounts:
    """The most that a queue can have: what is promised to nobody and its own promise, within its capability."""
    limit = unpromised.clone().add(queue.guarantee)
    if queue.queue.spec.capability:
        limit.min_dimension(capability_of(queue), DimensionDefault.INFINITY)
    return limit


def capability_of(queue: Queue) -> Amounts:
    """What the queue says is its most; without limit in cpu and memory if it does not name them."""
    capability = queue.capability.clone()
    if capability.milli_cpu <= 0:
        capability.milli_cpu = UNLIMITED
    if capability.memory <= 0:
        capability.memory = UNLIMITED
    return capability


def is_within_limit(limit: Amounts, held: Amounts, asked: Amounts) -> bool:
    """Whether what is asked for on top of what is held stays within the limit, to the last crumb.

    Only asked dimensions count, and `pods` never: `requested_names_above` of the sum, without making either."""
    if asked.milli_cpu > 0 and held.milli_cpu + asked.milli_cpu > limit.milli_cpu:
        return False
    if asked.memory > 0 and held.memory + asked.memory > limit.memory:
        return False
    if asked.scalars:
        have, most = held.scalars or {}, limit.scalars or {}
        for name, amount in asked.scalars.items():
            if amount > 0 and name != PODS and have.get(name, 0.0) + amount > most.get(name, 0.0):
                return False
    return True


def insufficient_resources(
    limit: Amounts, wanted: Amounts, allocated: Amounts, inqueue: Amounts, elastic: Amounts
) -> list[str]:
    """Of which wanted resources there would be too little below the limit, if a job with this minimum came in.

    What jobs hold beyond their minimums does not count: it can be taken back."""
    return wanted.clone().add(allocated).add(inqueue).sub(elastic).requested_names_above(limit, wanted)


def record_quota_event(session: Session, job: Job, names: list[str]) -> None:
    """The group learns why its job is not let in."""
    text = insufficient_message(QUOTA_INSUFFICIENT, "insufficient", names)
    session.record_event(job, "Normal", "Unschedulable", text)


def total_request(tasks: Iterable[Task]) -> Amounts:
    """What tasks ask for in sum."""
    total = Amounts()
    for task in tasks:
        total.add(task.resreq)
    return total


def set_queue_gauges(session: Session, queue: str, what: str, amounts: Amounts) -> None:
    """Show amounts of a queue to people who watch it; a scalar that was shown before and is not named now is 0."""
    cpu, memory, prefix = _GAUGES[what]
    shown = session.queue_gauges.setdefault(queue, {})
    if cpu in shown:
        shown.update((name, 0.0) for name in shown if name.startswith(prefix))
    shown[cpu] = amounts.milli_cpu
    shown[memory] = amounts.memory
    if amounts.scalars:
        for name, amount in amounts.scalars.items():
            shown[prefix + name] = amount


def read_queue_gauges(gauges: Mapping[str, float], what: str) -> Amounts:
    """Amounts as `set_queue_gauges` showed them; none where it did not."""
    cpu, memory, prefix = _GAUGES[what]
    found = Amounts(gauges.get(cpu, 0.0), gauges.get(memory, 0.0))
    for name, amount in gauges.items():
        if name.startswith(prefix):
            found.set_scalar(name.removeprefix(prefix), amount)
    return found
