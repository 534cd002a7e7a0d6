"""Is what the scheduler believes what the API server says?

Asked by a person (SIGUSR2, as with kube-scheduler) or a test, of a process that runs. What the informers know is read
into a cache made anew, as a fresh start would, and held against the one in use. Cost: that of a fresh start; the loop
is held meanwhile, so nobody asks without a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.cache import Cache
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.live.run_loop import LiveScheduler

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A node as a cache has it: the pods on it, and what they ask for together."""

    pods: frozenset[str]
    requested: Amounts


@dataclass(slots=True)
class CacheComparison:
    """What the cache and the queue have, and what is wrong with it; nothing is, where `differences` is empty.

    Pods that are `assumed` are on their way to a node; the API server need not show them there yet.
    """

    nodes: dict[str, CachedNode]
    assumed: list[str]
    queued: dict[str, str]  # by pod where it waits
    nominated: dict[str, str]  # by pod the node that is kept for it
    differences: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """For a log; the last line is all of it as JSON."""
        for name, node in sorted(self.nodes.items()):
            yield f"cache: node {name}: {len(node.pods)} pods, requested {dict(node.requested)}"
        for pool in SubQueue:
            pods = sorted(pod for pod, where in self.queued.items() if where == pool.value)
            yield f"queue: {pool.value}: {len(pods)} pods: {', '.join(pods)}"
        for fault in self.differences:
            yield f"cache mismatch: {fault}"
        yield f"comparison: {json.dumps(self.summary(), sort_keys=True)}"

    def summary(self) -> dict[str, Any]:
        nodes = {name: {"pods": sorted(node.pods), "requested": node.requested} for name, node in self.nodes.items()}
        return {
            "nodes": nodes,
            "assumed": self.assumed,
            "queued": self.queued,
            "nominated": self.nominated,
            "faults": self.differences,
        }


def compare_cache(live: LiveScheduler, nodes: Iterable[KubeObject], pods: Iterable[KubeObject]) -> CacheComparison:
    """Hold the cache and the queue of a scheduler against the nodes and pods that its informers know."""
    engine, queue = live.engine, live.queue
    told = [pod for pod in pods if isinstance(pod, Pod)]
    fresh = _cache_from_api(nodes, told)
    ours, theirs = _cached_nodes(engine.cache), _cached_nodes(fresh)
    assumed = {pod.uid: pod for pod in engine.cache.pods() if engine.cache.is_assumed(pod.uid)}
    waiting = {queued.key: pool.value for pool in SubQueue for queued in queue.pods_in(pool)}
    nominated = {pod.key: node for pod in engine.pending.values() if (node := engine.nominator.node_of(pod.uid))}
    found = CacheComparison(ours, sorted(pod.key for pod in assumed.values()), waiting, nominated)
    found.differences += _node_differences(ours, theirs, {pod.spec.node_name for pod in assumed.values()})
    found.differences += _pods_on_unknown_nodes(engine.cache, fresh, assumed)
    flying = {pod.uid for pod in queue.in_flight()}
    for pod in told:
        under_way = pod.spec.node_name or not engine.serves(pod) or pod.uid in assumed or pod.uid in flying
        if not under_way and pod.key not in waiting and not pod.terminating:
            found.differences.append(f"pod {pod.key} waits for a node, and is in no queue")
    return found


def _cache_from_api(nodes: Iterable[KubeObject], pods: Iterable[Pod]) -> Cache:
    cache = Cache()
    for node in nodes:
        if isinstance(node, Node):
            cache.add_node(node)
    for pod in pods:
        if pod.spec.node_name:
            cache.add_pod(pod)
    return cache


def _cached_nodes(cache: Cache) -> dict[str, CachedNode]:
    columns, names = cache.snapshot().nodes, cache.vocabulary.resources.names
    views = {}
    for name, row in columns.index.items():
        amounts = columns.requested[:, row].tolist()
        requested = {resource: amount for resource, amount in zip(names, amounts, strict=False) if amount}
        views[name] = CachedNode(frozenset(info.pod.key for info in columns.pods[row]), requested)
    return views


def _node_differences(ours: dict[str, CachedNode], theirs: dict[str, CachedNode], moving: set[str]) -> Iterator[str]:
    """What is wrong with nodes. One that pods are on their way to may hold more than the API server shows."""
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"node {name} is missing"
    for name in sorted(ours.keys() - theirs.keys()):
        yield f"node {name} is redundant"
    for name in sorted(ours.keys() & theirs.keys()):
        mine, real = ours[name], theirs[name]
        if missing := real.pods - mine.pods:
            yield f"node {name} lacks pods {sorted(missing)}"
        if name in moving:
            continue
        if extra := mine.pods - real.pods:
            yield f"node {name} has pods too many: {sorted(extra)}"
        if mine.requested != real.requested:
            yield f"node {name} has {dict(mine.requested)} requested, and should have {dict(real.requested)}"


def _pods_on_unknown_nodes(cache: Cache, fresh: Cache, assumed: Mapping[str, Pod]) -> Iterator[str]:
    """Pods on nodes that nobody knows count too: the node may come back."""
    mine = {pod.uid: pod for pod in cache.pods() if pod.uid not in assumed}
    real = {pod.uid: pod for pod in fresh.pods()}
    for uid in sorted(real.keys() - mine.keys() - assumed.keys()):
        yield f"pod {real[uid].key} on node {real[uid].spec.node_name} is missing"
    for uid in sorted(mine.keys() - real.keys()):
        yield f"pod {mine[uid].key} on node {mine[uid].spec.node_name} is redundant"
