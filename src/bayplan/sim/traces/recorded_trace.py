"""A recorded cluster as a trace: its nodes, and its pods in order of creation.

The duration of a pod is known only if it ended while the cluster was followed; other pods run forever. A trace ignores
affinity, volumes and similar fields of a recording (`bayplan whatif` uses all of them).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from bayplan.objects.core import Node, Pod
from bayplan.objects.resources import CPU, MEMORY, accounted_requests, allocatable_amounts
from bayplan.plugins.gpu.gpu_requests import (
    DEVICE_MILLI,
    GpuMilliRequest,
    device_count,
    device_model,
    gpu_request_or_none,
)
from bayplan.sim.recordings.recording_file import RecordedChange, Recording, read_recording
from bayplan.sim.traces.csv_table import TraceError
from bayplan.sim.traces.trace_files import MAX_DEVICES, TraceNode, TracePod

_MEBIBYTE = 1 << 20
_WHOLE_GPUS = "nvidia.com/gpu"
_ENDED_PHASES = ("Succeeded", "Failed")


def read_recorded_trace(path: Path) -> tuple[list[TraceNode], list[TracePod]]:
    """Read the nodes and pods of a recording. Times are in seconds since the creation of the first pod."""
    recording = read_recording(path)
    items = [*recording.objects, *(change.item for change in recording.changes if not change.deleted)]
    nodes = {item.name: _node(item) for item in items if isinstance(item, Node)}
    if not nodes:
        raise TraceError(path, "expected at least one node; there is none")
    pods = {item.uid or item.key: item for item in items if isinstance(item, Pod)}
    ends = _run_times(recording)
    pods = {uid: pod for uid, pod in pods.items() if uid in ends or pod.status.phase not in _ENDED_PHASES}
    if not pods:
        raise TraceError(path, "expected at least one pod; there is none")
    start = min((created for pod in pods.values() if (created := pod.metadata.creation_timestamp)), default=None)
    found = [_pod(pod, start, ends.get(uid)) for uid, pod in pods.items()]
    return list(nodes.values()), sorted(found, key=lambda pod: (pod.arrival_s, pod.name))


def _run_times(recording: Recording) -> dict[str, float]:
    """Seconds that pods ran, by uid, if their start and end were recorded."""
    uids = {item.key: item.uid for item in recording.objects if isinstance(item, Pod)}
    started: dict[str, datetime] = {}
    run_times_s: dict[str, float] = {}
    for step in recording.decisions_and_changes():
        if not isinstance(step, RecordedChange):
            if step.node and step.at is not None and step.pod in uids:
                started[uids[step.pod]] = step.at
        elif isinstance(step.item, Pod) and step.at is not None:
            uids[step.item.key] = uid = step.item.uid
            if (step.deleted or step.item.status.phase in _ENDED_PHASES) and uid in started:
                run_times_s[uid] = (step.at - started.pop(uid)).total_seconds()
    return run_times_s


def _node(node: Node) -> TraceNode:
    amounts = allocatable_amounts(node.status.allocatable)
    gpus = device_count(node) or min(amounts.get(_WHOLE_GPUS, 0), MAX_DEVICES)
    return TraceNode(node.name, amounts.get(CPU, 0), amounts.get(MEMORY, 0) // _MEBIBYTE, gpus, device_model(node))


def _pod(pod: Pod, start: datetime | None, runs_s: float | None) -> TracePod:
    requests = accounted_requests(pod)
    whole = requests.get(_WHOLE_GPUS, 0)
    gpus = gpu_request_or_none(pod) if not whole else GpuMilliRequest(DEVICE_MILLI, min(whole, MAX_DEVICES))
    created = pod.metadata.creation_timestamp
    arrives_s = (created - start).total_seconds() if created is not None and start is not None else 0.0
    memory = -(-requests.get(MEMORY, 0) // _MEBIBYTE)
    return TracePod(
        pod.key, requests.get(CPU, 0), memory, gpus, arrives_s, runs_s, pod.priority, pod.metadata.namespace
    )
