"""Who is in no session, or only in part, or shut out, and why? A sentence for each object that its owner must mend.

Where what is wrong with one object stops others, each of those is told as well: whoever waits looks at his own group.
Asked at the end of every session. Cost: a look at each job; a few looks at each where queues stand still or the tree of
hypernodes cannot be used; else what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.jobs import INQUEUE_PHASE, PENDING_PHASE, Job
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano

ObjectProblem = tuple[KubeObject, str]
_CLOSED_STATES = ("Closed", "Closing")
_PLUGINS_CHECKING_STATE = ("capacity", "proportion")


def find_misconfigured_objects(engine: BatchEngine, outcome: SessionResult) -> Iterator[ObjectProblem]:
    """Objects that cannot be used as they are, and those that wait for them, after the session with this outcome."""
    ledger, catalog = engine.cluster_state, engine.cache.catalog
    groups, queues = catalog.table(volcano.PodGroup), catalog.table(volcano.Queue)
    for job in ledger.jobs.values():
        if not job.has_group:
            yield from _pods_without_group(job)
        elif job.queue not in ledger.queues:
            yield from _group_without_queue(job)
        elif (job.pending or job.is_pending()) and (sentence := closed_queue_message(engine, job)):
            yield job.pod_group, sentence  # its pods have a condition of the session's
    for uid, faults in ledger.group_faults.items():
        if uid in groups:
            yield from ((groups[uid], fault) for fault in faults)
    yield from _objects_with_faults(queues, ledger.queue_faults)
    yield from _objects_with_faults(queues, {each.message: each.objects for each in outcome.stalled_queues})
    places = ledger.topology_faults | ledger.hypernode_faults | ledger.missing_members
    yield from _objects_with_faults(catalog.table(volcano.HyperNode), places)
    yield from find_blocked_groups(engine, outcome)
    yield from engine.unreadable_pods.values()


def find_blocked_groups(engine: BatchEngine, outcome: SessionResult) -> Iterator[ObjectProblem]:
    """Groups that wait until something else is mended."""
    yield from _groups_in_stalled_queues(outcome, engine.cache.catalog.table(volcano.PodGroup))
    yield from _groups_without_topology(engine)


def _objects_with_faults(
    table: Mapping[str, KubeObject], faults: Mapping[str, tuple[str, ...]]
) -> Iterator[ObjectProblem]:
    for sentence, names in faults.items():
        yield from ((table[name], sentence) for name in names if name in table)


def _groups_in_stalled_queues(
    outcome: SessionResult, groups: Mapping[str, volcano.PodGroup]
) -> Iterator[ObjectProblem]:
    """Groups that wait in queues which get nothing. One reason is enough: the queues are told all of them."""
    reasons: dict[str, str] = {}
    for each in outcome.stalled_queues:
        reasons.setdefault(each.queue, each.message)
    for uid, found in outcome.groups.items() if reasons else ():
        reason = reasons.get("") or reasons.get(found.queue)
        waits = found.waiting or found.status.phase in (PENDING_PHASE, INQUEUE_PHASE)  # also for its pods to be made
        if reason and waits and uid in groups:
            yield groups[uid], reason


def _groups_without_topology(engine: BatchEngine) -> Iterator[ObjectProblem]:
    """Groups that ask for a topology while there is none to be had. Where some of it cannot be read nobody knows
    whether that part would have done: a search by hypernodes leaves no other reason either."""
    unready, misread = (
        next(iter(each), "") for each in (engine.cluster_state.topology_faults, engine.cluster_state.hypernode_faults)
    )
    for job in engine.cluster_state.jobs.values() if unready or misread else ():
        if not (job.has_group and job.pending and job.contains_network_topology()):
            continue
        if unready:
            yield job.pod_group, unready
        elif not job.is_pending():
            yield job.pod_group, f"{misread}; the group asks for a network topology, and may wait for that"


def closed_queue_message(engine: BatchEngine, job: Job) -> str:
    """That a job's queue is closed; nothing where it is not, or where no plugin looks at that."""
    queue = engine.cluster_state.queues.get(job.queue)
    state = "" if queue is None else queue.queue.status.state
    if state not in _CLOSED_STATES or not any(
        option.name in _PLUGINS_CHECKING_STATE for option in engine.configuration.plugins
    ):
        return ""
    return f"its queue {job.queue} is {state}, and lets nobody start until it is opened"


def _pods_without_group(job: Job) -> Iterator[ObjectProblem]:
    for task in job.pending.values():
        yield task.pod, f"the pod group {job.uid} that the pod names does not exist; the pod waits until it does"


def _group_without_queue(job: Job) -> Iterator[ObjectProblem]:
    sentence = f'pod group {job.uid} is in queue "{job.queue}", which does not exist; create it, or name another'
    yield job.pod_group, sentence
    for task in job.pending.values():
        yield task.pod, sentence
