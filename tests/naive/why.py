"""Naive twin of the "why" search: tries every combination of changes of every kind, one by one.

Slow and simple. Pods are really removed and objects really added: another cluster is built for each combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, product
from typing import TypeVar

from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.pod_relaxations import (
    EVICTION,
    GATE,
    HOST_PORT,
    MISSING,
    REQUESTS,
    SELECTOR,
    SPREAD,
    TOLERATION,
    SuggestedChange,
    apply_change,
    node_term_paths,
    pod_term_paths,
    port_text,
    spread_term_paths,
    taint_text,
)
from bayplan.objects.ports import host_ports
from bayplan.objects.resources import filter_requests
from bayplan.objects.storage import ClaimReference
from bayplan.objects.taints import UNSCHEDULABLE
from bayplan.testing import Harness, make_pv, make_pvc
from bayplan.testing.strategies import RandomCluster

T = TypeVar("T")


Fitting = Callable[[RandomCluster, Pod], list[str]]


def fitting(cluster: RandomCluster, pod: Pod) -> list[str]:
    """The nodes on which the pod is feasible, if PreEnqueue accepts it."""
    with _harness(cluster) as harness:
        return _fitting(harness, pod)


def _harness(cluster: RandomCluster) -> Harness:
    return Harness(nodes=cluster.nodes, pods=cluster.pods, objects=cluster.objects)


def _fitting(harness: Harness, pod: Pod) -> list[str]:
    if not harness.pre_enqueue(pod).ok:
        return []
    return [name for name, answer in harness.filter(pod).items() if answer == "ok"]


def made(cluster: RandomCluster, pod: Pod, change: SuggestedChange) -> tuple[RandomCluster, Pod]:
    """Cluster and pod with the change applied."""
    if change.kind == EVICTION:
        left = tuple(each for each in cluster.pods if each.key not in change.evict)
        return RandomCluster(cluster.nodes, left, cluster.objects), pod
    if change.kind == MISSING:
        return RandomCluster(cluster.nodes, cluster.pods, (*cluster.objects, *_created(change, pod))), pod
    return cluster, apply_change(pod, change)


def _created(change: SuggestedChange, pod: Pod) -> Iterator[KubeObject]:
    for place in change.drop:
        kind, _, name = place.partition("/")
        assert kind == "PersistentVolumeClaim", place
        claim = make_pvc(name, namespace=pod.namespace, volume=f"pv-{name}")
        yield claim
        yield make_pv(
            f"pv-{name}",
            claim=ClaimReference(namespace=pod.namespace, name=name, uid=claim.metadata.uid),
            phase="Bound",
        )


def enough_for(asked: Fitting, cluster: RandomCluster, pod: Pod) -> set[str]:
    """The kinds of which one change suffices, with `asked` as the test of feasibility."""
    found: set[str] = set()
    for change in all_changes(cluster, pod):
        if change.kind not in found:
            nodes = asked(*made(cluster, pod, change))
            if change.node in nodes if change.node else nodes:
                found.add(change.kind)
    return found


def enough(cluster: RandomCluster, pod: Pod) -> set[str]:
    """The kinds of which one change suffices."""
    found: set[str] = set()
    with _harness(cluster) as same:
        for change in all_changes(cluster, pod):
            if change.kind in found:
                continue
            after, changed = made(cluster, pod, change)
            nodes = _fitting(same, changed) if after is cluster else fitting(after, changed)
            if change.node in nodes if change.node else nodes:
                found.add(change.kind)
    return found


def all_changes(cluster: RandomCluster, pod: Pod) -> Iterator[SuggestedChange]:
    """All possible suggestions.

    Victims are on one node, and the pod is to go to that node; the capacity of other nodes does not matter.
    """
    taints = _taints(cluster.nodes)
    for kind, parts in (
        (GATE, [gate.name for gate in pod.spec.scheduling_gates]),
        (HOST_PORT, [port_text(port) for port in host_ports(pod)]),
        (SPREAD, spread_term_paths(pod)),
        (SELECTOR, [*node_term_paths(pod), *pod_term_paths(pod)]),
        (MISSING, _missing(cluster, pod)),
    ):
        yield from (SuggestedChange(kind=kind, drop=some) for some in _some(parts))
    yield from (SuggestedChange(kind=TOLERATION, tolerate=some) for some in _some(taints))
    yield from (SuggestedChange(kind=REQUESTS, less=less) for less in _lower(cluster, pod))
    for node in cluster.nodes:
        weaker = [p.key for p in cluster.pods if p.spec.node_name == node.name and p.priority < pod.priority]
        yield from (SuggestedChange(kind=EVICTION, evict=some, node=node.name) for some in _some(weaker))


def _taints(nodes: Iterable[Node]) -> list[str]:
    cordons = [UNSCHEDULABLE] if any(node.spec.unschedulable for node in nodes) else []
    found = chain(cordons, *(node.spec.taints for node in nodes))
    return list(dict.fromkeys(taint_text(taint) for taint in found if taint.effect != "PreferNoSchedule"))


def _missing(cluster: RandomCluster, pod: Pod) -> list[str]:
    known = {item.metadata.name for item in cluster.objects}
    named = [each.persistent_volume_claim.claim_name for each in pod.spec.volumes if each.persistent_volume_claim]
    return [f"PersistentVolumeClaim/{name}" for name in named if name not in known]


def _lower(cluster: RandomCluster, pod: Pod) -> Iterator[dict[str, int]]:
    """Every request lowered to zero, to the free capacity of some node, or not at all."""
    asked = filter_requests(pod)
    with _harness(cluster) as harness:
        free = {name: {max(0, view.free(name)) for view in harness.engine.snapshot().table} for name in asked}
    levels = [sorted({0, amount, *(each for each in free[name] if each < amount)}) for name, amount in asked.items()]
    for chosen in product(*levels):
        less = {
            name: amount - left for (name, amount), left in zip(asked.items(), chosen, strict=True) if left < amount
        }
        if less:
            yield less


def _some(parts: Sequence[T]) -> Iterator[tuple[T, ...]]:
    for size in range(1, len(parts) + 1):
        yield from combinations(parts, size)
