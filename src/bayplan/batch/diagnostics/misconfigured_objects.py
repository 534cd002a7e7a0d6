"""Who is in no session, or only in part, or shut out, and why? A sentence for each object that its owner must mend.

Where what is wrong with one object stops others, each of those is told as well: whoever waits looks at his own group.
Asked at the end of every session. Cost: a look at each job; a few looks at each where queues stand still or the tree of
hypernodes cannot be used; else what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.jobs import INQUEUE_PHASE, PENDING_PHASE, Job
from bayplan.batch.session.outcome import Outcome
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano

Grievance = tuple[KubeObject, str]
_SHUT = ("Closed", "Closing")
_LOOK_AT_STATES = ("capacity", "proportion")


def grievances(engine: BatchEngine, outcome: Outcome) -> Iterator[Grievance]:
    """Objects that cannot be used as they are, and those that wait for them, after the session with this outcome."""
    ledger, catalog = engine.ledger, engine.cache.catalog
    groups, queues = catalog.table(volcano.PodGroup), catalog.table(volcano.Queue)
    for job in ledger.jobs.values():
        if not job.has_group:
            yield from _without_group(job)
        elif job.queue not in ledger.queues:
            yield from _without_queue(job)
        elif (job.pending or job.is_pending()) and (sentence := shut_out(engine, job)):
            yield job.pod_group, sentence  # its pods have a condition of the session's
    for uid, faults in ledger.group_faults.items():
        if uid in groups:
            yield from ((groups[uid], fault) for fault in faults)
    yield from _named(queues, ledger.queue_faults)
    yield from _named(queues, {each.sentence: each.by for each in outcome.standstills})
    places = ledger.topology_faults | ledger.place_faults | ledger.absent_members
    yield from _named(catalog.table(volcano.HyperNode), places)
    yield from held_up(engine, outcome)
    yield from engine.unread.values()


def held_up(engine: BatchEngine, outcome: Outcome) -> Iterator[Grievance]:
    """Groups that wait until something else is mended."""
    yield from _standing_still(outcome, engine.cache.catalog.table(volcano.PodGroup))
    yield from _without_topology(engine)


def _named(table: Mapping[str, KubeObject], faults: Mapping[str, tuple[str, ...]]) -> Iterator[Grievance]:
    for sentence, names in faults.items():
        yield from ((table[name], sentence) for name in names if name in table)


def _standing_still(outcome: Outcome, groups: Mapping[str, volcano.PodGroup]) -> Iterator[Grievance]:
    """Groups that wait in queues which get nothing. One reason is enough: the queues are told all of them."""
    reasons: dict[str, str] = {}
    for each in outcome.standstills:
        reasons.setdefault(each.of, each.sentence)
    for uid, found in outcome.groups.items() if reasons else ():
        reason = reasons.get("") or reasons.get(found.queue)
        waits = found.waiting or found.status.phase in (PENDING_PHASE, INQUEUE_PHASE)  # also for its pods to be made
        if reason and waits and uid in groups:
            yield groups[uid], reason


def _without_topology(engine: BatchEngine) -> Iterator[Grievance]:
    """Groups that ask for a topology while there is none to be had. Where some of it cannot be read nobody knows
    whether that part would have done: a search by hypernodes leaves no other reason either."""
    unready, misread = (next(iter(each), "") for each in (engine.ledger.topology_faults, engine.ledger.place_faults))
    for job in engine.ledger.jobs.values() if unready or misread else ():
        if not (job.has_group and job.pending and job.contains_network_topology()):
            continue
        if unready:
            yield job.pod_group, unready
        elif not job.is_pending():
            yield job.pod_group, f"{misread}; the group asks for a network topology, and may wait for that"


def shut_out(engine: BatchEngine, job: Job) -> str:
    """That a job's queue is closed; nothing where it is not, or where no plugin looks at that."""
    queue = engine.ledger.queues.get(job.queue)
    state = "" if queue is None else queue.queue.status.state
    if state not in _SHUT or not any(option.name in _LOOK_AT_STATES for option in engine.configuration.plugins):
        return ""
    return f"its queue {job.queue} is {state}, and lets nobody start until it is opened"


def _without_group(job: Job) -> Iterator[Grievance]:
    for task in job.pending.values():
        yield task.pod, f"the pod group {job.uid} that the pod names does not exist; the pod waits until it does"


def _without_queue(job: Job) -> Iterator[Grievance]:
    sentence = f'pod group {job.uid} is in queue "{job.queue}", which does not exist; create it, or name another'
    yield job.pod_group, sentence
    for task in job.pending.values():
        yield task.pod, sentence
