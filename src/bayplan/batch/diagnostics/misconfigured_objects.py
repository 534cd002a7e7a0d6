"""Objects that no session can use as they are: one message for the owner of each.

When an error in one object blocks more objects, each of those gets the message as well, because its owner looks there.
Called at the end of every session. Cost: one check per job, some more while queues are stalled or the hypernode tree is
not ready, plus the errors.
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
    """The unusable objects, and those that wait for them, after the session with this result."""
    cluster_state, catalog = engine.cluster_state, engine.cache.catalog
    groups, queues = catalog.table(volcano.PodGroup), catalog.table(volcano.Queue)
    for job in cluster_state.jobs.values():
        if not job.has_group:
            yield from _pods_without_group(job)
        elif job.queue not in cluster_state.queues:
            yield from _group_without_queue(job)
        elif (job.pending or job.is_pending()) and (message := closed_queue_message(engine, job)):
            yield job.pod_group, message  # its pods have a condition from the session
    for uid, faults in cluster_state.group_faults.items():
        if uid in groups:
            yield from ((groups[uid], fault) for fault in faults)
    yield from _objects_with_faults(queues, cluster_state.queue_faults)
    yield from _objects_with_faults(queues, {each.message: each.objects for each in outcome.stalled_queues})
    hypernode_faults = cluster_state.topology_faults | cluster_state.hypernode_faults | cluster_state.missing_members
    yield from _objects_with_faults(catalog.table(volcano.HyperNode), hypernode_faults)
    yield from find_blocked_groups(engine, outcome)
    yield from engine.unreadable_pods.values()


def find_blocked_groups(engine: BatchEngine, outcome: SessionResult) -> Iterator[ObjectProblem]:
    """Groups that wait until another object is corrected."""
    yield from _groups_in_stalled_queues(outcome, engine.cache.catalog.table(volcano.PodGroup))
    yield from _groups_without_topology(engine)


def _objects_with_faults(
    table: Mapping[str, KubeObject], faults: Mapping[str, tuple[str, ...]]
) -> Iterator[ObjectProblem]:
    for message, names in faults.items():
        yield from ((table[name], message) for name in names if name in table)


def _groups_in_stalled_queues(
    outcome: SessionResult, groups: Mapping[str, volcano.PodGroup]
) -> Iterator[ObjectProblem]:
    """Groups that wait in stalled queues. Each gets one reason; the queues get all of them."""
    reasons: dict[str, str] = {}
    for each in outcome.stalled_queues:
        reasons.setdefault(each.queue, each.message)
    for uid, found in outcome.groups.items() if reasons else ():
        reason = reasons.get("") or reasons.get(found.queue)
        # also groups whose pods do not exist yet
        waits = found.waiting or found.status.phase in (PENDING_PHASE, INQUEUE_PHASE)
        if reason and waits and uid in groups:
            yield groups[uid], reason


def _groups_without_topology(engine: BatchEngine) -> Iterator[ObjectProblem]:
    """Groups with a network topology while the hypernode tree is not ready or partly invalid. In the second case the
    invalid part may be the reason, because a search by hypernodes reports no other."""
    unready, misread = (
        next(iter(each), "") for each in (engine.cluster_state.topology_faults, engine.cluster_state.hypernode_faults)
    )
    for job in engine.cluster_state.jobs.values() if unready or misread else ():
        if not (job.has_group and job.pending and job.contains_network_topology()):
            continue
        if unready:
            yield job.pod_group, unready
        elif not job.is_pending():
            yield job.pod_group, f"{misread}; the group has a network topology and may wait for this"


def closed_queue_message(engine: BatchEngine, job: Job) -> str:
    """The message that a job's queue is closed; "" if it is open or no plugin checks the state."""
    queue = engine.cluster_state.queues.get(job.queue)
    state = "" if queue is None else queue.queue.status.state
    if state not in _CLOSED_STATES or not any(
        option.name in _PLUGINS_CHECKING_STATE for option in engine.configuration.plugins
    ):
        return ""
    return f"its queue {job.queue} is {state} and admits no job until it is opened"


def _pods_without_group(job: Job) -> Iterator[ObjectProblem]:
    for task in job.pending.values():
        yield task.pod, f"the pod group {job.uid} that the pod names does not exist; the pod waits until it is created"


def _group_without_queue(job: Job) -> Iterator[ObjectProblem]:
    message = f'pod group {job.uid} is in queue "{job.queue}", which does not exist; create it or use another queue'
    yield job.pod_group, message
    for task in job.pending.values():
        yield task.pod, message
