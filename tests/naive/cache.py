"""Naive twin of the cache: the expected contents of a cache and its snapshots after any history of events.

The cluster is plain dictionaries and nothing is incremental. A view is computed from the objects each time, except for
what depends on history by design: image counts are as old as their node, and the visiting order is rebuilt only when
nodes are added or removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bayplan.cache.node_tree import zone_of
from bayplan.objects.core import Node, Pod
from bayplan.objects.ports import HostPort, host_ports
from bayplan.objects.resources import accounted_nonzero, accounted_requests, allocatable_amounts
from bayplan.objects.selectors.pod_affinity import affinity_terms

Images = dict[str, tuple[int, int]]


class Refused(Exception):
    """The state machine has no such transition."""


@dataclass
class NaiveSnapshot:
    """State that one snapshot keeps between refreshes."""

    images: dict[str, tuple[int, Images]] = field(default_factory=dict)  # by node: version, images at refresh
    order: list[str] = field(default_factory=list)
    layout: int = -1


@dataclass
class NaiveCache:
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)
    ports: dict[str, set[HostPort]] = field(default_factory=dict)
    images: dict[str, tuple[int, set[str]]] = field(default_factory=dict)
    zones: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    layout: int = 0
    clock: int = 0

    # nodes

    def put_node(self, node: Node) -> None:
        old = self.nodes.get(node.name)
        if old is None:
            self.layout += 1
            self._enter_zone(node)
            self.ports[node.name] = {port for pod in self.on(node.name) for port in host_ports(pod)}
        else:
            self._drop_images(old)
            if zone_of(old) != zone_of(node):
                self._leave_zone(old)
                self._enter_zone(node)
        self.nodes[node.name] = node
        for image in node.status.images:
            for name in image.names:
                self.images.setdefault(name, (image.size_bytes, set()))[1].add(node.name)
        self._touch(node.name)

    def drop_node(self, name: str) -> None:
        if name not in self.nodes:
            raise Refused
        node = self.nodes.pop(name)
        self._drop_images(node)
        self._leave_zone(node)
        self.layout += 1

    # pods

    def assume(self, pod: Pod) -> None:
        if pod.uid in self.pods:
            raise Refused
        self._put(pod)
        self.assumed.add(pod.uid)

    def forget(self, pod: Pod) -> None:
        known = self.pods.get(pod.uid)
        if known is None:
            return
        if pod.uid not in self.assumed or pod.spec.node_name not in ("", known.spec.node_name):
            raise Refused
        self._take(pod.uid)

    def add(self, pod: Pod) -> None:
        if pod.uid in self.pods:
            if pod.uid not in self.assumed:
                raise Refused
            self._take(pod.uid)
        self._put(pod)

    def update(self, pod: Pod) -> None:
        known = self.pods.get(pod.uid)
        if known is None or pod.uid in self.assumed or known.spec.node_name != pod.spec.node_name:
            raise Refused
        self._take(pod.uid)
        self._put(pod)

    def remove(self, pod: Pod) -> None:
        if pod.uid not in self.pods:
            raise Refused
        self._take(pod.uid)

    @contextmanager
    def aside(self, uids: set[str]) -> Iterator[None]:
        """Removes these pods inside the block; those on unknown nodes are not counted anyway."""
        pods, assumed = dict(self.pods), set(self.assumed)
        taken = [uid for uid in self.pods if uid in uids and self.pods[uid].spec.node_name in self.nodes]
        for uid in taken:
            self._take(uid)
        yield
        for uid in taken:
            self._put(pods[uid])
        self.pods, self.assumed = pods, assumed

    def on(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.spec.node_name == name]

    # views

    def refresh(self, snapshot: NaiveSnapshot) -> dict[str, Any]:
        """The contents of the snapshot after this refresh."""
        seen = {}
        for name in self.nodes:
            version, images = snapshot.images.get(name, (None, {}))
            if version != self.versions[name]:
                images = self._images_of(name)
            seen[name] = (self.versions[name], images)
        snapshot.images = seen
        if snapshot.layout != self.layout:
            snapshot.order, snapshot.layout = self._visiting_order(), self.layout
        return {
            "nodes": {name: self._node_view(name, snapshot) for name in self.nodes},
            "order": list(snapshot.order),
            "claims": dict(Counter(claim for pod in self._placed() for claim in _claims(pod))),
            "terms": {terms for pod in self._placed() if (terms := affinity_terms(pod)) is not None},
        }

    def _node_view(self, name: str, snapshot: NaiveSnapshot) -> dict[str, Any]:
        node, pods = self.nodes[name], self.on(name)
        requested: Counter[str] = Counter()
        for pod in pods:
            requested.update(accounted_requests(pod))
        nonzero = [accounted_nonzero(pod) for pod in pods]
        return {
            "node": node,
            "labels": dict(node.metadata.labels),
            "taints": node.spec.taints,
            "features": frozenset(node.status.declared_features),
            "unschedulable": node.spec.unschedulable,
            "allocatable": _without_zeros(allocatable_amounts(node.status.allocatable)),
            "requested": _without_zeros(requested),
            "nonzero": (sum(cpu for cpu, _ in nonzero), sum(memory for _, memory in nonzero)),
            "count": len(pods),
            "pods": sorted(pod.uid for pod in pods),
            "objects": {pod.uid: pod for pod in pods},
            "ports": set(self.ports[name]),
            "images": snapshot.images[name][1],
            "kinds": Counter((pod.namespace, frozenset(pod.labels.items())) for pod in pods),
            "terms": Counter(terms for pod in pods if (terms := affinity_terms(pod)) is not None),
            "terminating": sum(pod.terminating for pod in pods),
        }

    def _placed(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.spec.node_name in self.nodes]

    def _images_of(self, name: str) -> Images:
        return {image: (size, len(nodes)) for image, (size, nodes) in self.images.items() if name in nodes}

    def _visiting_order(self) -> list[str]:
        longest = max(map(len, self.zones.values()), default=0)
        return [names[turn] for turn in range(longest) for names in self.zones.values() if turn < len(names)]

    # helpers

    def _put(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        if pod.spec.node_name in self.nodes:
            self.ports[pod.spec.node_name] |= set(host_ports(pod))
            self._touch(pod.spec.node_name)

    def _take(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.assumed.discard(uid)
        if pod.spec.node_name in self.nodes:
            self.ports[pod.spec.node_name] -= set(host_ports(pod))
            self._touch(pod.spec.node_name)

    def _touch(self, name: str) -> None:
        self.clock += 1
        self.versions[name] = self.clock

    def _drop_images(self, node: Node) -> None:
        for name in [name for name, (_, nodes) in self.images.items() if node.name in nodes]:
            self.images[name][1].discard(node.name)
            if not self.images[name][1]:
                del self.images[name]

    def _enter_zone(self, node: Node) -> None:
        self.zones.setdefault(zone_of(node), []).append(node.name)

    def _leave_zone(self, node: Node) -> None:
        names = self.zones[zone_of(node)]
        names.remove(node.name)
        if not names:
            del self.zones[zone_of(node)]


def _claims(pod: Pod) -> list[str]:
    return [
        f"{pod.namespace}/{volume.persistent_volume_claim.claim_name}"
        for volume in pod.spec.volumes
        if volume.persistent_volume_claim is not None
    ]


def _without_zeros(amounts: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}
