"""API objects for a trace: nodes and pods, built once for each shape.

A trace has thousands of pods and some hundred shapes. What an engine derives from a pod's spec depends on the shape
only, so pods of one shape share it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from bayplan.cache import Cache
from bayplan.objects.core import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from bayplan.objects.meta import ObjectMeta, ResourceList
from bayplan.plugins.gpu.gpu_requests import GPU_COUNT, GPU_MODEL, request_annotations
from bayplan.sim.traces.trace_files import TraceNode, TracePod
from bayplan.snapshot import PodInfo

NAMESPACE = "default"
_PODS_PER_NODE = 1_000_000
"""Traces have no limit of pods per node."""

_MAX_SHAPES = 4096

_HOSTNAME = "kubernetes.io/hostname"


def node_object(node: TraceNode) -> Node:
    labels = {_HOSTNAME: node.name} | ({GPU_MODEL: node.model} if node.model else {})
    allocatable: ResourceList = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": _PODS_PER_NODE}
    if node.gpus:
        allocatable[GPU_COUNT] = node.gpus
    return Node(
        metadata=ObjectMeta(name=node.name, uid=f"node-{node.name}", labels=labels),
        status=NodeStatus(allocatable=dict(allocatable), capacity=dict(allocatable)),
    )


def build_node_cache(nodes: Iterable[TraceNode]) -> Cache:
    """A cache with these nodes; rows are in the given order."""
    cache = Cache()
    for node in nodes:
        cache.add_node(node_object(node))
    return cache


class PodFactory:
    """Builds pods; those of one shape share their spec, annotations and everything that `prepare` derives from them."""

    def __init__(self, prepare: Callable[[Pod], PodInfo], scheduler_name: str = "") -> None:
        self._prepare = prepare
        self._scheduler_name = scheduler_name
        self._shapes: OrderedDict[tuple[object, ...], PodInfo] = OrderedDict()

    def make(self, pod: TracePod, uid: str) -> PodInfo:
        shape = (pod.cpu_milli, pod.memory_mib, pod.gpu_request, pod.priority, pod.tenant)
        prepared = self._shapes.get(shape)
        if prepared is None:
            prepared = self._shapes[shape] = self._prepare(pod_template(pod, self._scheduler_name))
            if len(self._shapes) > _MAX_SHAPES:
                self._shapes.popitem(last=False)
        metadata = replace(prepared.pod.metadata, name=uid, uid=uid)
        return prepared.with_new_identity(replace(prepared.pod, metadata=metadata))


def pod_template(pod: TracePod, scheduler_name: str = "") -> Pod:
    """A pod without a name that has the requests of a trace pod. Tenants are namespaces."""
    requests: ResourceList = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    return Pod(
        metadata=ObjectMeta(namespace=pod.tenant or NAMESPACE, annotations=request_annotations(pod.gpu_request)),
        spec=PodSpec(containers=(container,), priority=pod.priority or None, scheduler_name=scheduler_name),
        status=PodStatus(phase="Pending"),
    )
