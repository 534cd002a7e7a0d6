"""A recorded cluster as a trace: its nodes, and its pods in the order in which they were created.

What a recording does not know is how long pods run, so they run for ever; what it knows of affinity, volumes and the
like plays no part in a trace (`bayplan whatif` looks at all of it).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from bayplan.objects.core import Node, Pod
from bayplan.objects.resources import CPU, MEMORY, accounted_requests, allocatable_amounts
from bayplan.plugins.gpu.asks import WHOLE, GpuAsk, device_count, device_model, readable_ask
from bayplan.sim.recording import read_recording
from bayplan.sim.tables import TraceError
from bayplan.sim.traces import MOST_DEVICES, TraceNode, TracePod

_MEBIBYTE = 1 << 20
_WHOLE_GPUS = "nvidia.com/gpu"
_OVER = ("Succeeded", "Failed")


def read_recorded(path: Path) -> tuple[list[TraceNode], list[TracePod]]:
    """The nodes and the pods of a recording. Times are seconds since the first pod was created."""
    objects = read_recording(path).objects
    nodes = [_node(item) for item in objects if isinstance(item, Node)]
    if not nodes:
        raise TraceError(path, "at least one node; there is none")
    pods = [item for item in objects if isinstance(item, Pod) and item.status.phase not in _OVER]
    if not pods:
        raise TraceError(path, "at least one pod; there is none")
    known = [pod.metadata.creation_timestamp for pod in pods if pod.metadata.creation_timestamp is not None]
    start = min(known, default=None)
    found = [_pod(pod, start) for pod in pods]
    return nodes, sorted(found, key=lambda pod: (pod.arrives_s, pod.name))


def _node(node: Node) -> TraceNode:
    amounts = allocatable_amounts(node.status.allocatable)
    gpus = device_count(node) or min(amounts.get(_WHOLE_GPUS, 0), MOST_DEVICES)
    return TraceNode(node.name, amounts.get(CPU, 0), amounts.get(MEMORY, 0) // _MEBIBYTE, gpus, device_model(node))


def _pod(pod: Pod, start: datetime | None) -> TracePod:
    requests = accounted_requests(pod)
    whole = requests.get(_WHOLE_GPUS, 0)
    ask = readable_ask(pod) if not whole else GpuAsk(WHOLE, min(whole, MOST_DEVICES))
    created = pod.metadata.creation_timestamp
    arrives_s = (created - start).total_seconds() if created is not None and start is not None else 0.0
    memory = -(-requests.get(MEMORY, 0) // _MEBIBYTE)
    return TracePod(pod.key, requests.get(CPU, 0), memory, ask, arrives_s, None, pod.priority, pod.metadata.namespace)
