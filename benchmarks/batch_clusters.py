"""Builders for the queues, pod groups and gangs of the batch benchmarks, as an API server returns them.

Called while a workload is set up, never inside a measurement. Nodes and pods are those of the pod engine's benchmarks;
the pods also have the fields that Volcano's job controller writes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from bayplan.app import batch_configured, build_batch_engine
from bayplan.batch.engine import BatchEngine
from bayplan.cache import Cache
from bayplan.clock import SystemClock
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert
from bayplan.objects.meta import ObjectMeta, ResourceList
from bayplan.objects.volcano.types import (
    ExactMatch,
    HyperNode,
    HyperNodeSpec,
    MemberSelector,
    MemberSpec,
    NetworkTopology,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    Queue,
    QueueSpec,
    QueueStatus,
)
from benchmarks import clusters
from benchmarks.clusters import NAMESPACE, Manifest

GANG = 20
"""Tasks of a gang, in workloads with many gangs."""
_FAN_OUT = 10


def queue(name: str) -> Queue:
    return Queue(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=QueueSpec(weight=1), status=QueueStatus("Open")
    )


def hyper_nodes(nodes: int) -> Iterator[HyperNode]:
    """Hypernodes of ten nodes each, and of ten hypernodes each."""
    leaves = -(-nodes // _FAN_OUT)
    for tier, kind, count, members, name in (
        (1, "Node", leaves, nodes, clusters.node_name),
        (2, "HyperNode", -(-leaves // _FAN_OUT), leaves, lambda number: f"switch-1-{number}"),
    ):
        for number in range(count):
            below = range(number * _FAN_OUT, min((number + 1) * _FAN_OUT, members))
            listed = tuple(MemberSpec(kind, MemberSelector(exact_match=ExactMatch(name(each)))) for each in below)
            yield HyperNode(
                metadata=ObjectMeta(name=f"switch-{tier}-{number}", uid=f"uid-switch-{tier}-{number}"),
                spec=HyperNodeSpec(tier, "", listed),
            )


def group(
    name: str,
    size: int,
    *,
    queue: str,
    phase: str = "Pending",
    priority_class: str = "",
    cpu_m: int = 1000,
    tier: int | None = None,
) -> PodGroup:
    """A gang of `size` tasks; a running one may shrink to a single task."""
    running = phase == "Running"
    amounts: ResourceList = {"cpu": f"{size * cpu_m}m", "memory": f"{size * 2}Gi"}
    spec = PodGroupSpec(
        min_member=1 if running else size,
        queue=queue,
        min_resources=None if running else amounts,
        priority_class_name=priority_class,
        network_topology=None if tier is None else NetworkTopology("hard", tier),
    )
    meta = ObjectMeta(name=name, namespace=NAMESPACE, uid=f"uid-{name}")
    return PodGroup(metadata=meta, spec=spec, status=PodGroupStatus(phase=phase))


def member(gang: str, index: int, *, cpu_m: int = 1000, priority: int = 0) -> Manifest:
    """The index-th task of a gang, pending."""
    found = clusters.pod(
        f"{gang}-worker-{index}",
        labels={"volcano.sh/job-name": gang, "volcano.sh/task-index": str(index)},
        schedulerName="volcano",
        priority=priority,
        containers=[clusters.container(f"{cpu_m}m", "2Gi")],
    )
    found["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": gang, "volcano.sh/task-spec": "worker"}
    return found


def gang_pods(gang: str, size: int, *, cpu_m: int = 1000, priority: int = 0) -> Iterator[Pod]:
    return clusters.as_pods(member(gang, index, cpu_m=cpu_m, priority=priority) for index in range(size))


def running_pod(gang: str, index: int, node: int, *, cpu_m: int = 1000) -> Pod:
    return convert(clusters.running(member(gang, index, cpu_m=cpu_m), node), Pod)


def engine_on(nodes: Iterable[Manifest], queues: Iterable[str], conf: str | None = None) -> BatchEngine:
    """A batch engine with the default or the given configuration, on a cluster with only its own pods."""
    cache = Cache()
    names = 0
    for manifest in nodes:
        cache.add_node(convert(manifest, Node))
        names += 1
    for pod in clusters.as_pods(clusters.daemons(names)):
        cache.add_pod(pod)
    for name in queues:
        cache.upsert(queue(name))
    return build_batch_engine(batch_configured(conf), cache, clock=SystemClock(), chance=random.Random(0))


def show(engine: BatchEngine, pod: Pod) -> None:
    """Deliver the add event of a pod."""
    if pod.spec.node_name:
        engine.cache.add_pod(pod)
    engine.handle_update(pod)
