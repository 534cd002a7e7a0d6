"""Cache comparer: compares the scheduler's cache and queue with the API server's objects.

Called on SIGUSR2, as in kube-scheduler, or by a test. The informers' objects are loaded into a new cache, as at a
start, and the two caches are compared. Cost: that of a fresh start; the event loop is blocked meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.cache import Cache
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.live.run_loop import LiveScheduler

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A node in a cache: the pods on it, and the sum of their requests."""

    pods: frozenset[str]
    requested: Amounts


@dataclass(slots=True)
class CacheComparison:
    """The contents of cache and queue, and their `differences` from the API server's objects.

    `assumed` pods have a node in the cache only; the API server need not show them there yet.
    """

    nodes: dict[str, CachedNode]
    assumed: list[str]
    queued: dict[str, str]  # by pod: the part of the queue that it is in
    nominated: dict[str, str]  # by pod: its nominated node
    differences: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Lines for the log. The last line is the whole comparison as JSON."""
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
    """Compare the cache and the queue of a scheduler with the nodes and pods of its informers."""
    engine, queue = live.engine, live.queue
    known_pods = [pod for pod in pods if isinstance(pod, Pod)]
    fresh = Cache()
    for item in (*nodes, *known_pods):
        fresh.upsert(item)
    cached_nodes, fresh_nodes = _cached_nodes(engine.cache), _cached_nodes(fresh)
    assumed = {pod.uid: pod for pod in engine.cache.pods() if engine.cache.is_assumed(pod.uid)}
    waiting = {queued.key: pool.value for pool in SubQueue for queued in queue.pods_in(pool)}
    nominated = {pod.key: node for pod in engine.pending.values() if (node := engine.nominator.node_of(pod.uid))}
    found = CacheComparison(cached_nodes, sorted(pod.key for pod in assumed.values()), waiting, nominated)
    found.differences += _node_differences(cached_nodes, fresh_nodes, {pod.spec.node_name for pod in assumed.values()})
    found.differences += _pods_on_unknown_nodes(engine.cache, fresh, assumed)
    in_flight = {pod.uid for pod in queue.in_flight()}
    for pod in known_pods:
        is_handled = pod.spec.node_name or not engine.serves(pod) or pod.uid in assumed or pod.uid in in_flight
        if not is_handled and pod.key not in waiting and not pod.terminating:
            found.differences.append(f"pod {pod.key} is pending and in no queue")
    return found


def _cached_nodes(cache: Cache) -> dict[str, CachedNode]:
    columns, names = cache.snapshot().nodes, cache.vocabulary.resources.names
    views = {}
    for name, row in columns.index.items():
        amounts = columns.requested[:, row].tolist()
        requested = {resource: amount for resource, amount in zip(names, amounts, strict=False) if amount}
        views[name] = CachedNode(frozenset(info.pod.key for info in columns.pods[row]), requested)
    return views


def _node_differences(
    cached_nodes: dict[str, CachedNode], fresh_nodes: dict[str, CachedNode], busy: set[str]
) -> Iterator[str]:
    """Differences of nodes. A node with assumed pods may have more than the API server shows."""
    for name in sorted(fresh_nodes.keys() - cached_nodes.keys()):
        yield f"node {name} is missing"
    for name in sorted(cached_nodes.keys() - fresh_nodes.keys()):
        yield f"node {name} is redundant"
    for name in sorted(cached_nodes.keys() & fresh_nodes.keys()):
        cached, fresh = cached_nodes[name], fresh_nodes[name]
        if missing := fresh.pods - cached.pods:
            yield f"node {name} lacks pods {sorted(missing)}"
        if name in busy:
            continue
        if extra := cached.pods - fresh.pods:
            yield f"node {name} has redundant pods {sorted(extra)}"
        if cached.requested != fresh.requested:
            yield f"node {name} has {dict(cached.requested)} requested instead of {dict(fresh.requested)}"


def _pods_on_unknown_nodes(cache: Cache, fresh: Cache, assumed: Mapping[str, Pod]) -> Iterator[str]:
    """Differences of pods, also on nodes that do not exist: such a node may come back."""
    cached = {pod.uid: pod for pod in cache.pods() if pod.uid not in assumed}
    expected = {pod.uid: pod for pod in fresh.pods()}
    for uid in sorted(expected.keys() - cached.keys() - assumed.keys()):
        yield f"pod {expected[uid].key} on node {expected[uid].spec.node_name} is missing"
    for uid in sorted(cached.keys() - expected.keys()):
        yield f"pod {cached[uid].key} on node {cached[uid].spec.node_name} is redundant"
