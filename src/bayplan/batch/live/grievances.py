"""Who is in no session, or only in part, and why? A sentence for each object that its owner must mend.

Asked at the end of every session. Cost: a look at each job where some have no group or no queue; else what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.batch.engine import BatchEngine
from bayplan.batch.jobs import Job
from bayplan.objects import volcano
from bayplan.objects.meta import KubeObject

Grievance = tuple[KubeObject, str]


def grievances(engine: BatchEngine) -> Iterator[Grievance]:
    """Objects that cannot be used as they are."""
    ledger, catalog = engine.ledger, engine.cache.catalog
    groups, queues = catalog.table(volcano.PodGroup), catalog.table(volcano.Queue)
    for job in ledger.jobs.values():
        if not job.has_group:
            yield from _without_group(job)
        elif job.queue not in ledger.queues:
            yield from _without_queue(job)
    for uid, faults in ledger.group_faults.items():
        if uid in groups:
            yield from ((groups[uid], fault) for fault in faults)
    for sentence, names in ledger.queue_faults.items():
        yield from ((queues[name], sentence) for name in names if name in queues)
    yield from engine.unread.values()


def _without_group(job: Job) -> Iterator[Grievance]:
    for task in job.pending.values():
        yield task.pod, f"the pod group {job.uid} that the pod names does not exist; the pod waits until it does"


def _without_queue(job: Job) -> Iterator[Grievance]:
    sentence = f'pod group {job.uid} is in queue "{job.queue}", which does not exist; create it, or name another'
    yield job.pod_group, sentence
    for task in job.pending.values():
        yield task.pod, sentence
