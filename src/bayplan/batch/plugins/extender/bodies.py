"""Request and response bodies of the batch HTTP extender.

Keys are the names of Volcano's Go structs, so that services written for Volcano can read the bodies. Amounts are
`{MilliCPU, Memory, ScalarResources, MaxTaskNum}`. Task statuses are powers of two from 1 (Pending) to 512 (Unknown).
API objects have their API form. Keys of answers are case-insensitive, as in Go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.objects.core import ResourceQuota

Body = dict[str, Any]

_NODE_READY = 1


class PredicateAnswer(msgspec.Struct, frozen=True):
    """`status` is the reason why the task may not use the node; empty if it may."""

    status: str = ""
    code: int = 0


class PrioritizeAnswer(msgspec.Struct, frozen=True):
    nodescore: dict[str, float] | None = None
    errormessage: str = ""


class EvictableAnswer(msgspec.Struct, frozen=True):
    """`status` is a vote, 0 to abstain. `victims` are tasks, of which only the UID is read."""

    status: int = 0
    victims: tuple[dict[str, Any], ...] = ()

    def uids(self) -> list[str]:
        return [str(value) for victim in self.victims for key, value in victim.items() if key.lower() == "uid"]


class VoteAnswer(msgspec.Struct, frozen=True):
    status: int = 0


class OverusedAnswer(msgspec.Struct, frozen=True):
    overused: bool = False


class ReadyAnswer(msgspec.Struct, frozen=True):
    status: bool = False


class EventAnswer(msgspec.Struct, frozen=True):
    errormessage: str = ""


def lowercase_keys(answer: Any) -> Any:
    """Return the answer with the keys of its outermost object in lower case; null becomes an empty object."""
    if answer is None:
        return {}
    if not isinstance(answer, dict):
        return answer
    return {key.lower(): value for key, value in answer.items() if value is not None}


def session_body(session: Session) -> Body:
    """Body of `onSessionOpen`: the jobs, nodes, queues and namespaces of the session."""
    nodes = {node.name: node_body(node) for node in session.nodes}
    return {
        "Jobs": {uid: job_body(job) for uid, job in session.jobs.items()},
        "Nodes": nodes,
        "Queues": {name: queue_body(queue) for name, queue in session.queues.items()},
        "NamespaceInfo": _namespaces(session.catalog.table(ResourceQuota).values()),
        "RevocableNodes": {node.name: nodes[node.name] for node in session.nodes if node.revocable_zone},
        "NodeList": None,
    }


def task_body(task: Task) -> Body:
    return {
        "UID": task.uid,
        "Job": task.job,
        "Name": task.name,
        "Namespace": task.namespace,
        "TaskRole": task.role,
        "Resreq": amounts_body(task.resreq),
        "InitResreq": amounts_body(task.init_resreq),
        "NodeName": task.node_name,
        "EvictionOccurred": task.eviction_occurred,
        "JobAllocatedHyperNode": task.job_allocated_hyper_node,
        "Status": _status(task.status),
        "Priority": task.priority,
        "Preemptable": task.preemptable,
        "BestEffort": task.best_effort,
        "HasRestartableInitContainer": task.has_sidecar,
        "SchGated": task.gated,
        "RevocableZone": task.revocable_zone,
        "Pod": task.pod,
    }


def job_body(job: Job) -> Body:
    tasks = {uid: task_body(task) for uid, task in job.tasks.items()}
    index: dict[str, Body] = {}
    for uid, task in job.tasks.items():
        index.setdefault(str(_status(task.status)), {})[uid] = tasks[uid]
    return {
        "UID": job.uid,
        "PgUID": job.pod_group.metadata.uid,
        "Name": job.name,
        "Namespace": job.namespace,
        "Queue": job.queue,
        "Priority": job.priority,
        "MinAvailable": job.min_available,
        "WaitingTime": None if job.waiting_time_s is None else round(job.waiting_time_s * 1e9),
        "JobFitErrors": job.fit_error,
        "AllocatedHyperNode": job.allocated_hyper_node,
        "TaskStatusIndex": index,
        "Tasks": tasks,
        "TaskMinAvailable": dict(job.task_min_available),
        "TaskMinAvailableTotal": job.task_min_available_total,
        "Allocated": amounts_body(job.allocated),
        "TotalRequest": amounts_body(job.total_request),
        "CreationTimestamp": job.pod_group.metadata.creation_timestamp,
        "PodGroup": job.pod_group,
        "Preemptable": job.preemptable,
        "RevocableZone": job.revocable_zone,
        "Budget": {"MinAvailable": job.budget_min_available, "MaxUnavailable": job.budget_max_unavailable},
    }


def node_body(node: Node) -> Body:
    usage = node.usage
    return {
        "Name": node.name,
        "Node": node.node,
        "State": {"Phase": _NODE_READY, "Reason": ""},
        "Releasing": amounts_body(node.releasing),
        "Pipelined": amounts_body(node.pipelined),
        "Idle": amounts_body(node.idle),
        "Used": amounts_body(node.used),
        "Allocatable": amounts_body(node.allocatable),
        "Capacity": amounts_body(node.capacity),
        "ResourceUsage": {"CPUUsageAvg": usage.cpu, "MEMUsageAvg": usage.memory} if usage is not None else None,
        "Tasks": {uid: task_body(task) for uid, task in node.tasks.items()},
        "RevocableZone": node.revocable_zone,
    }


def queue_body(queue: Queue) -> Body:
    return {
        "UID": queue.uid,
        "Name": queue.name,
        "Weight": queue.weight,
        "Weights": queue.hierarchy_weights,
        "Hierarchy": queue.hierarchy,
        "Queue": queue.queue,
    }


def amounts_body(amounts: Amounts) -> Body:
    return {
        "MilliCPU": amounts.milli_cpu,
        "Memory": amounts.memory,
        "ScalarResources": amounts.scalars,
        "MaxTaskNum": amounts.max_task_num,
    }


def _namespaces(quotas: Iterable[ResourceQuota]) -> Body:
    found: Body = {}
    for quota in quotas:
        name = quota.metadata.namespace
        namespace = found.setdefault(name, {"Name": name, "QuotaStatus": {}})
        namespace["QuotaStatus"][quota.metadata.name] = quota.status
    return found


def _status(status: TaskStatus) -> int:
    return 1 << status
