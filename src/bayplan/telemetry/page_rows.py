"""Rows of the web page: one short tuple for each node, pod, pod group or queue, built from the object.

The server calls it for every object when a browser opens the page, and for every change while the page is open. A row
is a tuple, because fifty thousand of them go over the wire; `FIELDS` names its columns, for the page and for programs.
Cost: some five microseconds a pod.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.codec.quantity import parse_quantity
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resources import accounted_requests, allocatable_amounts, amount_of
from bayplan.objects.volcano.constants import GROUP_NAME
from bayplan.objects.volcano.types import PodGroup, Queue

NODES, PODS, GROUPS, QUEUES = "nodes", "pods", "groups", "queues"
TABLES = (QUEUES, GROUPS, NODES, PODS)
"""In the order in which they are sent: a pod comes after the objects that it refers to."""

FIELDS = {
    NODES: ("name", "zone", "state", "offers"),
    PODS: ("key", "node", "owner", "priority", "group", "state", "asks", "created", "reason", "message", "nominated"),
    GROUPS: ("key", "queue", "members", "phase"),
    QUEUES: ("name", "parent", "weight", "state", "capability", "deserved", "allocated"),
}
"""The column names of a row."""

Row = tuple[Any, ...]

READY, NOT_READY, CORDONED = "ready", "not ready", "cordoned"
PLACED, WAITING, GATED, TERMINATING = "placed", "waiting", "gated", "leaving"

_ZONE = "topology.kubernetes.io/zone"
_HASH = "pod-template-hash"
_TERMINAL_PHASES = ("Succeeded", "Failed")
_MAX_MESSAGE_LENGTH = 600


def table_of(item: KubeObject) -> str:
    """The table of an object; empty for kinds that the page does not show."""
    return _TABLES.get(type(item), "")


def row_of(item: KubeObject) -> Row | None:
    """The row of an object; None for a pod that has ended."""
    match item:
        case Pod():
            return _pod(item)
        case Node():
            return _node(item)
        case PodGroup():
            return item.key, item.spec.queue or "default", item.spec.min_member, item.status.phase
        case Queue():
            return _queue(item)
    return None


def _node(node: Node) -> Row:
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    state = CORDONED if node.spec.unschedulable else READY if ready else NOT_READY
    return node.name, node.metadata.labels.get(_ZONE, ""), state, allocatable_amounts(node.status.allocatable)


def _pod(pod: Pod) -> Row | None:
    if pod.status.phase in _TERMINAL_PHASES:
        return None
    annotated = pod.metadata.annotations.get(GROUP_NAME, "")
    head = (
        pod.key,
        pod.spec.node_name,
        _owner(pod),
        pod.priority,
        f"{pod.namespace}/{annotated}" if annotated else "",
        _state(pod),
        accounted_requests(pod),
        _seconds(pod.metadata.creation_timestamp),
    )
    if pod.spec.node_name:
        return head
    reason, message = unschedulable_message(pod)
    return *head, reason, message[:_MAX_MESSAGE_LENGTH], pod.status.nominated_node_name


def _state(pod: Pod) -> str:
    if pod.terminating:
        return TERMINATING
    if pod.spec.node_name:
        return PLACED
    return GATED if pod.spec.scheduling_gates else WAITING


def unschedulable_message(pod: Pod) -> tuple[str, str]:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason, condition.message
    return "", ""


def _owner(pod: Pod) -> str:
    """The controller of the pod: the Deployment, and not the ReplicaSet of one of its versions."""
    owner = pod.metadata.controller
    if owner is None:
        return ""
    version = pod.metadata.labels.get(_HASH, "")
    if owner.kind == "ReplicaSet" and version and owner.name.endswith(f"-{version}"):
        return f"Deployment {pod.namespace}/{owner.name.removesuffix(f'-{version}')}"
    return f"{owner.kind} {pod.namespace}/{owner.name}"


def _queue(queue: Queue) -> Row:
    spec, status = queue.spec, queue.status
    amounts = (_amounts(each) for each in (spec.capability, spec.deserved, status.allocated))
    return queue.name, spec.parent, spec.weight, status.state, *amounts


def _amounts(resources: dict[str, Any]) -> dict[str, int]:
    return {name: amount_of(name, parse_quantity(text)) for name, text in resources.items()}


def _seconds(moment: datetime | None) -> int:
    return int(moment.timestamp()) if moment is not None else 0


_TABLES: dict[type[KubeObject], str] = {Node: NODES, Pod: PODS, PodGroup: GROUPS, Queue: QUEUES}
