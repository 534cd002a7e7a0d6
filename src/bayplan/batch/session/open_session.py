"""How a session opens: the ledger caught up, accounts copied, topologies made ready.

Cost: what changed since the last session, a copy of the account columns, and a few steps a job.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from bayplan.batch.cluster_state import BatchClusterState
from bayplan.batch.config.scheduler_conf import BatchConfiguration
from bayplan.batch.evaluation.shard_filter import ShardFilter
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.hypernodes import HyperNode, HyperNodeTree
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Nodes
from bayplan.batch.model.pod_amounts import pod_amounts
from bayplan.batch.model.snapshot_changes import SnapshotChanges
from bayplan.batch.model.statuses import HOLDING
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.session.session import Session, SessionCommitter


def open_session(
    ledger: BatchClusterState,
    configuration: BatchConfiguration,
    handle: BatchHandle,
    cluster: SessionCommitter,
    *,
    uid: str,
) -> Generator[None, None, Session]:
    """A session on the cluster of this moment, before any plugin has seen it."""
    yield from ledger.refresh_steps()
    nodes = Nodes(ledger.snapshot, ledger.node_accounts.copy(), usage=handle.usage)
    _count_nominated_pods(ledger, nodes)
    queues = ledger.queues
    jobs = {uid: job for uid, job in ledger.jobs.items() if job.has_group and job.queue in queues}
    places = {name: _copy_hypernode(place) for name, place in ledger.hypernodes.items()}
    hyper_nodes = HyperNodeTree(places, nodes, ready=not ledger.topology_faults)
    session = Session(
        uid=uid,
        tiers=configuration.tiers,
        actions=configuration.actions,
        arguments={each.name: configuration.action_arguments(each.name) for each in configuration.configurations},
        jobs=jobs,
        queues=dict(ledger.queues),
        nodes=nodes,
        hyper_nodes=hyper_nodes,
        catalog=ledger.cache.catalog,
        cluster=cluster,
        clock=handle.clock,
        chance=handle.random,
        view=SnapshotChanges(ledger.snapshot),
        templates=ledger.templates,
        mends=handle.quirk_fixes,
        share=handle.node_sampling,
        fence=ShardFilter.for_nodes(nodes, handle.shard, ledger.manages),
        favourites=handle.preferred_nodes,
        last_choices=handle.last_choices,
        desk=handle.bind_request_desk,
        queues_admit=handle.queue_admission,
        records=handle.decision_records,
    )
    session.previous_faults = handle.previous_faults
    session.faults += _unschedulable_objects(ledger, len(jobs))
    session.faults += ledger.topology_faults
    for job in jobs.values():
        job.reset_for_session()
        if job.has_topology_specs:
            _prepare_topology(job, session)
        for task in job.pending.values():
            session.waiting_templates.setdefault(ledger.templates.template_number(task), task)
        yield
    return session


def _count_nominated_pods(ledger: BatchClusterState, nodes: Nodes) -> None:
    """Room that others made for their pods is theirs: it counts as promised, whatever is idle there."""
    for name, info in ledger.nominated_pods:
        node = nodes.get(name)
        if node is not None and ledger.task(info.uid) is None:
            nodes.accounts.add_pipelined(node.row, pod_amounts(info.pod))


def _unschedulable_objects(ledger: BatchClusterState, counted: int) -> Iterator[str]:
    """Who is in no queue, or in no group, and so in no session; queues below themselves, amounts that are none."""
    for job in ledger.jobs.values() if counted < len(ledger.jobs) else ():
        if not job.has_group:
            waiting = len(job.pending)
            if not waiting:
                continue  # pods that have ended may stay longer than their group
            yield f"{waiting} pod(s) name the pod group {job.uid}, which does not exist; they wait until it does"
        elif job.queue not in ledger.queues:
            yield f'pod group {job.uid} is in queue "{job.queue}", which does not exist; create it, or name another'
    yield from ledger.queue_faults
    yield from ledger.hypernode_faults
    yield from ledger.missing_members
    for faults in ledger.group_faults.values():
        yield from faults


def _copy_hypernode(place: HyperNode) -> HyperNode:
    return replace(place, children=set(place.children), nodes=set(place.nodes))


def _prepare_topology(job: Job, session: Session) -> None:
    tree = session.hyper_nodes
    if not job.contains_network_topology():
        return
    if job.network_topology is not None:
        job.network_topology.resolve_tier_name(tree.tier_names)
    for sub in job.sub_jobs.values():
        if sub.network_topology is not None:
            sub.network_topology.resolve_tier_name(tree.tier_names)
    session.faults += _topology_faults(job)
    _make_topology_hard(job, tree.top.tier)
    if tree.ready:
        _clear_stale_hypernodes(job, session)
        _recover_hypernodes(job, session)


def _topology_faults(job: Job) -> list[str]:
    """Wishes of a job that cannot be read, and so limit nothing; each once."""
    found: dict[str, None] = {}
    for wish in (job.network_topology, *(sub.network_topology for sub in job.sub_jobs.values())):
        fault = wish.validation_error() if wish is not None else ""
        if fault:
            found[f"pod group {job.uid}: networkTopology.{fault}; it limits nothing"] = None
    return list(found)


def _make_topology_hard(job: Job, top: int) -> None:
    """Soft wishes become hard ones that can always be met."""
    bound = top
    if job.network_topology is not None:
        job.network_topology.make_hard(top)
        if job.network_topology.highest_tier_allowed is not None:
            bound = job.network_topology.highest_tier_allowed
    for sub in job.sub_jobs.values():
        if sub.network_topology is not None:
            sub.network_topology.make_hard(bound)


def _clear_stale_hypernodes(job: Job, session: Session) -> None:
    """What a job was allocated to is void when it is gone, or when the job has nothing there any more."""
    tree = session.hyper_nodes
    if job.allocated_hyper_node and (job.allocated_hyper_node not in tree or not job.allocated_task_num):
        job.allocated_hyper_node = ""
        session.mark_job_dirty(job)
    for sub in job.sub_jobs.values():
        if sub.allocated_hyper_node and (sub.allocated_hyper_node not in tree or not sub.allocated_task_num):
            sub.allocated_hyper_node = ""
            session.mark_job_dirty(job)


def _recover_hypernodes(job: Job, session: Session) -> None:
    """Find out from the nodes of its tasks where a job is, when nobody remembers."""
    tree = session.hyper_nodes
    updated = False
    for sub in job.sub_jobs.values():
        if sub.network_topology is None or sub.allocated_hyper_node:
            continue
        found = _lowest_hypernode_of(sub, tree)
        if found:
            sub.allocated_hyper_node, updated = found, True
            session.mark_job_dirty(job)
    if job.allocated_hyper_node and not updated:
        return
    common = ""
    for sub in job.sub_jobs.values():
        if sub.allocated_hyper_node:
            common = tree.lowest_common(common, sub.allocated_hyper_node)
            if not common:
                break
    if job.allocated_hyper_node != common:
        job.allocated_hyper_node = common
        session.mark_job_dirty(job)


def _lowest_hypernode_of(sub: SubJob, tree: HyperNodeTree) -> str:
    """The hypernode of the lowest tier that holds all nodes of the tasks that have one."""
    nodes = {task.node_name for task in sub.with_status(*HOLDING) if task.node_name}
    if not nodes:
        return ""
    holding = [place for place in tree.values() if nodes <= place.nodes]
    return min(holding, key=lambda place: place.tier).name if holding else ""
