"""Opening of a session: refreshes the cluster state, copies accounts, prepares network topologies.

Cost: in proportion to the changes since the last session, plus a copy of the account columns and a few steps per job.
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
    cluster_state: BatchClusterState,
    configuration: BatchConfiguration,
    handle: BatchHandle,
    committer: SessionCommitter,
    *,
    uid: str,
) -> Generator[None, None, Session]:
    """A session on the current state of the cluster, before plugins register."""
    yield from cluster_state.refresh_steps()
    nodes = Nodes(cluster_state.snapshot, cluster_state.node_accounts.copy(), usage=handle.usage)
    _count_nominated_pods(cluster_state, nodes)
    queues = cluster_state.queues
    jobs = {uid: job for uid, job in cluster_state.jobs.items() if job.has_group and job.queue in queues}
    hypernodes = {name: _copy_hypernode(hypernode) for name, hypernode in cluster_state.hypernodes.items()}
    hyper_nodes = HyperNodeTree(hypernodes, nodes, ready=not cluster_state.topology_faults)
    session = Session(
        uid=uid,
        tiers=configuration.tiers,
        actions=configuration.actions,
        arguments={each.name: configuration.action_arguments(each.name) for each in configuration.configurations},
        jobs=jobs,
        queues=dict(cluster_state.queues),
        nodes=nodes,
        hyper_nodes=hyper_nodes,
        catalog=cluster_state.cache.catalog,
        committer=committer,
        clock=handle.clock,
        chance=handle.random,
        snapshot_changes=SnapshotChanges(cluster_state.snapshot),
        templates=cluster_state.templates,
        quirk_fixes=handle.quirk_fixes,
        node_sampling=handle.node_sampling,
        shard_filter=ShardFilter.for_nodes(nodes, handle.shard, cluster_state.manages),
        preferred_nodes=handle.preferred_nodes,
        last_choices=handle.last_choices,
        bind_request_factory=handle.bind_request_factory,
        queue_admission=handle.queue_admission,
        records=handle.decision_records,
    )
    session.previous_faults = handle.previous_faults
    session.faults += _unschedulable_objects(cluster_state, len(jobs))
    session.faults += cluster_state.topology_faults
    for job in jobs.values():
        job.reset_for_session()
        if job.has_topology_specs:
            _prepare_topology(job, session)
        for task in job.pending.values():
            session.waiting_templates.setdefault(cluster_state.templates.template_number(task), task)
        yield
    return session


def _count_nominated_pods(cluster_state: BatchClusterState, nodes: Nodes) -> None:
    """Count resources that another engine released for its nominated pods as pipelined, whatever is idle."""
    for name, info in cluster_state.nominated_pods:
        node = nodes.get(name)
        if node is not None and cluster_state.task(info.uid) is None:
            nodes.accounts.add_pipelined(node.row, pod_amounts(info.pod))


def _unschedulable_objects(cluster_state: BatchClusterState, counted: int) -> Iterator[str]:
    """Errors of objects: jobs without a queue or a pod group, queue cycles, invalid amounts and hypernodes."""
    for job in cluster_state.jobs.values() if counted < len(cluster_state.jobs) else ():
        if not job.has_group:
            waiting = len(job.pending)
            if not waiting:
                continue  # finished pods can outlive their group
            yield f"{waiting} pod(s) name the pod group {job.uid}, which does not exist; they wait until it is created"
        elif job.queue not in cluster_state.queues:
            yield f'pod group {job.uid} is in queue "{job.queue}", which does not exist; create it or use another queue'
    yield from cluster_state.queue_faults
    yield from cluster_state.hypernode_faults
    yield from cluster_state.missing_members
    for faults in cluster_state.group_faults.values():
        yield from faults


def _copy_hypernode(hypernode: HyperNode) -> HyperNode:
    return replace(hypernode, children=set(hypernode.children), nodes=set(hypernode.nodes))


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
    """Invalid network topologies of a job, which have no effect; each once."""
    found: dict[str, None] = {}
    for topology in (job.network_topology, *(sub.network_topology for sub in job.sub_jobs.values())):
        fault = topology.validation_error() if topology is not None else ""
        if fault:
            found[f"pod group {job.uid}: networkTopology.{fault}; it has no effect"] = None
    return list(found)


def _make_topology_hard(job: Job, top: int) -> None:
    """Turn soft topologies into hard ones that can always be satisfied."""
    limit = top
    if job.network_topology is not None:
        job.network_topology.make_hard(top)
        if job.network_topology.highest_tier_allowed is not None:
            limit = job.network_topology.highest_tier_allowed
    for sub in job.sub_jobs.values():
        if sub.network_topology is not None:
            sub.network_topology.make_hard(limit)


def _clear_stale_hypernodes(job: Job, session: Session) -> None:
    """Clear the hypernode of a job if it no longer exists or the job has no allocated task."""
    tree = session.hyper_nodes
    if job.allocated_hyper_node and (job.allocated_hyper_node not in tree or not job.allocated_task_num):
        job.allocated_hyper_node = ""
        session.mark_job_dirty(job)
    for sub in job.sub_jobs.values():
        if sub.allocated_hyper_node and (sub.allocated_hyper_node not in tree or not sub.allocated_task_num):
            sub.allocated_hyper_node = ""
            session.mark_job_dirty(job)


def _recover_hypernodes(job: Job, session: Session) -> None:
    """Derive missing hypernodes of a job from the nodes of its tasks."""
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
    """The hypernode of the lowest tier that contains all nodes of the placed tasks."""
    nodes = {task.node_name for task in sub.with_status(*HOLDING) if task.node_name}
    if not nodes:
        return ""
    containing = [hypernode for hypernode in tree.values() if nodes <= hypernode.nodes]
    return min(containing, key=lambda hypernode: hypernode.tier).name if containing else ""
